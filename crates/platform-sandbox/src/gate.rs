//! The way out of a machine. Every address is the machine's own; what it connects to is accepted here, judged, and
//! dialled for it. Its questions for names are answered here, too, with addresses that stand for those names.
//!
//! Streams to well-known ports are taken as they come; for other ports programs find a proxy in their variables.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, Ipv4Addr, SocketAddrV4},
    os::fd::OwnedFd,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use platform_core::spawn;
use platform_egress::{Egress, EgressError};
use rustls::server::Acceptor;
use simple_dns::{
    CLASS, Packet, PacketFlag, QCLASS, QTYPE, RCODE, ResourceRecord, TYPE,
    rdata::{A, RData},
};
use tokio::{
    io::{
        AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, copy, copy_bidirectional,
        sink,
    },
    net::{TcpListener, TcpStream, UdpSocket},
    sync::{Semaphore, oneshot},
    task::AbortHandle,
    time::timeout,
};
use tracing::debug;

use crate::backend::Network;

/// Answers questions for names, and is the proxy.
const OWN: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
/// Port of the proxy.
const PROXY: u16 = 3128;
/// Ports whose streams are taken as they come; no program of the machine may listen on them.
const PORTS: [u16; 8] = [22, 80, 443, 465, 587, 636, 989, 993];
/// On these the server speaks first.
const SERVER_FIRST: [u16; 2] = [22, 587];
/// Mail between servers.
const REFUSED: u16 = 25;
/// Streams of a machine at once.
const MAX_STREAMS: usize = 128;
/// Of those, such as are not connected yet, and names that are looked up.
const MAX_DIALLING: usize = 16;
/// Here a stream that does not say whom it is for is no stream of the protocol.
const NAMED: [u16; 2] = [80, 443];
/// Names that a machine has asked for.
const MAX_NAMES: u32 = 60_000;
/// What is read to see whom a stream is for.
const MAX_HEAD: usize = 16_384;
const MAX_HEADERS: usize = 100;
const HEAD: Duration = Duration::from_secs(10);
/// Longest line between chunks.
const MAX_LINE: u64 = 4096;
/// So long a client may go on to send after its answer.
const LINGER: Duration = Duration::from_secs(2);
/// How a server answers that speaks another protocol from then on (RFC 9110 §15.2.2).
const SWITCHED: &[u8] = b"HTTP/1.1 101";
/// Headers of a request that are for the next one on its way alone; the first two are for no server.
const HOP: [&str; 4] = ["proxy-connection", "proxy-authorization", "connection", "keep-alive"];
/// A stream on which nothing comes for so long is cut.
const LONGEST: Duration = Duration::from_hours(2);

/// Whom a machine reaches, and through what.
pub(crate) struct Rules {
    network: Network,
    egress: Egress,
    names: Mutex<Names>,
    /// Names that are looked up, and servers that are dialled: each may hold a thread for a while.
    dialling: Semaphore,
}

/// Which address stands for which name.
#[derive(Default)]
struct Names {
    of: HashMap<Ipv4Addr, String>,
    by: HashMap<String, Ipv4Addr>,
}

/// The open way out; closed when it is dropped.
pub(crate) struct Gate(Vec<AbortHandle>);

impl Drop for Gate {
    fn drop(&mut self) {
        self.0.iter().for_each(AbortHandle::abort);
    }
}

impl Gate {
    /// Where the machine asks for names.
    pub const NAMES: SocketAddrV4 = SocketAddrV4::new(OWN, 53);
    /// What tells programs of the proxy.
    pub const VARIABLES: [(&str, &str); 6] = [
        ("http_proxy", "http://198.18.0.1:3128"),
        ("https_proxy", "http://198.18.0.1:3128"),
        ("HTTP_PROXY", "http://198.18.0.1:3128"),
        ("HTTPS_PROXY", "http://198.18.0.1:3128"),
        ("no_proxy", "localhost,127.0.0.1,::1"),
        ("NO_PROXY", "localhost,127.0.0.1,::1"),
    ];

    /// The rules, and where to listen on the machine; `None` = it reaches nobody.
    pub fn plan(network: &Network, egress: &Egress) -> (Option<Rules>, Vec<SocketAddrV4>) {
        let hosts = match network {
            Network::Nobody => return (None, Vec::new()),
            Network::Public => &[][..],
            Network::Only(hosts) => hosts,
        };
        let egress = egress.for_machines(matches!(network, Network::Only(_)));
        let (network, names) = (network.clone(), Mutex::default());
        let rules = Rules { network, egress, names, dialling: Semaphore::new(MAX_DIALLING) };
        let mut listen = vec![SocketAddrV4::new(OWN, PROXY)];
        listen.extend(PORTS.map(|port| SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port)));
        for (host, port) in hosts.iter().filter_map(|host| with_port(host)) {
            let address = host.parse().ok().or_else(|| rules.address_of(host));
            let address = address.map(|address| SocketAddrV4::new(address, port));
            listen.extend(address.filter(|address| !PORTS.contains(&port) && !listen.contains(address)));
        }
        listen.truncate(48);
        (Some(rules), listen)
    }
}

/// `host:port` in its parts; `None` when it names no port.
fn with_port(host: &str) -> Option<(&str, u16)> {
    let (host, port) = host.rsplit_once(':')?;
    Some((host, port.parse().ok()?))
}

impl Rules {
    /// Lets through whatever comes in at the doors: the streams in their order, then the socket for names.
    pub fn open(self, mut doors: Vec<OwnedFd>) -> io::Result<Gate> {
        let rules = Arc::new(self);
        let mut gate = Gate(Vec::new());
        let names =
            std::net::UdpSocket::from(doors.pop().ok_or_else(|| io::Error::other("the machine does not listen"))?);
        names.set_nonblocking(true)?;
        gate.0.push(spawn("sandbox names", Arc::clone(&rules).answer(UdpSocket::from_std(names)?)).abort_handle());
        let places = Arc::new(Semaphore::new(MAX_STREAMS));
        for (index, door) in doors.into_iter().enumerate() {
            let door = std::net::TcpListener::from(door);
            door.set_nonblocking(true)?;
            let taking = Arc::clone(&rules).take(TcpListener::from_std(door)?, index == 0, Arc::clone(&places));
            gate.0.push(spawn("sandbox streams", taking).abort_handle());
        }
        Ok(gate)
    }

    async fn take(self: Arc<Self>, door: TcpListener, is_proxy: bool, places: Arc<Semaphore>) {
        // Streams go with the door.
        let mut streams = tokio::task::JoinSet::new();
        loop {
            let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
            while streams.try_join_next().is_some() {}
            let Ok((stream, _)) = door.accept().await else {
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            let rules = Arc::clone(&self);
            streams.spawn(async move {
                let carried = async { if is_proxy { rules.proxy(stream).await } else { rules.carry(stream).await } };
                if let Ok(Err(error)) = timeout(LONGEST, carried).await {
                    debug!(%error, "A stream of a sandbox was not carried.");
                }
                drop(place);
            });
        }
    }

    /// Whether the machine may reach a host.
    fn admits(&self, host: &str, port: u16) -> bool {
        let hosts = match &self.network {
            Network::Nobody => return false,
            Network::Public => return port != REFUSED,
            Network::Only(hosts) => hosts,
        };
        let host = host.trim_end_matches('.');
        hosts.iter().any(|listed| {
            let (name, its_port) = with_port(listed).map_or((listed.as_str(), None), |(name, port)| (name, Some(port)));
            its_port.map_or(port != REFUSED, |its_port| its_port == port) && is_named(name, host)
        })
    }

    /// Whether it may reach a host at some port.
    fn knows(&self, host: &str) -> bool {
        match &self.network {
            Network::Nobody => false,
            Network::Public => true,
            Network::Only(hosts) => {
                hosts.iter().any(|listed| is_named(with_port(listed).map_or(listed.as_str(), |(name, _)| name), host))
            }
        }
    }

    /// Whether what a stream says of its server may be: it must be for one that is listed, whatever address it has.
    fn admits_inside(&self, name: Option<&str>, port: u16) -> bool {
        matches!(self.network, Network::Public) || name.is_none_or(|name| self.admits(name, port))
    }

    /// The address that stands for a name; `None` when there are too many.
    fn address_of(&self, name: &str) -> Option<Ipv4Addr> {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        if let Some(known) = names.by.get(&name) {
            return Some(*known);
        }
        let next = u32::try_from(names.of.len()).ok().filter(|count| *count < MAX_NAMES)?;
        let address = Ipv4Addr::from(u32::from(OWN) + 1 + next);
        names.of.insert(address, name.clone());
        names.by.insert(name, address);
        Some(address)
    }

    async fn connect(&self, host: &str, port: u16) -> Result<TcpStream, EgressError> {
        let _place = self.dialling.acquire().await;
        self.egress.connect(host, port).await
    }

    async fn is_known(&self, name: &str) -> bool {
        let _place = self.dialling.acquire().await;
        self.egress.resolve(name, 0).await.is_ok()
    }

    fn name_of(&self, address: IpAddr) -> String {
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let name = match address {
            IpAddr::V4(address) => names.of.get(&address).cloned(),
            IpAddr::V6(_) => None,
        };
        name.unwrap_or_else(|| address.to_string())
    }

    /// Carries a stream to whom it is for.
    async fn carry(&self, mut stream: TcpStream) -> io::Result<()> {
        let local = stream.local_addr()?;
        let (host, port) = (self.name_of(local.ip()), local.port());
        if !self.admits(&host, port) {
            return Err(io::Error::other(format!("{host}:{port} is not allowed")));
        }
        let server = self.connect(&host, port).await.map_err(io::Error::other)?;
        let begins = self.begins(&mut stream, &server, Vec::new(), port).await?;
        join(stream, server, begins).await
    }

    /// What a stream begins with, as far as it must be known to judge it; `head`: what was read of it.
    async fn begins(
        &self,
        stream: &mut TcpStream,
        server: &TcpStream,
        mut head: Vec<u8>,
        port: u16,
    ) -> io::Result<Beginning> {
        if matches!(self.network, Network::Public) || SERVER_FIRST.contains(&port) {
            return Ok(Beginning::of(head));
        }
        if head.is_empty() && !NAMED.contains(&port) {
            // Whom a client means that waits for its server to speak, it does not say; any other does, however late.
            let (mut first, mut its_first) = ([0], [0]);
            tokio::select! {
                biased;
                said = stream.peek(&mut first) => drop(said?),
                said = server.peek(&mut its_first) => return said.map(|_| Beginning::of(Vec::new())),
            }
        }
        let reading = async {
            loop {
                match server_of(&head)? {
                    Head::Partial if head.len() < MAX_HEAD && stream.read_buf(&mut head).await? > 0 => {}
                    known => return Ok::<_, io::Error>(known),
                }
            }
        };
        let said = timeout(HEAD, reading).await.unwrap_or(Ok(Head::Partial))?;
        let refused = |what: String| Err(io::Error::other(format!("a stream for {what} is not allowed")));
        match said {
            Head::Names(name) if self.admits_inside(name.as_deref(), port) => Ok(Beginning::of(head)),
            Head::Asks(host, request) if self.admits_inside(host.as_deref(), port) => Ok(request),
            Head::Names(name) | Head::Asks(name, _) => refused(name.unwrap_or_default()),
            Head::Partial | Head::Other if NAMED.contains(&port) => refused("nobody in particular".to_owned()),
            // What does not come to an end may name anybody.
            Head::Partial if !head.is_empty() => refused("nobody yet".to_owned()),
            Head::Partial | Head::Other => Ok(Beginning::of(head)),
        }
    }

    /// Speaks HTTP with a program that knows of the proxy.
    async fn proxy(&self, mut stream: TcpStream) -> io::Result<()> {
        let mut head = Vec::with_capacity(2048);
        let reading = async {
            while head.len() < MAX_HEAD && stream.read_buf(&mut head).await? > 0 {
                if let Some(request) = ProxyRequest::read(&head)? {
                    return Ok(request);
                }
            }
            Err(io::Error::other("this is no request"))
        };
        let request = timeout(HEAD, reading).await.map_err(io::Error::other)??;
        let ProxyRequest { host, port, inside, forward, rest } = request;
        if !self.admits(&host, port) || !self.admits_inside(inside.as_deref(), port) {
            let text = format!("The environment's networkPolicy does not let this sandbox reach {host}:{port}.\n");
            return refuse(stream, "403 Forbidden", &text).await;
        }
        let server = match self.connect(&host, port).await {
            Ok(server) => server,
            Err(EgressError::NotAllowed(reason)) => return refuse(stream, "403 Forbidden", &reason).await,
            Err(error) => return refuse(stream, "502 Bad Gateway", &error.to_string()).await,
        };
        let Some(forward) = forward else {
            stream.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await?;
            let begins = self.begins(&mut stream, &server, rest, port).await?;
            return join(stream, server, begins).await;
        };
        join(stream, server, forward).await
    }

    /// Answers questions for names.
    async fn answer(self: Arc<Self>, socket: UdpSocket) {
        let socket = Arc::new(socket);
        let places = Arc::new(Semaphore::new(MAX_STREAMS));
        let mut questions = tokio::task::JoinSet::new();
        let mut question = [0; 1500];
        loop {
            let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
            while questions.try_join_next().is_some() {}
            let Ok((length, from)) = socket.recv_from(&mut question).await else { continue };
            let (rules, socket, question) = (Arc::clone(&self), Arc::clone(&socket), question[..length].to_vec());
            questions.spawn(async move {
                if let Some(answer) = rules.resolve(&question).await {
                    let _ = socket.send_to(&answer, from).await;
                }
                drop(place);
            });
        }
    }

    async fn resolve(&self, question: &[u8]) -> Option<Vec<u8>> {
        let packet = Packet::parse(question).ok()?;
        let asked = packet.questions.first()?;
        let mut answer = Packet::new_reply(packet.id());
        answer.set_flags(PacketFlag::RECURSION_AVAILABLE | PacketFlag::RECURSION_DESIRED);
        answer.questions.push(asked.clone());
        let name = asked.qname.to_string();
        let is_address =
            matches!(asked.qtype, QTYPE::TYPE(TYPE::A)) && matches!(asked.qclass, QCLASS::CLASS(CLASS::IN));
        if !self.knows(&name) || !self.is_known(&name).await {
            *answer.rcode_mut() = RCODE::NameError;
        } else if is_address && let Some(address) = self.address_of(&name) {
            let data = RData::A(A::from(address));
            answer.answers.push(ResourceRecord::new(asked.qname.clone(), CLASS::IN, 60, data));
        }
        answer.build_bytes_vec().ok()
    }
}

/// Whether a host is the one that is listed, or below it: `*.example.com`.
fn is_named(listed: &str, host: &str) -> bool {
    let host = host.trim_end_matches('.');
    match listed.strip_prefix("*.") {
        Some(above) => host.len().checked_sub(above.len() + 1).is_some_and(|at| {
            host.is_char_boundary(at + 1) && host[at..].starts_with('.') && host[at + 1..].eq_ignore_ascii_case(above)
        }),
        None => listed.eq_ignore_ascii_case(host),
    }
}

/// What a stream says at its beginning of the server that it is for.
enum Head {
    /// Nothing yet.
    Partial,
    /// This, if anything.
    Names(Option<String>),
    /// This, if anything, in the head of a request.
    Asks(Option<String>, Beginning),
    /// It is of some other protocol.
    Other,
}

/// How a stream to a server begins.
struct Beginning {
    bytes: Vec<u8>,
    /// What was read beyond that.
    rest: Vec<u8>,
    body: Body,
    /// It asks for another protocol: when the server speaks that, all else the client sends is of it.
    upgrades: bool,
}

/// What of a stream goes on to the server.
enum Body {
    /// All.
    Open,
    /// So many bytes.
    Length(u64),
    /// Chunks, up to the last of them (RFC 9112 §7.1).
    Chunks,
}

impl Beginning {
    fn of(bytes: Vec<u8>) -> Self {
        Self { bytes, rest: Vec::new(), body: Body::Open, upgrades: false }
    }
}

/// The server that a stream names: in the hello of TLS, or in the head of a request.
fn server_of(head: &[u8]) -> io::Result<Head> {
    // A record of a TLS handshake.
    if head.first() == Some(&22) {
        let mut acceptor = Acceptor::default();
        let mut rest = head;
        while !rest.is_empty() {
            acceptor.read_tls(&mut rest)?;
        }
        return match acceptor.accept() {
            Ok(None) => Ok(Head::Partial),
            Ok(Some(hello)) => Ok(Head::Names(hello.client_hello().server_name().map(str::to_owned))),
            Err((error, _)) => Err(io::Error::other(error)),
        };
    }
    let text = head.trim_ascii_start();
    if !text.first().is_some_and(u8::is_ascii_alphabetic) {
        return Ok(if text.is_empty() { Head::Partial } else { Head::Other });
    }
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(text) {
        Ok(httparse::Status::Partial) => Ok(Head::Partial),
        Ok(httparse::Status::Complete(length)) => {
            let path = request.path.unwrap_or_default().to_owned();
            let by_header = host_header(&request)?;
            // What the target says counts, and is the same (RFC 9112 §3.2.2).
            let target = path.split_once("://").filter(|_| !path.starts_with('/'));
            let by_target = target.map(|(_, rest)| host_of(rest.split(['/', '?']).next().unwrap_or_default()).0);
            let is_same = |target: &String| by_header.as_ref().is_some_and(|host| host.eq_ignore_ascii_case(target));
            if by_target.as_ref().is_some_and(|target| !is_same(target)) {
                return Err(io::Error::other("the request is for two hosts"));
            }
            Ok(Head::Asks(by_header, forwarded(&request, &path, &text[length..])?))
        }
        // What looks like a request and is none may be one to its server.
        Err(error) if is_like_request(text) => Err(io::Error::other(error)),
        // Some other protocol.
        Err(_) => Ok(Head::Other),
    }
}

/// Whether the first line is that of a request of HTTP, or of its second version's beginning (RFC 9113 §3.4).
fn is_like_request(text: &[u8]) -> bool {
    let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
    line.windows(7).any(|at| at[0].is_ascii_whitespace() && &at[1..6] == b"HTTP/" && at[6].is_ascii_digit())
}

/// The host that a request names; an error when it names several, or none where it must.
fn host_header(request: &httparse::Request<'_, '_>) -> io::Result<Option<String>> {
    let mut hosts = request.headers.iter().filter(|header| header.name.eq_ignore_ascii_case("host"));
    let host = hosts.next().map(|host| host_of(String::from_utf8_lossy(host.value).trim()).0);
    let is_missing = host.is_none() && request.version != Some(0);
    if is_missing || hosts.next().is_some() {
        return Err(io::Error::other("a request names one host"));
    }
    Ok(host)
}

/// A request as it is sent on: one a stream, for the next one may be for somebody else.
fn forwarded(request: &httparse::Request<'_, '_>, path: &str, rest: &[u8]) -> io::Result<Beginning> {
    let is_of = |name: &str, header: &httparse::Header<'_>| header.name.eq_ignore_ascii_case(name);
    let upgrades = request.headers.iter().any(|header| is_of("upgrade", header));
    let left_out: &[&str] = if upgrades { &HOP[..2] } else { &HOP };
    let version = request.version.unwrap_or(1);
    let mut bytes = format!("{} {path} HTTP/1.{version}\r\n", request.method.unwrap_or_default()).into_bytes();
    for header in request.headers.iter().filter(|header| !left_out.iter().any(|name| is_of(name, header))) {
        bytes.extend_from_slice(header.name.as_bytes());
        bytes.extend_from_slice(b": ");
        bytes.extend_from_slice(header.value);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(if upgrades { b"\r\n" } else { b"Connection: close\r\n\r\n" });
    let framed = request.headers.iter().filter(|of| is_of("content-length", of) || is_of("transfer-encoding", of));
    let framed: Vec<_> = framed.map(|header| (is_of("content-length", header), header.value.trim_ascii())).collect();
    let body = match framed[..] {
        [] => Body::Length(0),
        [(true, length)] => {
            Body::Length(std::str::from_utf8(length).map_err(io::Error::other)?.parse().map_err(io::Error::other)?)
        }
        [(false, coding)] if coding.eq_ignore_ascii_case(b"chunked") && version == 1 => Body::Chunks,
        _ => return Err(io::Error::other("a request says in one way how long it is")),
    };
    Ok(Beginning { bytes, rest: rest.to_vec(), body, upgrades })
}

/// Host and port of an authority.
fn host_of(authority: &str) -> (String, Option<u16>) {
    let (host, port) = match authority.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?))) {
        Some((host, port)) => (host, Some(port)),
        None => (authority, None),
    };
    // An address of IPv6 stands in brackets (RFC 3986 §3.2.2).
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    (address.unwrap_or(host).to_owned(), port)
}

/// What a program asks the proxy.
struct ProxyRequest {
    host: String,
    port: u16,
    /// The host that the request itself names.
    inside: Option<String>,
    /// What is sent on; `None` = a tunnel is asked for.
    forward: Option<Beginning>,
    /// What a tunnel begins with, as far as it came with the request.
    rest: Vec<u8>,
}

impl ProxyRequest {
    /// `None` = it is not all there yet.
    fn read(head: &[u8]) -> io::Result<Option<Self>> {
        let wrong = || io::Error::other("this is no request to a proxy");
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut request = httparse::Request::new(&mut headers);
        let httparse::Status::Complete(length) = request.parse(head).map_err(io::Error::other)? else {
            return Ok(None);
        };
        let (method, path) = request.method.zip(request.path).ok_or_else(wrong)?;
        if method == "CONNECT" {
            let (host, port) = host_of(path);
            let (port, rest) = (port.ok_or_else(wrong)?, head[length..].to_vec());
            return Ok(Some(Self { host, port, inside: None, forward: None, rest }));
        }
        let rest = path.strip_prefix("http://").ok_or_else(wrong)?;
        let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let (host, port) = host_of(authority);
        let slash = if path.starts_with('/') { "" } else { "/" };
        let forward = Some(forwarded(&request, &format!("{slash}{path}"), &head[length..])?);
        let inside = host_header(&request)?;
        Ok(Some(Self { host, port: port.unwrap_or(80), inside, forward, rest: Vec::new() }))
    }
}

async fn refuse(mut stream: TcpStream, status: &str, text: &str) -> io::Result<()> {
    let length = text.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(format!("{head}{text}").as_bytes()).await?;
    stream.shutdown().await
}

/// Copies the chunks of a body, and nothing that comes after the last.
async fn copy_chunks(from: &mut (impl AsyncBufRead + Unpin), to: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
    loop {
        let line = line(from).await?;
        let digits = line.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
        let digits = std::str::from_utf8(digits).ok().filter(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()));
        let size = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
        let size = size.ok_or_else(|| io::Error::other("this is no chunk"))?;
        // What else is said of a chunk may be read in more than one way.
        to.write_all(format!("{size:x}\r\n").as_bytes()).await?;
        if size == 0 {
            while !line_is_empty(from).await? {}
            return to.write_all(b"\r\n").await;
        }
        copy(&mut (&mut *from).take(size), to).await?;
        if !line_is_empty(from).await? {
            return Err(io::Error::other("a chunk is longer than it says"));
        }
        to.write_all(b"\r\n").await?;
    }
}

async fn line_is_empty(from: &mut (impl AsyncBufRead + Unpin)) -> io::Result<bool> {
    Ok(line(from).await?.is_empty())
}

/// A line without its end; an error where it ends otherwise.
async fn line(from: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    from.take(MAX_LINE).read_until(b'\n', &mut line).await?;
    match line.strip_suffix(b"\r\n") {
        Some(line) => Ok(line.to_vec()),
        None => Err(io::Error::other("a line does not end as it must")),
    }
}

async fn join(mut stream: TcpStream, mut server: TcpStream, begins: Beginning) -> io::Result<()> {
    server.write_all(&begins.bytes).await?;
    if let Body::Open = begins.body {
        return copy_bidirectional(&mut stream, &mut server).await.map(drop);
    }
    let ((from, mut to), (mut answers, mut asks)) = (stream.split(), server.split());
    let mut from = BufReader::new(begins.rest.as_slice().chain(from));
    let (tell, told) = oneshot::channel();
    let asking = async {
        match begins.body {
            Body::Length(length) => copy(&mut (&mut from).take(length), &mut asks).await.map(drop)?,
            Body::Chunks => copy_chunks(&mut from, &mut asks).await?,
            Body::Open => {}
        }
        if begins.upgrades && told.await == Ok(true) {
            copy(&mut from, &mut asks).await?;
        } else {
            // What else comes is for nobody.
            copy(&mut from, &mut sink()).await?;
        }
        asks.shutdown().await
    };
    let answering = async {
        let mut first = Vec::new();
        while begins.upgrades && first.len() < SWITCHED.len() && answers.read_buf(&mut first).await? > 0 {}
        let _ = tell.send(first.starts_with(SWITCHED));
        to.write_all(&first).await?;
        copy(&mut answers, &mut to).await?;
        to.shutdown().await
    };
    tokio::select! {
        done = answering => done?,
        Err(error) = asking => return Err(error),
    }
    // Who is closed upon while it still sends may never see its answer.
    let _ = timeout(LINGER, copy(&mut from, &mut sink())).await;
    Ok(())
}
