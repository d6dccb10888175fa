//! What a tool call adds to a turn.

use std::time::{Duration, Instant};

use diesel::{QueryableByName, sql_types::BigInt};
use diesel_async::RunQueryDsl;
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
};

use crate::{
    http::{Connection, asked, request},
    platform::{KEY, Platform},
    rows::{Bench, Row, count, median, millis},
};

const TURNS: u64 = 100;

#[derive(QueryableByName)]
struct Next {
    #[diesel(sql_type = BigInt)]
    xid: i64,
}

/// Sends a message of the demo model; its time in ms.
async fn turn(connection: &mut Connection, text: &str) -> f64 {
    let body = format!("{{\"message\":\"{text}\",\"provider\":\"demo\",\"skipSummarization\":true}}");
    let began = Instant::now();
    let sent = request("POST", "/v1/assistants/tools/messages", KEY, &body);
    let (status, body) = connection.exchange(&sent).await.expect("an answer");
    assert!(status == 200 && !body.contains("\"error\""), "{status}: {body}");
    millis(began.elapsed())
}

impl Bench {
    pub async fn tools(&self) -> Vec<Row> {
        let platform = Platform::start(&self.database, &self.providers, &[("PLATFORM_EGRESS_ALLOW", "127.0.0.1")]);
        let mut connection = Connection::open(&platform.address).await.expect("connected");
        self.tool_server(&mut connection).await;
        let (plain, one) = ("Hello", "/tool fast\\nHello");
        let eight = (0..8).map(|n| format!("/tool slow{n}")).collect::<Vec<_>>().join("\\n");
        let (mut commits, mut times, mut together) = ([0.0, 0.0], [Vec::new(), Vec::new()], Vec::new());
        turn(&mut connection, one).await;
        for _ in 0..self.rounds {
            for (at, text) in [plain, one].into_iter().enumerate() {
                let before = self.next_transaction().await;
                for _ in 0..TURNS {
                    times[at].push(turn(&mut connection, text).await);
                }
                commits[at] += (self.next_transaction().await - before) / count(TURNS) / self.rounds_as_number();
            }
            together.push(turn(&mut connection, &eight).await);
        }
        let [plain, one] = times.map(median);
        let mut rows = Row::new(
            "writing transactions of a turn with one tool call",
            format!("{:.2}", commits[1]),
            format!("{:.2} without", commits[0]),
            "at most 2 more",
        );
        rows.extend(Row::new(
            "time it adds, with the tool's own",
            format!("{:.2} ms", one - plain),
            format!("{plain:.2} ms without"),
            "",
        ));
        rows.extend(Row::new(
            "8 calls of 100 ms in one answer",
            format!("{:.0} ms", median(together)),
            String::new(),
            "under 150 ms",
        ));
        rows
    }

    /// A server of tools that answer at once (`fast`) or after 100 ms (`slow0` to `slow7`), for the assistant `tools`; its id.
    pub async fn tool_server(&self, connection: &mut Connection) -> String {
        let tool = serve().await;
        let tools: Vec<String> = (0..8)
            .map(|n| format!("{{\"function\":{{\"name\":\"slow{n}\"}},\"endpoint\":\"/slow\"}}"))
            .chain(["{\"function\":{\"name\":\"fast\"},\"endpoint\":\"/fast\"}".to_owned()])
            .collect();
        let server = format!("{{\"name\":\"t\",\"url\":\"http://{tool}\",\"toolDefinitions\":[{}]}}", tools.join(","));
        let made = connection.exchange(&request("POST", "/v1/tool-servers", KEY, &server)).await.expect("an answer").1;
        let id = made.split("\"_id\":\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or_default().to_owned();
        let assistant = format!("{{\"name\":\"t\",\"identifier\":\"tools\",\"availableToolsGroupsUids\":[\"{id}\"]}}");
        let (status, _) =
            connection.exchange(&request("POST", "/v1/assistants", KEY, &assistant)).await.expect("an answer");
        assert_eq!(status, 201);
        id
    }

    /// Transactions that wrote something have a number of their own: the next one.
    pub async fn next_transaction(&self) -> f64 {
        let mut conn = self.db.conn().await.expect("a connection");
        let next = diesel::sql_query("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS xid");
        let next: Next = next.get_result(&mut *conn).await.expect("a number");
        count(next.xid.unsigned_abs())
    }

    fn rounds_as_number(&self) -> f64 {
        count(self.rounds as u64)
    }
}

/// A server for tools that answers at once, or at `/slow` after 100 ms.
async fn serve() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    platform_core::spawn("tool server", async move {
        while let Ok((stream, _)) = listener.accept().await {
            platform_core::spawn("tool connection", async move {
                let _ = answer(stream).await;
            });
        }
    });
    address
}

async fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = Vec::with_capacity(4096);
    while let Some((head, _)) = asked(&mut stream, &mut buffer).await? {
        if head.starts_with("GET /slow") {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 11\r\n\r\n";
        stream.write_all(format!("{head}{{\"ok\":true}}").as_bytes()).await?;
    }
    Ok(())
}
