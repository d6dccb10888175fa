//! A socket, and the connections that come to it.

use std::{
    net::{SocketAddr, TcpListener},
    sync::Arc,
    time::Duration,
};

use actix_http::{HttpService, Request, error::DispatchError};
use actix_server::{GracefulShutdownSignal, ServerBuilder, ServerHandle};
use actix_service::{IntoServiceFactory, ServiceFactory, ServiceFactoryExt, fn_service, map_config};
use actix_web::{App, dev::AppConfig, rt::net::TcpStream, web::ServiceConfig};
use socket2::{Domain, Socket, Type};
use tokio::{task::JoinHandle, time::timeout};

use crate::{
    connection::{Connection, HEAD, LINGER},
    dispatch,
    http::Http,
};

/// Connections that may wait to be taken.
const BACKLOG: i32 = 2048;
/// A connection without a request ends after this.
const KEEP_ALIVE: Duration = Duration::from_secs(75);
/// Bytes of answers that wait for their reader, for each connection.
const WRITE_BUFFER: usize = 8 * 1024;

/// A server that runs.
pub struct Serving {
    handle: ServerHandle,
    server: JoinHandle<std::io::Result<()>>,
    http: Arc<Http>,
    grace: Duration,
}

impl Serving {
    /// Takes no more connections; requests under way may end within the grace, those first whose clients are gone: nothing
    /// else keeps their threads.
    pub async fn stop(self) {
        let _ = timeout(self.grace / 2, self.http.gate.attended()).await;
        self.handle.stop(true).await;
        let _ = self.server.await;
    }
}

/// A socket that takes connections from now on; they are answered when everything is built.
pub fn listen(addr: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&addr.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Answers what comes to a socket.
pub fn serve(http: &Arc<Http>, listener: TcpListener, grace: Duration) -> std::io::Result<Serving> {
    let workers = std::thread::available_parallelism().map_or(2, usize::from);
    let connections = if http.config.connections == 0 { usize::MAX } else { http.config.connections };
    let server = ServerBuilder::new()
        .workers(workers)
        .max_concurrent_connections((connections / workers).max(1))
        .shutdown_timeout(grace.as_secs())
        .disable_signals();
    let closing = server.graceful_shutdown_signal();
    let serving = Arc::clone(http);
    let server = server.listen("http", listener, move || service(&serving, closing.clone()))?.run();
    Ok(Serving { handle: server.handle(), server: platform_core::spawn("http", server), http: Arc::clone(http), grace })
}

/// Connections of clients, each in its place, and what answers on them.
fn service(
    http: &Arc<Http>,
    closing: GracefulShutdownSignal,
) -> impl ServiceFactory<TcpStream, Config = (), Response = (), Error = DispatchError, InitError = ()> + use<> {
    let (taking, answering) = (Arc::clone(http), Arc::clone(http));
    let app = App::new().configure(move |config: &mut ServiceConfig| dispatch::mount(config, &answering));
    let app = IntoServiceFactory::<_, Request>::into_factory(app).map_err(|error| error.error_response());
    let protocol = HttpService::build()
        .keep_alive(KEEP_ALIVE)
        .client_request_timeout(HEAD)
        .client_disconnect_timeout(LINGER)
        // A client that closes its end has left: its stream's place is free at once.
        .h1_allow_half_closed(false)
        .h1_write_buffer_size(WRITE_BUFFER)
        .graceful_shutdown_signal(move || {
            let closing = closing.clone();
            async move { closing.notified().await }
        })
        .on_connect_ext(|connection: &Connection, data| {
            data.insert(connection.control());
        })
        .h1(map_config(app, |()| AppConfig::default()));
    let take = move |stream: TcpStream| {
        let http = Arc::clone(&taking);
        async move {
            let peer = stream.peer_addr()?;
            let place = http.gate.connection(peer.ip()).await;
            // Without a place it is closed.
            let connection = place.map(|place| (Connection::new(stream, place), Some(peer)));
            connection.ok_or(DispatchError::DisconnectTimeout)
        }
    };
    fn_service(take).and_then(protocol)
}
