//! Uploads and downloads, beside a handler that does nothing else.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use actix_web::{App, HttpResponse, HttpServer, Result, error::ErrorInternalServerError, web};
use futures_util::StreamExt;
use tokio::{io::AsyncWriteExt, sync::oneshot, task::JoinSet};

use crate::{
    http::{Connection, header, status},
    platform::{KEY, Platform},
    rows::{Bench, Row, count, median},
};

const BYTES: usize = 25_000_000;
const AT_ONCE: usize = 16;
/// Downloads leave out so much of the beginning.
const LEFT_OUT: usize = 1_000_000;
const MB: f64 = 1_000_000.0;

impl Bench {
    /// Sixteen files of 25 MB at once.
    pub async fn files(&self) -> Vec<Row> {
        let dir = std::path::absolute("target/bench-files").expect("a path");
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).expect("a directory");
        let data = dir.join("data").display().to_string();
        let platform = Platform::start(&self.database, &self.providers, &[("PLATFORM_DATA_DIR", &data)]);
        let bare = bare(dir.clone()).await;
        let (mut up, mut down, mut memory) = ([vec![], vec![]], [vec![], vec![]], vec![]);
        for _ in 0..self.rounds {
            let before = platform.memory_kib();
            let mut highest = before;
            let mut uploading = std::pin::pin!(upload(&platform.address, "/v1/files/upload"));
            let (rate, answers) = loop {
                tokio::select! {
                    uploaded = &mut uploading => break uploaded,
                    () = tokio::time::sleep(Duration::from_millis(20)) => highest = highest.max(platform.memory_kib()),
                }
            };
            memory.push(count(highest - before) / 1024.0 / count(AT_ONCE as u64));
            up[0].push(rate);
            up[1].push(upload(&bare, "/").await.0);
            let url = |answer: &String| {
                let url = &answer[answer.find("/f/").expect("an address")..];
                url.split('"').next().unwrap_or_default().to_owned()
            };
            down[0].push(download(&platform.address, answers.iter().map(url).collect()).await);
            down[1].push(download(&bare, answers.iter().map(|_| "/".to_owned()).collect()).await);
        }
        drop(platform);
        let _ = std::fs::remove_dir_all(&dir);
        let mut rows = compared("16 uploads of 25 MB at once", up);
        let each = format!("{:.2} MiB", median(memory));
        rows.extend(Row::new("  memory of each", each, String::new(), "<= 1 MiB"));
        rows.extend(compared("16 downloads of 24 MB of them at once", down));
        rows
    }
}

fn compared(what: &str, [ours, bare]: [Vec<f64>; 2]) -> Vec<Row> {
    let ratio = median(ours.iter().zip(&bare).map(|(ours, bare)| ours / bare).collect());
    let what = format!("{what} ({:.0} MB/s)", median(ours));
    Row::new(&what, format!("{ratio:.2} x"), format!("bare handler {:.0} MB/s", median(bare)), ">= 0.5 x")
}

/// Sends the file sixteen times at once: MB a second, and what was answered.
async fn upload(address: &str, path: &str) -> (f64, Vec<String>) {
    let head = "--b\r\ncontent-disposition: form-data; name=\"file\"; filename=\"f.bin\"\r\n\
        content-type: application/octet-stream\r\n\r\n";
    let mut request = format!(
        "POST {path} HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {KEY}\r\n\
         content-type: multipart/form-data; boundary=b\r\ncontent-length: {}\r\n\r\n{head}",
        head.len() + BYTES + "\r\n--b--\r\n".len()
    )
    .into_bytes();
    request.extend((0..BYTES).map(|at| at.wrapping_mul(2_654_435_761).to_le_bytes()[2]));
    request.extend(b"\r\n--b--\r\n");
    let request = std::sync::Arc::new(request);
    let (mut tasks, began) = (JoinSet::new(), Instant::now());
    for _ in 0..AT_ONCE {
        let (request, address) = (std::sync::Arc::clone(&request), address.to_owned());
        tasks.spawn(async move {
            let mut connection = Connection::open(&address).await.expect("connected");
            let (status, body) = connection.exchange(&request).await.expect("an answer");
            assert_eq!(status, 200, "{body}");
            body
        });
    }
    let answers = tasks.join_all().await;
    (count((AT_ONCE * BYTES) as u64) / MB / began.elapsed().as_secs_f64(), answers)
}

/// Reads all of these at once but for their beginnings: MB a second.
async fn download(address: &str, paths: Vec<String>) -> f64 {
    let (mut tasks, began) = (JoinSet::new(), Instant::now());
    for path in paths {
        let address = address.to_owned();
        tasks.spawn(async move {
            let mut connection = Connection::open(&address).await.expect("connected");
            let request = format!("GET {path} HTTP/1.1\r\nhost: bench\r\nrange: bytes={LEFT_OUT}-\r\n\r\n");
            let head = connection.begin(request.as_bytes()).await.expect("an answer");
            let length = header(&head, "content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
            assert_eq!((status(&head), length), (206, BYTES - LEFT_OUT), "{head}");
            connection.skip(length).await.expect("its bytes");
        });
    }
    tasks.join_all().await;
    count((AT_ONCE * (BYTES - LEFT_OUT)) as u64) / MB / began.elapsed().as_secs_f64()
}

/// A server that writes what it gets into files and, like the platform, answers when that is on the disk; and sends one.
async fn bare(dir: PathBuf) -> String {
    let file = dir.join("bare");
    std::fs::write(&file, vec![7; BYTES]).expect("written");
    let (tells, told) = oneshot::channel();
    std::thread::spawn(move || {
        let serve = async move {
            let paths = web::Data::new((dir, file));
            let app = move || {
                let routes = web::resource("/").route(web::post().to(take)).route(web::get().to(give));
                App::new().app_data(paths.clone()).service(routes)
            };
            let server = HttpServer::new(app).tcp_nodelay(true).workers(2).bind(("127.0.0.1", 0)).expect("a port");
            tells.send(server.addrs()[0].to_string()).expect("somebody listens");
            server.run().await.expect("it serves");
        };
        actix_web::rt::System::new().block_on(serve);
    });
    told.await.expect("an address")
}

type Paths = web::Data<(PathBuf, PathBuf)>;

async fn take(mut body: web::Payload, paths: Paths) -> Result<HttpResponse> {
    let path = paths.0.join(String::from(platform_core::Id::<Row>::generate()));
    let mut file = tokio::fs::File::create(&path).await?;
    while let Some(piece) = body.next().await {
        file.write_all(&piece?).await?;
    }
    file.sync_all().await?;
    tokio::fs::remove_file(&path).await?;
    Ok(HttpResponse::Ok().body("{}"))
}

async fn give(paths: Paths) -> Result<HttpResponse> {
    use tokio::io::{AsyncReadExt, AsyncSeekExt};
    let mut file = tokio::fs::File::open(&paths.1).await?;
    file.seek(std::io::SeekFrom::Start(LEFT_OUT as u64)).await?;
    let pieces = futures_util::stream::unfold(file, |mut file| async {
        let mut piece = vec![0; 65_536];
        let read = file.read(&mut piece).await;
        match read {
            Ok(0) => None,
            Ok(length) => {
                piece.truncate(length);
                Some((Ok(web::Bytes::from(piece)), file))
            }
            Err(error) => Some((Err(ErrorInternalServerError(error)), file)),
        }
    });
    let length = (BYTES - LEFT_OUT) as u64;
    Ok(HttpResponse::PartialContent().no_chunking(length).streaming(pieces))
}
