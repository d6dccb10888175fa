//! What the database keeps of many turns, and what of it is dead.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use diesel::{
    QueryableByName,
    sql_types::{BigInt, Text},
};
use diesel_async::RunQueryDsl;
use tokio::task::JoinSet;

use crate::{
    http::{Connection, request},
    platform::KEY,
    rows::{Bench, MESSAGES, count},
};

const CLIENTS: usize = 64;
/// Turns of a chat before the next is begun.
const TURNS_OF_CHAT: u64 = 10;
/// How often it is looked at.
const LOOKS: u64 = 5;
const MIB: f64 = 1024.0 * 1024.0;

#[derive(QueryableByName)]
struct Table {
    #[diesel(sql_type = Text)]
    name: String,
    #[diesel(sql_type = BigInt)]
    heap: i64,
    #[diesel(sql_type = BigInt)]
    indexes: i64,
    #[diesel(sql_type = BigInt)]
    live: i64,
    #[diesel(sql_type = BigInt)]
    dead: i64,
    #[diesel(sql_type = BigInt)]
    vacuums: i64,
}

const TABLES: &str = "SELECT relname::text AS name, pg_table_size(relid) AS heap, pg_indexes_size(relid) AS indexes,
        n_live_tup AS live, n_dead_tup AS dead, autovacuum_count AS vacuums
    FROM pg_stat_user_tables WHERE pg_total_relation_size(relid) > 1048576 ORDER BY pg_total_relation_size(relid) DESC";

impl Bench {
    /// Does so many turns of ten in a chat with a reply of 64 tokens, and prints what the tables take meanwhile.
    pub async fn keep_turns(&self, turns: u64) {
        let platform = self.platform();
        println!("| turns | a second | table | data | indexes | bytes a turn | live rows | dead rows | autovacuums |");
        println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- |");
        for look in 1..=LOOKS {
            let (from, until) = (turns * (look - 1) / LOOKS, turns * look / LOOKS);
            let began = Instant::now();
            self.do_turns(&platform.address, from, until).await;
            let rate = count(until - from) / began.elapsed().as_secs_f64();
            self.say_tables(until, &format!("{rate:.0}")).await;
        }
        self.run("VACUUM ANALYZE").await;
        self.say_tables(turns, "after `VACUUM`").await;
    }

    async fn do_turns(&self, address: &str, from: u64, until: u64) {
        let next = Arc::new(AtomicU64::new(from));
        let mut tasks = JoinSet::new();
        for client in 0..CLIENTS {
            let (next, address) = (Arc::clone(&next), address.to_owned());
            tasks.spawn(async move {
                let mut connection = Connection::open(&address).await.expect("connected");
                let mut own = 0;
                while next.fetch_add(1, Ordering::Relaxed) < until {
                    let chat = format!("kept-{from}-{client}-{}", own / TURNS_OF_CHAT);
                    own += 1;
                    let body = format!(
                        "{{\"message\":\"What was it that we said?\",\"model\":\"t64-d0\",\
                         \"skipSummarization\":true,\"chatUid\":\"{chat}\"}}"
                    );
                    let told = connection.exchange(&request("POST", MESSAGES, KEY, &body)).await.expect("an answer");
                    assert_eq!(told.0, 200, "{}", told.1);
                }
            });
        }
        while let Some(done) = tasks.join_next().await {
            done.expect("no panic");
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "sizes are for people")]
    async fn say_tables(&self, turns: u64, rate: &str) {
        let mut conn = self.db.conn().await.expect("a connection");
        let tables: Vec<Table> = diesel::sql_query(TABLES).load(&mut *conn).await.expect("sizes");
        for Table { name, heap, indexes, live, dead, vacuums } in tables {
            let (heap, indexes) = (heap as f64, indexes as f64);
            let each = (heap + indexes) / count(turns);
            println!(
                "| {turns} | {rate} | `{name}` | {:.0} MiB | {:.0} MiB | {each:.0} | {live} | {dead} | {vacuums} |",
                heap / MIB,
                indexes / MIB
            );
        }
    }
}
