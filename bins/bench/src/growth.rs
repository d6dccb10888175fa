//! How costs grow with what is there, drawn into docs/growth.svg: `just growth`.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use plotters::prelude::*;

use crate::{
    http::{Connection, request},
    platform::{KEY, Platform},
    rows::{Bench, MESSAGES, count, message, millis, percentile},
    threads::agent,
};

const CHATS: [usize; 5] = [1_000, 10_000, 100_000, 1_000_000, 10_000_000];
const MESSAGE_COUNTS: [usize; 5] = [10, 100, 1_000, 10_000, 100_000];
const STREAMS: [usize; 6] = [1, 10, 100, 1_000, 5_000, 18_000];
const TENANTS: [usize; 4] = [100, 1_000, 10_000, 100_000];
const TOOL_SERVERS: [usize; 4] = [100, 1_000, 10_000, 100_000];
const RUNS: [usize; 4] = [1_000, 10_000, 100_000, 1_000_000];
/// Runs that wait for the same agent.
const RUNS_OF_AGENT: usize = 1000;
/// Requests of one kind whose median is a point.
const SAMPLES: usize = 200;
const COLUMNS: usize = 3;
const SIZE: (u32, u32) = (1260, 760);

/// One line of a picture, by what there is of it.
struct Series {
    name: &'static str,
    points: Vec<(f64, f64)>,
}

struct Chart {
    title: &'static str,
    across: &'static str,
    up: &'static str,
    series: Vec<Series>,
}

/// Measures all curves and draws them beside each other. Each uses a database of its own, by its number.
pub async fn draw(bench: impl AsyncFn(u32) -> Bench, into: &Path) {
    let charts = [
        told(by_messages(&bench(101).await).await),
        told(by_streams(&bench(102).await).await),
        told(by_tenants(&bench(103).await).await),
        told(by_tool_servers(&bench(104).await).await),
        told(by_runs(&bench(105).await).await),
        told(by_chats(&bench(106).await).await),
    ];
    picture(&charts, into).expect("a picture");
    println!("Drawn into {}.", into.display());
}

/// The chart, once its points are printed.
fn told(chart: Chart) -> Chart {
    for Series { name, points } in &chart.series {
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{x}: {y:.2}")).collect();
        println!("{:<34} {name:<32} {} [{}]", chart.title, points.join(", "), chart.up);
    }
    chart
}

/// Median time of a request, in ms.
async fn median_of(connection: &mut Connection, bytes: &[u8], samples: usize) -> f64 {
    let mut times = Vec::with_capacity(samples);
    for _ in 0..samples {
        let began = Instant::now();
        let (status, answer) = connection.exchange(bytes).await.expect("an answer");
        assert!(status < 300, "{status}: {answer}");
        times.push(millis(began.elapsed()));
    }
    percentile(&mut times, 0.5)
}

fn message_to(chat: &str) -> String {
    format!("{{\"message\":\"Hello\",\"chatUid\":\"{chat}\",\"model\":\"t1-d0\",\"skipSummarization\":true}}")
}

#[expect(clippy::cast_precision_loss, reason = "counts are small")]
fn as_point(number: usize) -> f64 {
    number as f64
}

async fn by_chats(bench: &Bench) -> Chart {
    let platform = bench.platform();
    let mut connection = Connection::open(&platform.address).await.expect("connected");
    median_of(&mut connection, &request("POST", MESSAGES, KEY, &message_to("read")), 1).await;
    let kinds = [
        ("a turn", request("POST", MESSAGES, KEY, &message("t1-d0", "Hello"))),
        ("a chat by its key", request("GET", "/v1/assistants/default/chats/read", KEY, "")),
        ("a page by assistant, and total", {
            let filter = "{\"assistantIdentifier\":\"a7\",\"createdAfter\":1700000000000,\"name\":\"chat 7\"}";
            request("POST", "/v1/assistants/chats?limit=10&omitContent=true", KEY, filter)
        }),
    ];
    let series = by_count(&platform, &CHATS, &kinds, async |chats| bench.fill(chats).await).await;
    Chart { title: "Chats of an account", across: "chats", up: "ms at the median", series }
}

/// Medians of some requests, by how much there is.
async fn by_count(
    platform: &Platform,
    counts: &[usize],
    kinds: &[(&'static str, Vec<u8>)],
    fill: impl AsyncFn(usize),
) -> Vec<Series> {
    let mut series: Vec<Series> = kinds.iter().map(|(name, _)| Series { name, points: vec![] }).collect();
    for count in counts {
        fill(*count).await;
        let mut connection = Connection::open(&platform.address).await.expect("connected");
        for ((_, bytes), series) in kinds.iter().zip(&mut series) {
            series.points.push((as_point(*count), median_of(&mut connection, bytes, SAMPLES).await));
        }
    }
    series
}

/// Tenants under a tier of two quotas, each with a month of its history.
async fn by_tenants(bench: &Bench) -> Chart {
    let platform = bench.platform();
    let mut admin = Connection::open(&platform.address).await.expect("connected");
    bench.default_tier(&mut admin).await;
    let of_one = "{\"message\":\"Hello\",\"model\":\"t1-d0\",\"skipSummarization\":true,\"tenantId\":\"t7\"}";
    let kinds = [
        ("a turn of one", request("POST", MESSAGES, KEY, of_one)),
        ("one, with its quotas", request("GET", "/v1/tenant-usage/t7", KEY, "")),
        ("a page of them", request("GET", "/v1/tenants?limit=10", KEY, "")),
    ];
    median_of(&mut admin, &kinds[0].1, 1).await;
    let fields = "'tenant_id', 'g' || n, 'id', 'g' || n, 'first_seen_ms', of.first_seen_ms + n, 'last_seen_ms', of.last_seen_ms + n";
    let fill = async |tenants: usize| bench.copy("tenants", "tenant_id = 't7'", fields, tenants).await;
    let series = by_count(&platform, &TENANTS, &kinds, fill).await;
    Chart { title: "Tenants of an account", across: "tenants", up: "ms at the median", series }
}

async fn by_tool_servers(bench: &Bench) -> Chart {
    let platform = Platform::start(&bench.database, &bench.providers, &[("PLATFORM_EGRESS_ALLOW", "127.0.0.1")]);
    let mut admin = Connection::open(&platform.address).await.expect("connected");
    let server = bench.tool_server(&mut admin).await;
    let call = "{\"message\":\"/tool fast\",\"provider\":\"demo\",\"skipSummarization\":true}";
    let kinds = [
        ("a turn with a tool call", request("POST", "/v1/assistants/tools/messages", KEY, call)),
        ("one by its id", request("GET", &format!("/v1/tool-servers/{server}"), KEY, "")),
        ("a page of them, and total", request("GET", "/v1/tool-servers?limit=10", KEY, "")),
    ];
    let fields = "'id', 'g' || n, 'identifier', 'g' || n, 'name', 'server ' || n, 'created_ms', of.created_ms + n";
    let which = format!("id = '{server}'");
    let fill = async |servers: usize| bench.copy("tool_servers", &which, fields, servers).await;
    let series = by_count(&platform, &TOOL_SERVERS, &kinds, fill).await;
    Chart { title: "Tool servers of an account", across: "tool servers", up: "ms at the median", series }
}

/// Runs that wait for agents which have as many at work as they may, of ten agents for each account.
async fn by_runs(bench: &Bench) -> Chart {
    let platform = bench.platform();
    let mut connection = Connection::open(&platform.address).await.expect("connected");
    let agent = agent(&mut connection, "t1-d0", 1).await;
    let turn = request("POST", MESSAGES, KEY, &message("t1-d0", "Hello"));
    let (mut turns, mut called) = (vec![], vec![]);
    for runs in RUNS {
        let agents = runs / RUNS_OF_AGENT;
        bench
            .run(&format!(
                "INSERT INTO lanes (account_id, id, most_running, interval_ms, closed)
                 SELECT 'a' || n / 10, 'g' || n, 1, 60000, false FROM generate_series(1, {agents}) n ON CONFLICT DO NOTHING;
                 INSERT INTO runs (id, account_id, kind, subject, payload, due, lane, opens, owner)
                 SELECT 'g' || lane || '-' || n, 'a' || lane / 10, 'thread', 'g' || lane || '-' || n, 'null',
                    now() + CASE n WHEN 1 THEN interval '1 day' ELSE interval '0' END, 'g' || lane, true,
                    CASE n WHEN 1 THEN 'nobody' END
                 FROM generate_series(1, {agents}) lane, generate_series(1, {RUNS_OF_AGENT}) n ON CONFLICT DO NOTHING;
                 VACUUM ANALYZE runs; VACUUM ANALYZE lanes"
            ))
            .await;
        turns.push((as_point(runs), median_of(&mut connection, &turn, SAMPLES).await));
        let mut times = Vec::new();
        for n in 0..SAMPLES / 2 {
            times.push(bench.thread_called(&mut connection, &agent, &format!("n-{runs}-{n}")).await);
        }
        called.push((as_point(runs), percentile(&mut times, 0.5)));
    }
    let series = vec![
        Series { name: "a turn", points: turns },
        Series { name: "thread accepted to model called", points: called },
    ];
    Chart { title: "Runs that wait", across: "runs", up: "ms at the median", series }
}

async fn by_messages(bench: &Bench) -> Chart {
    let platform = bench.platform();
    let mut connection = Connection::open(&platform.address).await.expect("connected");
    let assistant = "{\"name\":\"Short\",\"identifier\":\"short\",\"maxChatMessages\":20}";
    let (status, answer) =
        connection.exchange(&request("POST", "/v1/assistants", KEY, assistant)).await.expect("an answer");
    assert_eq!(status, 201, "{answer}");
    let (mut turns, mut pages) = (vec![], vec![]);
    for messages in MESSAGE_COUNTS {
        let chat = format!("long-{messages}");
        let turn = request("POST", "/v1/assistants/short/messages", KEY, &message_to(&chat));
        median_of(&mut connection, &turn, 1).await;
        let fill = format!(
            "INSERT INTO messages (account_id, conversation, position, uid, role, body, created_ms)
             SELECT account_id, conversation, n, gen_random_uuid()::text, role, body, created_ms
             FROM messages, generate_series(2, {messages} - 1) n
             WHERE conversation = '{chat}' AND position = n % 2;
             UPDATE chats SET message_count = {messages}, turn_start = {messages} - 2 WHERE uid = '{chat}'"
        );
        bench.run(&fill).await;
        turns.push((as_point(messages), median_of(&mut connection, &turn, SAMPLES / 4).await));
        let state = request("GET", &format!("/v1/assistants/short/chats/{chat}?omitContent=true"), KEY, "");
        pages.push((as_point(messages), median_of(&mut connection, &state, SAMPLES).await));
    }
    let series = vec![
        Series { name: "a turn, 20 in the window", points: turns },
        Series { name: "its state, without messages", points: pages },
    ];
    Chart { title: "Messages of a chat", across: "messages", up: "ms at the median", series }
}

async fn by_streams(bench: &Bench) -> Chart {
    let (mut memory, mut cpu, seconds) = (vec![], vec![], 5);
    for streams in STREAMS {
        let open = bench.open(streams, Duration::from_secs(seconds)).await;
        memory.push((as_point(streams), open.kib_each * as_point(streams) / 1024.0));
        cpu.push((as_point(streams), open.cpu_ms / count(seconds)));
    }
    let series =
        vec![Series { name: "CPU, ms a second", points: cpu }, Series { name: "memory of all, MiB", points: memory }];
    Chart { title: "Open streams over 100 chats", across: "streams", up: "ms, MiB", series }
}

fn picture(charts: &[Chart], into: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let area = SVGBackend::new(into, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    for (chart, area) in charts.iter().zip(area.split_evenly((charts.len().div_ceil(COLUMNS), COLUMNS))) {
        let points = || chart.series.iter().flat_map(|series| &series.points);
        let (from, to) = points().fold((f64::MAX, 0.0_f64), |(from, to), (x, _)| (from.min(*x), to.max(*x)));
        let top = points().map(|(_, y)| *y).fold(0.0, f64::max) * 1.3;
        let mut drawn = ChartBuilder::on(&area)
            .caption(chart.title, ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(56)
            .build_cartesian_2d((from..to).log_scale(), 0.0..top)?;
        drawn
            .configure_mesh()
            .x_desc(chart.across)
            .y_desc(chart.up)
            .x_label_formatter(&|x| format!("{x:.0}"))
            .light_line_style(TRANSPARENT)
            .draw()?;
        for (n, Series { name, points }) in chart.series.iter().enumerate() {
            let colour = Palette99::pick(n).stroke_width(2);
            drawn
                .draw_series(LineSeries::new(points.iter().copied(), colour).point_size(3))?
                .label(*name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour));
        }
        let corner = SeriesLabelPosition::UpperLeft;
        drawn
            .configure_series_labels()
            .position(corner)
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK.mix(0.3))
            .draw()?;
    }
    area.present()?;
    Ok(())
}
