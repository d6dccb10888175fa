//! What a program of a machine serves, for whoever knows the public name of its environment (contract 13 §1).

use std::{pin::pin, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{StreamExt, stream, stream::BoxStream};
use http::{HeaderName, HeaderValue, Request, Response, header};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use platform_core::{AccountId, Code, Error, FairSemaphore, Result, spawn};
use serde::{Deserialize, Serialize};
use tokio::{sync::mpsc, time::timeout};

use super::{
    call::{Call, Piece},
    live::{Live, failed},
    repository::{self, SessionRow},
};
use crate::{code, environment::PgEnvironments};

/// Where a program of a machine listens that is reached from outside; it finds it as `PORT`.
pub(crate) const PORT: u16 = 8080;
/// A program takes a connection within this.
const CONNECTING: Duration = Duration::from_secs(10);
/// The head of an answer comes within this.
const HEAD: Duration = Duration::from_mins(1);
/// An answer is cut when nothing comes of it, or nobody takes it, for so long.
const IDLE: Duration = Duration::from_mins(5);
/// Requests at once: in all, to the machines of one account, and from one network.
const PLACES: (usize, usize, usize) = (512, 128, 32);
/// Of those, to machines of other processes, whose answers go through the database: in all, and of one account.
const PLACES_ELSEWHERE: (usize, usize) = (32, 8);
const MAX_HEADERS: usize = 100;
/// What is read of an answer at a time, and its longest head.
const BUFFER: usize = 64 << 10;
/// Pieces of an answer that nobody has taken yet.
const MAX_PIECES: usize = 4;
/// Headers that are for the next one on its way alone (RFC 9110 §7.6.1).
const HOP: [HeaderName; 8] = [
    header::CONNECTION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    HeaderName::from_static("keep-alive"),
];

/// An answer of a program, whose body comes as it is said.
pub type ProxiedAnswer = Response<BoxStream<'static, std::io::Result<Bytes>>>;

/// Room for requests that are under way.
pub(crate) struct ProxyPlaces {
    accounts: FairSemaphore<AccountId>,
    networks: FairSemaphore<String>,
    elsewhere: FairSemaphore<AccountId>,
}

impl Default for ProxyPlaces {
    fn default() -> Self {
        let (all, account, network) = PLACES;
        let elsewhere = FairSemaphore::new(PLACES_ELSEWHERE.0, PLACES_ELSEWHERE.1);
        Self { accounts: FairSemaphore::new(all, account), networks: FairSemaphore::new(0, network), elsewhere }
    }
}

/// A request on its way to the process that has the machine.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ProxiedRequest {
    method: String,
    target: String,
    headers: Vec<(String, Vec<u8>)>,
    #[serde(with = "base64_bytes")]
    body: Bytes,
}

/// What comes back.
#[derive(Serialize, Deserialize)]
pub(crate) enum ProxiedPiece {
    Head {
        status: u16,
        headers: Vec<(String, Vec<u8>)>,
    },
    #[serde(with = "base64_bytes")]
    Body(Bytes),
    #[serde(skip)]
    End(Result<()>),
}

impl Piece for ProxiedPiece {
    type End = ();

    fn told(self) -> std::result::Result<Self, Result<()>> {
        if let Self::End(end) = self { Err(end) } else { Ok(self) }
    }
}

mod base64_bytes {
    use base64::{Engine, engine::general_purpose::STANDARD};
    use bytes::Bytes;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(bytes: &Bytes, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(bytes))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
        let text = String::deserialize(deserializer)?;
        STANDARD.decode(text).map(Bytes::from).map_err(D::Error::custom)
    }
}

fn nobody_here() -> Error {
    let message = "No sandbox runs under this name now; its owner starts one.";
    Error::new(code::SANDBOX_NOT_FOUND, message)
}

fn broken(error: impl std::fmt::Display) -> Error {
    Error::new(Code::UPSTREAM_ERROR, format!("The program in the sandbox gave no good answer: {error}."))
}

fn too_late(waited: Duration) -> Error {
    let message = format!("The program in the sandbox did not answer within {} seconds.", waited.as_secs());
    Error::new(Code::UPSTREAM_TIMEOUT, message)
}

impl From<Request<Bytes>> for ProxiedRequest {
    fn from(request: Request<Bytes>) -> Self {
        let (head, body) = request.into_parts();
        let target = head.uri.path_and_query().map_or("/", |target| target.as_str()).to_owned();
        Self { method: head.method.to_string(), target, headers: passed_on(&head.headers), body }
    }
}

impl TryFrom<ProxiedRequest> for Request<Full<Bytes>> {
    type Error = http::Error;

    fn try_from(request: ProxiedRequest) -> std::result::Result<Self, http::Error> {
        let mut built = Request::builder().method(request.method.as_str()).uri(request.target);
        for (name, value) in request.headers {
            built = built.header(name, value);
        }
        built.body(Full::new(request.body))
    }
}

/// The headers that are for both ends; whom a request is for and who sent it is said by us.
fn passed_on(headers: &http::HeaderMap) -> Vec<(String, Vec<u8>)> {
    let connection = headers.get_all(header::CONNECTION).iter().filter_map(|named| named.to_str().ok());
    let named: Vec<String> =
        connection.flat_map(|names| names.split(',')).map(|name| name.trim().to_ascii_lowercase()).collect();
    let is_ours = |name: &str| name == "host" || name.starts_with("x-forwarded-");
    let is_named = |name: &str| !is_ours(name) && named.iter().any(|of_hop| of_hop == name);
    // A length beside chunks is none.
    let is_chunked = headers.contains_key(header::TRANSFER_ENCODING);
    let is_of_hop = |name: &HeaderName| {
        HOP.contains(name) || is_named(name.as_str()) || is_chunked && *name == header::CONTENT_LENGTH
    };
    let passed = headers.iter().filter(|(name, _)| !is_of_hop(name));
    passed.map(|(name, value): (_, &HeaderValue)| (name.to_string(), value.as_bytes().to_vec())).collect()
}

impl PgEnvironments {
    /// Hands a request on to the machine whose environment has this public name. `network`: whence it comes, for a share of
    /// what is under way at once.
    ///
    /// # Errors
    /// `SANDBOX_NOT_FOUND`, `UPSTREAM_ERROR`, `UPSTREAM_TIMEOUT`; `SERVICE_UNAVAILABLE` where too many are under way.
    pub async fn proxy(self: &Arc<Self>, slug: &str, network: &str, request: Request<Bytes>) -> Result<ProxiedAnswer> {
        let too_many = || Error::unavailable("too many requests to sandboxes are under way; try again shortly");
        let of_network = self.proxied.networks.try_acquire(&network.to_owned()).ok_or_else(too_many)?;
        let session = repository::published(&mut *self.db.conn().await?, slug).await?.ok_or_else(nobody_here)?;
        let of_account = self.proxied.accounts.try_acquire(&session.account()).ok_or_else(too_many)?;
        let (request, places) = (ProxiedRequest::from(request), (of_network, of_account));
        let mut said = if session.owner == self.machines.owner {
            let live = self.machines.get(&session.sandbox_id).ok_or_else(nobody_here)?;
            self.proxy_here(&live, request, places)
        } else {
            let elsewhere = self.proxied.elsewhere.try_acquire(&session.account()).ok_or_else(too_many)?;
            self.proxy_there(session, request, (places, elsewhere))
        };
        let (status, headers) = match said.recv().await {
            Some(ProxiedPiece::Head { status, headers }) => (status, headers),
            Some(ProxiedPiece::End(Err(error))) => return Err(error),
            _ => return Err(broken("it ended")),
        };
        let mut answer = Response::builder().status(status);
        for (name, value) in headers {
            answer = answer.header(name, value);
        }
        let body = stream::unfold(said, |mut said| async move {
            let piece = match said.recv().await {
                Some(ProxiedPiece::Body(bytes)) => Ok(bytes),
                Some(ProxiedPiece::End(Ok(()))) => return None,
                // It is cut off, so that nobody takes it for whole.
                _ => Err(std::io::Error::other("the sandbox ended within its answer")),
            };
            Some((piece, said))
        });
        answer.body(body.boxed()).map_err(Error::internal)
    }

    /// Asks a machine of this process; `places` are held as long as it is asked.
    pub(super) fn proxy_here(
        &self,
        live: &Arc<Live>,
        request: ProxiedRequest,
        places: impl Send + 'static,
    ) -> mpsc::Receiver<ProxiedPiece> {
        let (says, said) = mpsc::channel(MAX_PIECES);
        let using = live.using(self.clock.now());
        let machine = Arc::clone(&live.machine);
        spawn("request to a sandbox", async move {
            let _held = (using, places);
            let asking = async {
                let connecting = timeout(CONNECTING, machine.connect(PORT)).await;
                let stream = connecting.map_err(|_| too_late(CONNECTING))?.map_err(failed)?;
                exchange(TokioIo::new(stream), request, &says).await
            };
            let end = tokio::select! {
                end = asking => end,
                // Whoever asked is gone.
                () = says.closed() => return,
            };
            let _ = timeout(IDLE, says.send(ProxiedPiece::End(end))).await;
        });
        said
    }

    /// Asks one of another process.
    fn proxy_there(
        self: &Arc<Self>,
        session: SessionRow,
        request: ProxiedRequest,
        places: impl Send + 'static,
    ) -> mpsc::Receiver<ProxiedPiece> {
        let (says, said) = mpsc::channel(MAX_PIECES);
        let environments = Arc::clone(self);
        spawn("request to a sandbox elsewhere", async move {
            let _places = places;
            let asking = environments.ask_in_pieces(&session, None, Call::Proxy(request), Some(&says));
            tokio::select! {
                end = asking => {
                    let _ = says.send(ProxiedPiece::End(end.map(|_| ()))).await;
                }
                // Whoever asked is gone.
                () = says.closed() => {}
            }
        });
        said
    }
}

/// One request and its answer, piece by piece, until it is whole or nobody wants it any more.
async fn exchange(
    stream: TokioIo<tokio::net::TcpStream>,
    request: ProxiedRequest,
    says: &mpsc::Sender<ProxiedPiece>,
) -> Result<()> {
    let request: Request<Full<Bytes>> = request.try_into().map_err(broken)?;
    let mut connecting = http1::Builder::new();
    connecting.max_headers(MAX_HEADERS).max_buf_size(BUFFER);
    let (mut sender, connection) = connecting.handshake(stream).await.map_err(broken)?;
    let mut connection = pin!(connection);
    let answering = async {
        let answer = timeout(HEAD, sender.send_request(request)).await.map_err(|_| too_late(HEAD))?;
        let (head, mut body) = answer.map_err(broken)?.into_parts();
        if head.status.is_informational() {
            return Err(broken("it asks for another protocol"));
        }
        let headers = passed_on(&head.headers);
        let mut piece = Some(ProxiedPiece::Head { status: head.status.as_u16(), headers });
        loop {
            if let Some(piece) = piece.take() {
                match timeout(IDLE, says.send(piece)).await {
                    Ok(Ok(())) => {}
                    Ok(Err(_gone)) => return Ok(()),
                    Err(_slow) => return Err(broken("nobody took it for minutes")),
                }
            }
            let frame = timeout(IDLE, body.frame()).await;
            let frame = frame.map_err(|_| broken("nothing more came for minutes"))?;
            let Some(frame) = frame.transpose().map_err(broken)? else { return Ok(()) };
            // Trailers are for nobody.
            piece = frame.into_data().ok().map(ProxiedPiece::Body);
        }
    };
    let mut answering = pin!(answering);
    tokio::select! {
        answered = &mut answering => answered,
        // What has been read may not have been taken yet.
        _ = &mut connection => answering.await,
    }
}
