//! A model server over the OpenAI wire, as fast as it can be or paced: the model `t100-d10` says
//! a hundred tokens, one every ten milliseconds; `t100-d10-w300` waits 300 ms before the first.

use std::{
    collections::HashMap,
    io,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
};

use crate::http::asked;

/// When calls began to be answered, by the text of their last message.
pub type Arrivals = Arc<Mutex<HashMap<String, Instant>>>;

/// Starts the server; its address.
pub async fn start(arrivals: Arrivals) -> io::Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?.to_string();
    platform_core::spawn("model server", async move {
        while let Ok((stream, _)) = listener.accept().await {
            let arrivals = Arc::clone(&arrivals);
            platform_core::spawn("model connection", async move {
                let _ = serve(stream, arrivals).await;
            });
        }
    });
    Ok(address)
}

async fn serve(mut stream: TcpStream, arrivals: Arrivals) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = Vec::with_capacity(4096);
    while let Some((head, body)) = asked(&mut stream, &mut buffer).await? {
        let body = String::from_utf8_lossy(&body).into_owned();
        if head.starts_with("GET") {
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\n{\"data\":[]}").await?;
            continue;
        }
        let (tokens, pause, wait) = pace(&body);
        if !wait.is_zero() {
            tokio::time::sleep(wait).await; // even no time at all would be a millisecond
        }
        if let Some(text) = last_text(&body) {
            arrivals.lock().expect("lock").insert(text, Instant::now());
        }
        answer(&mut stream, tokens, pause).await?;
    }
    Ok(())
}

/// The text of the last message, for those who measure when it arrived.
fn last_text(body: &str) -> Option<String> {
    let at = body.rfind("\"content\":\"")? + "\"content\":\"".len();
    let text = body[at..].split('"').next()?;
    text.starts_with("n-").then(|| text.to_owned())
}

fn pace(body: &str) -> (usize, Duration, Duration) {
    let name = body.split("\"model\":\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or("t1-d0");
    let mut numbers = name.split(['t', 'd', 'w', '-']).filter_map(|part| part.parse::<u64>().ok());
    let tokens = usize::try_from(numbers.next().unwrap_or(1)).unwrap_or(1);
    let mut millis = || Duration::from_millis(numbers.next().unwrap_or(0));
    (tokens, millis(), millis())
}

async fn answer(stream: &mut TcpStream, tokens: usize, pause: Duration) -> io::Result<()> {
    let mut out =
        String::from("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n");
    let chunk = |out: &mut String, data: &str| {
        let event = format!("data: {data}\n\n");
        out.extend([&format!("{:x}\r\n", event.len()), event.as_str(), "\r\n"]);
    };
    let mut next = tokio::time::Instant::now();
    for _ in 0..tokens {
        chunk(
            &mut out,
            "{\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"word \"}}]}",
        );
        if !pause.is_zero() {
            stream.write_all(out.as_bytes()).await?;
            out.clear();
            next += pause;
            tokio::time::sleep_until(next).await;
        }
    }
    chunk(&mut out, "{\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}");
    let usage = format!("{{\"choices\":[],\"usage\":{{\"prompt_tokens\":10,\"completion_tokens\":{tokens}}}}}");
    chunk(&mut out, &usage);
    chunk(&mut out, "[DONE]");
    out.push_str("0\r\n\r\n");
    stream.write_all(out.as_bytes()).await
}
