//! What quotas cost: turns without a tenant, of many tenants, and of one tenant alone, over the same rules.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::task::JoinSet;

use crate::{
    http::{Connection, request},
    platform::{KEY, Platform},
    rows::{Bench, MESSAGES, Row, count, median},
};

const CLIENTS: usize = 64;
const TURNS: usize = 40;

impl Bench {
    /// Gives tenants two quotas that none of them spends.
    pub async fn default_tier(&self, admin: &mut Connection) {
        let rules = "[{\"scope\":\"tenant\",\"metric\":\"tokens\",\"windowUnit\":\"month\",\"limit\":1000000000000},\
            {\"scope\":\"tenant\",\"metric\":\"cost\",\"windowUnit\":\"day\",\"limit\":1000000}]";
        let tier = format!("{{\"tierId\":\"pro\",\"name\":\"Pro\",\"isDefault\":true,\"rules\":{rules}}}");
        let made = admin.exchange(&request("POST", "/v1/tenant-admin/tiers", KEY, &tier)).await.expect("an answer");
        assert_eq!(made.0, 201, "{}", made.1);
    }

    pub async fn tenants(&self) -> Vec<Row> {
        let platform = self.platform();
        let mut admin = Connection::open(&platform.address).await.expect("connected");
        self.default_tier(&mut admin).await;
        let (mut cpus, mut alone, mut commits) = ([vec![], vec![], vec![]], vec![], [vec![], vec![]]);
        for _ in 0..self.rounds {
            let mut rates = [0.0; 3];
            for (at, tenants) in [0, CLIENTS, 1].into_iter().enumerate() {
                let before = platform.cpu_ms();
                let (rate, turns) = self.turns_of(&platform, tenants).await;
                cpus[at].push((platform.cpu_ms() - before) / turns);
                rates[at] = rate;
            }
            alone.push(rates[2] / rates[1]);
            for (at, tenants) in [0, 1].into_iter().enumerate() {
                let body = body(tenants, 0);
                let mut admin = Connection::open(&platform.address).await.expect("connected");
                let before = self.next_transaction().await;
                for _ in 0..TURNS {
                    admin.exchange(&body).await.expect("an answer");
                }
                commits[at].push((self.next_transaction().await - before) / count(TURNS as u64));
            }
        }
        let [without, many, one] = cpus.map(median);
        let [plain, metered] = commits.map(median);
        let mut rows = Row::new(
            "CPU that two quota rules add to a turn, many tenants",
            format!("{:+.3} ms", many - without),
            format!("{without:.3} ms without a tenant"),
            "<= +0.05 ms",
        );
        rows.extend(Row::new(
            "  the same, one tenant alone",
            format!("{:+.3} ms", one - without),
            String::new(),
            "<= +0.05 ms",
        ));
        rows.extend(Row::new(
            "  writing transactions of a turn",
            format!("{metered:.2}"),
            format!("{plain:.2} without a tenant"),
            "as without",
        ));
        let alone = format!("{:.2} x", median(alone));
        rows.extend(Row::new("turns of one tenant alone, 64 at once", alone, "many tenants".into(), ">= 0.8 x"));
        rows
    }

    /// Turns a second of 64 clients over so many tenants, and how many there were.
    async fn turns_of(&self, platform: &Platform, tenants: usize) -> (f64, f64) {
        let stop = Arc::new(AtomicBool::new(false));
        let mut tasks = JoinSet::new();
        for client in 0..CLIENTS {
            let (stop, address, bytes) = (Arc::clone(&stop), platform.address.clone(), body(tenants, client));
            tasks.spawn(async move {
                let mut connection = Connection::open(&address).await.expect("connected");
                let mut turns = 0_u64;
                while !stop.load(Ordering::Relaxed) {
                    let (status, body) = connection.exchange(&bytes).await.expect("an answer");
                    assert!(status < 300, "{status}: {body}");
                    turns += 1;
                }
                turns
            });
        }
        let began = std::time::Instant::now();
        tokio::time::sleep(Duration::from_secs(self.seconds)).await;
        stop.store(true, Ordering::Relaxed);
        let mut turns = 0.0;
        while let Some(done) = tasks.join_next().await {
            turns += count(done.expect("no panic"));
        }
        (turns / began.elapsed().as_secs_f64(), turns)
    }
}

/// A message of the client's tenant; no tenants: of none.
fn body(tenants: usize, client: usize) -> Vec<u8> {
    let tenant = match tenants {
        0 => String::new(),
        some => format!(",\"tenantId\":\"t{}\"", client % some),
    };
    let message = format!("{{\"message\":\"Hello\",\"model\":\"t1-d0\",\"skipSummarization\":true{tenant}}}");
    request("POST", MESSAGES, KEY, &message)
}
