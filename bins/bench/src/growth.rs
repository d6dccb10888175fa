//! How costs grow with what is there, drawn into docs/growth.svg: `just growth`.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use diesel_async::SimpleAsyncConnection;
use plotters::prelude::*;

use crate::{
    http::{Connection, request},
    platform::KEY,
    rows::{Bench, MESSAGES, count, message, millis, percentile},
};

const CHATS: [usize; 4] = [1_000, 10_000, 100_000, 1_000_000];
const MESSAGE_COUNTS: [usize; 4] = [10, 100, 1_000, 10_000];
const STREAMS: [usize; 6] = [1, 10, 100, 1_000, 5_000, 18_000];
/// Requests of one kind whose median is a point.
const SAMPLES: usize = 200;
const SIZE: (u32, u32) = (1260, 380);

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

/// Measures all curves and draws them beside each other. Each uses a database of its own.
pub async fn draw(chats: Bench, messages: Bench, streams: Bench, into: &Path) {
    let charts = [by_chats(&chats).await, by_messages(&messages).await, by_streams(&streams).await];
    for chart in &charts {
        for Series { name, points } in &chart.series {
            let points: Vec<String> = points.iter().map(|(x, y)| format!("{x}: {y:.2}")).collect();
            println!("{:<34} {name:<24} {} [{}]", chart.title, points.join(", "), chart.up);
        }
    }
    picture(&charts, into).expect("a picture");
    println!("Drawn into {}.", into.display());
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
    let mut series: Vec<Series> = kinds.iter().map(|(name, _)| Series { name, points: vec![] }).collect();
    for chats in CHATS {
        bench.fill(chats).await;
        let mut connection = Connection::open(&platform.address).await.expect("connected");
        for ((_, bytes), series) in kinds.iter().zip(&mut series) {
            series.points.push((as_point(chats), median_of(&mut connection, bytes, SAMPLES).await));
        }
    }
    Chart { title: "Chats of an account", across: "chats", up: "ms at the median", series }
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
        bench.db.conn().await.expect("a connection").batch_execute(&fill).await.expect("filled");
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
    for (chart, area) in charts.iter().zip(area.split_evenly((1, charts.len()))) {
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
