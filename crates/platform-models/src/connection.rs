//! Connections to providers that are called without TLS, driven by whoever waits for the answer.
//!
//! The client of `reqwest` has a task for each connection, which hands over one chunk at a time: two switches of tasks
//! for each token. Here all that one read of the socket brought is handled at once, on the thread that asked.

use std::{
    cell::RefCell,
    collections::{HashMap, VecDeque},
    future::poll_fn,
    pin::{Pin, pin},
    sync::LazyLock,
    task::{Context, Poll, Waker},
    thread::available_parallelism,
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures_util::{FutureExt, future::Fuse};
use http_body::{Body, Frame};
use http_body_util::Full;
use hyper::{
    body::Incoming,
    client::conn::{
        TrySendError,
        http1::{self, SendRequest},
    },
};
use hyper_util::rt::TokioIo;
use reqwest::{
    Request, Response, Url,
    header::{ACCEPT, HOST, HeaderValue, USER_AGENT},
};
use tokio::net::TcpStream;
use url::Position;

use crate::broken::Broken;

/// Connections to one provider that wait for their next request on all threads that serve clients; as many again may
/// on those of background work.
const MAX_IDLE_CONNECTIONS: usize = 128;
/// They wait for so long: less than what stands between keeps quiet connections.
const MAX_IDLE_TIME: Duration = Duration::from_mins(1);
/// Who asks.
pub(crate) const AGENT: &str = concat!("platform/", env!("CARGO_PKG_VERSION"));
const CONNECT: Duration = Duration::from_secs(10);

thread_local! {
    /// Idle connections, the one used last at the end; each stays where its socket is waited for.
    static IDLE: RefCell<HashMap<String, VecDeque<(Instant, Connection)>>> = RefCell::default();
}

/// Whether a request can be sent by [`send`]: it has no TLS, and no proxy stands between.
pub(crate) fn is_plain(url: &Url) -> bool {
    static HAS_PROXY: LazyLock<bool> = LazyLock::new(|| {
        ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"].iter().any(|name| std::env::var_os(name).is_some())
    });
    url.scheme() == "http" && !*HAS_PROXY
}

/// Sends a request; its body must be known.
pub(crate) async fn send(request: &Request) -> Result<Response, Broken> {
    let broke = || Broken::unreachable("the connection broke");
    let (address, mut outgoing) = outgoing(request)?;
    while let Some(connection) = take(&address) {
        match exchange(connection, &address, outgoing).await {
            Ok(response) => return Ok(response),
            // Only what never left is sent once more.
            Err(mut error) => outgoing = error.take_message().ok_or_else(broke)?,
        }
    }
    let connection = tokio::time::timeout(CONNECT, Connection::open(&address)).await;
    let connection = connection.map_err(|_| Broken::timeout("no connection"))?;
    let connection = connection.map_err(|_| Broken::unreachable("no connection"))?;
    exchange(connection, &address, outgoing).await.map_err(|_| broke())
}

/// The request as it goes over the wire, and where to.
fn outgoing(request: &Request) -> Result<(String, http::Request<Full<Bytes>>), Broken> {
    let wrong = || Broken::unreachable("its address cannot be called");
    let url = request.url();
    let host = url.host_str().ok_or_else(wrong)?;
    let address = format!("{host}:{}", url.port_or_known_default().ok_or_else(wrong)?);
    let path = &url[Position::BeforePath..Position::AfterQuery];
    let body = request.body().and_then(reqwest::Body::as_bytes).map(Bytes::copy_from_slice).unwrap_or_default();
    let mut outgoing =
        http::Request::builder().method(request.method()).uri(path).body(Full::new(body)).map_err(|_| wrong())?;
    let headers = outgoing.headers_mut();
    headers.insert(ACCEPT, HeaderValue::from_static("*/*"));
    headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
    let authority = &url[Position::BeforeHost..Position::AfterPort];
    headers.insert(HOST, authority.parse().map_err(|_| wrong())?);
    headers.extend(request.headers().clone());
    Ok((address, outgoing))
}

/// A connection with what carries it on.
struct Connection {
    sender: SendRequest<Full<Bytes>>,
    driver: Fuse<http1::Connection<TokioIo<TcpStream>, Full<Bytes>>>,
}

impl Connection {
    async fn open(address: &str) -> std::io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (sender, driver) = http1::handshake(TokioIo::new(stream)).await.map_err(std::io::Error::other)?;
        Ok(Self { sender, driver: driver.fuse() })
    }

    fn drive(&mut self, context: &mut Context<'_>) {
        let _ = self.driver.poll_unpin(context);
    }

    /// It can take another request.
    fn is_ready(&mut self) -> bool {
        self.drive(&mut Context::from_waker(Waker::noop()));
        self.sender.is_ready()
    }
}

/// An idle connection that is still open.
fn take(address: &str) -> Option<Connection> {
    IDLE.with_borrow_mut(|idle| {
        let of = idle.get_mut(address)?;
        forget_old(of);
        while let Some((_, mut connection)) = of.pop_back() {
            if connection.is_ready() {
                return Some(connection);
            }
        }
        None
    })
}

/// Keeps a connection for the next request, unless it is at its end.
fn keep(address: String, mut connection: Connection) {
    static MAX_OF_A_THREAD: LazyLock<usize> =
        LazyLock::new(|| (MAX_IDLE_CONNECTIONS / available_parallelism().map_or(1, usize::from)).max(1));
    if connection.is_ready() {
        IDLE.with_borrow_mut(|idle| {
            let of = idle.entry(address).or_default();
            forget_old(of);
            if of.len() < *MAX_OF_A_THREAD {
                of.push_back((Instant::now(), connection));
            }
        });
    }
}

fn forget_old(idle: &mut VecDeque<(Instant, Connection)>) {
    while idle.pop_front_if(|(since, _)| since.elapsed() > MAX_IDLE_TIME).is_some() {}
}

async fn exchange(
    mut connection: Connection,
    address: &str,
    request: http::Request<Full<Bytes>>,
) -> Result<Response, TrySendError<http::Request<Full<Bytes>>>> {
    let mut answer = pin!(connection.sender.try_send_request(request));
    let answer = poll_fn(|context| {
        if let Poll::Ready(answer) = answer.poll_unpin(context) {
            return Poll::Ready(answer);
        }
        connection.drive(context);
        answer.poll_unpin(context)
    });
    let response = answer.await?;
    let held = |incoming| Answer { incoming: Some(incoming), held: Some((address.to_owned(), connection)) };
    Ok(response.map(|incoming| reqwest::Body::wrap(held(incoming))).into())
}

/// The body of an answer, and the connection that it comes over.
struct Answer {
    incoming: Option<Incoming>,
    held: Option<(String, Connection)>,
}

impl Body for Answer {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Self { incoming: Some(incoming), held: Some((_, connection)) } = &mut *self else {
            return Poll::Ready(None);
        };
        if let Poll::Ready(frame) = Pin::new(&mut *incoming).poll_frame(context) {
            return Poll::Ready(frame);
        }
        connection.drive(context);
        Pin::new(incoming).poll_frame(context)
    }
}

impl Drop for Answer {
    /// What was not read is either there already, or the connection is at its end.
    fn drop(&mut self) {
        drop(self.incoming.take());
        if let Some((address, connection)) = self.held.take() {
            keep(address, connection);
        }
    }
}

#[cfg(test)]
mod tests {
    use reqwest::Method;
    use tokio::{
        io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
        net::TcpListener,
    };

    use super::*;

    /// Answers with the number of the connection, as the path says: whole, whole and for the last time, or by half.
    async fn provider(listener: TcpListener) {
        for number in 0.. {
            let Ok((stream, _)) = listener.accept().await else { return };
            platform_core::spawn("connection", async move {
                let mut stream = BufReader::new(stream);
                let mut line = String::new();
                while stream.read_line(&mut line).await.is_ok_and(|length| length > 0) {
                    let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
                    while line.trim() != "" {
                        line.clear();
                        let _ = stream.read_line(&mut line).await;
                    }
                    line.clear();
                    let close = if path == "/last" { "connection: close\r\n" } else { "" };
                    let end = if path == "/half" { "" } else { "0\r\n\r\n" };
                    let answer =
                        format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n{close}\r\n1\r\n{number}\r\n{end}");
                    let _ = stream.write_all(answer.as_bytes()).await;
                }
            });
        }
    }

    #[tokio::test]
    async fn a_connection_serves_one_request_after_the_other_until_either_side_leaves_it() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        platform_core::spawn("provider", provider(listener));
        let ask = async |path: &str| {
            let url = format!("http://{address}{path}").parse().expect("an address");
            let mut answer = send(&Request::new(Method::GET, url)).await.expect("an answer");
            if path == "/half" {
                return answer.chunk().await.expect("a piece").map(|piece| piece.to_vec());
            }
            Some(answer.bytes().await.expect("the whole").to_vec())
        };
        let mut served = Vec::new();
        for path in ["/whole", "/whole", "/last", "/whole", "/half", "/whole", "/whole"] {
            served.push(String::from_utf8(ask(path).await.expect("a number")).expect("text"));
        }
        assert_eq!(served, ["0", "0", "0", "1", "1", "2", "2"]);
    }
}
