//! Measures the platform against references taken in the same run: `just bench`.
//!
//! Machines are shared and noisy, so a figure is a ratio: the median of interleaved rounds, none
//! dropped. The platform runs as its own process over a PostgreSQL with fsync on; the model server
//! and the load generator live here.

mod bloat;
mod events;
mod files;
mod growth;
mod http;
mod knowledge;
mod mcp;
mod migrations;
mod model;
mod peers;
mod platform;
mod probe;
mod rows;
mod sandboxes;
mod tenants;
mod threads;
mod tools;
mod turns;

use std::{path::PathBuf, process::Command, sync::Arc};

use clap::{Parser, Subcommand};
use diesel_async::SimpleAsyncConnection;
use platform_db::{Db, DbConfig, Embedded};

use crate::{
    model::Arrivals,
    rows::{Bench, Row},
};

/// Prints each figure beside its goal. Without rows, all of them.
#[derive(Parser)]
#[command(subcommand_precedence_over_arg = true)]
struct Arguments {
    #[command(subcommand)]
    instead: Option<Instead>,
    /// Rows to measure, for example `1 2 7`.
    rows: Vec<u32>,
    /// Rounds of each row that is measured in rounds.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds of each load.
    #[arg(long, default_value_t = 4)]
    seconds: u64,
    /// Chats that row 8 lists over.
    #[arg(long, default_value_t = 1_000_000)]
    chats: usize,
    /// Pieces that row 16 searches by words.
    #[arg(long, default_value_t = 1_000_000)]
    pieces: usize,
    /// Streams that row 6 opens.
    #[arg(long, default_value_t = 18_000)]
    streams: usize,
}

/// What is measured instead of rows.
#[derive(Subcommand)]
enum Instead {
    /// Draws how costs grow with what is there.
    Growth {
        /// The picture.
        file: PathBuf,
    },
    /// Does many turns, and says what the database keeps of them.
    Turns {
        /// How many.
        number: u64,
    },
    /// Takes each migration back and does it again, over the chats of row 8.
    Migrations,
    /// Other systems at the same work, installed from `PyPI` and crates.io.
    Peers,
    /// Serves the reference of turns.
    #[command(hide = true)]
    Probe {
        /// Where turns are stored.
        database: String,
        /// The address of the model server.
        model: String,
    },
}

fn main() {
    let arguments = Arguments::parse();
    if let Some(Instead::Probe { database, model }) = arguments.instead {
        return probe::run(database, model);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(measure(arguments));
}

async fn measure(arguments: Arguments) {
    let data = PathBuf::from("target/bench-postgres");
    let embedded = tokio::task::spawn_blocking(move || Embedded::start(&data, &[])).await.expect("joined");
    let embedded = embedded.expect("a PostgreSQL");
    let server = embedded.url();
    let arrivals = Arrivals::default();
    let model = model::start(Arc::clone(&arrivals)).await.expect("a model server");
    let providers = PathBuf::from("target/bench-providers.yaml");
    let models: Vec<String> = [
        "t1-d0",
        "t50-d10",
        "t64-d0",
        "t100-d10",
        "t100-d10-w300",
        "t500-d0",
        "t500-d10",
        "t1000-d10",
        "t6000-d10",
        "t60-d1000",
    ]
    .iter()
    .map(|name| format!("{{llm: {name}, contextWindow: 128000}}"))
    .collect();
    let text =
        format!("providers:\n  - {{name: paced, baseUrl: 'http://{model}/v1', models: [{}]}}\n", models.join(", "));
    std::fs::write(&providers, text).expect("written");
    let bench = async |row: u32| {
        let (database, db) = fresh(&server, row).await;
        Bench {
            database,
            db,
            model: model.clone(),
            arrivals: Arc::clone(&arrivals),
            providers: providers.clone(),
            pgbench: pgbench(),
            rounds: arguments.rounds,
            seconds: arguments.seconds,
            chats: arguments.chats,
            pieces: arguments.pieces,
            streams: arguments.streams,
        }
    };
    match &arguments.instead {
        Some(Instead::Growth { file }) => growth::draw(bench, file).await,
        Some(Instead::Turns { number }) => bench(107).await.keep_turns(*number).await,
        Some(Instead::Migrations) => bench(108).await.migrate_again().await,
        Some(Instead::Peers) => {
            let bench = bench(109).await;
            peers::compare(&bench).await;
            bench.compare_mcp().await;
        }
        Some(Instead::Probe { .. }) | None => {
            println!("{:>3}  {:<58} {:>14}  {:<26} goal", "row", "what", "measured", "reference in the same run");
            for number in 1..=22 {
                if arguments.rows.is_empty() || arguments.rows.contains(&number) {
                    for Row { what, measured, reference, goal } in bench(number).await.row(number).await {
                        println!("{number:>3}  {what:<58} {measured:>14}  {reference:<26} {goal}");
                    }
                }
            }
        }
    }
    tokio::task::spawn_blocking(move || drop(embedded)).await.expect("joined");
}

/// An empty database for a row, so that no row feels what another left behind.
async fn fresh(server: &str, row: u32) -> (String, Db) {
    let admin = Db::new(&DbConfig { url: server.to_owned(), pool: 1 }).expect("a pool");
    let mut conn = admin.conn().await.expect("a connection");
    for statement in [format!("DROP DATABASE IF EXISTS row_{row} WITH (FORCE)"), format!("CREATE DATABASE row_{row}")] {
        conn.batch_execute(&statement).await.expect("a fresh database");
    }
    let url = server.replace("dbname=postgres", &format!("dbname=row_{row}"));
    let db = Db::new(&DbConfig { url: url.clone(), pool: 4 }).expect("a pool");
    db.migrate().await.expect("migrated");
    (url, db)
}

/// `pgbench`, on the path or beside the newest server.
fn pgbench() -> PathBuf {
    if Command::new("pgbench").arg("--version").output().is_ok() {
        return "pgbench".into();
    }
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = versions.map(|v| v.path().join("bin/pgbench")).filter(|path| path.exists()).collect();
    found.sort();
    found.pop().expect("pgbench is not installed; it comes with PostgreSQL")
}
