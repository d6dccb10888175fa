use actix_web::{
    App, HttpServer,
    dev::ServerHandle,
    web::{PayloadConfig, ServiceConfig},
};
use tokio::net::TcpSocket;

const LARGEST_BODY: usize = 64 << 20;

/// The port of a server that is gone. As long as this is there, connections to it are refused: no other server of a test
/// that runs at the same time is given the port and answers in its place.
#[derive(Debug)]
pub struct ClosedPort {
    _socket: TcpSocket,
}

/// Stops a server that is at this address.
pub(crate) async fn stop(handle: &ServerHandle, url: &str) -> ClosedPort {
    handle.stop(false).await;
    let host = url.split('/').nth(2).and_then(|host| host.parse().ok()).expect("an address and a port");
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_reuseaddr(true).expect("an option of sockets");
    socket.bind(host).expect("the port is free");
    ClosedPort { _socket: socket }
}

/// Serves on a free port of this machine until the handle stops it; the address.
pub(crate) fn serve<F>(name: &'static str, configure: F) -> (String, ServerHandle)
where
    F: Fn(&mut ServiceConfig) + Clone + Send + 'static,
{
    let server =
        HttpServer::new(move || App::new().app_data(PayloadConfig::new(LARGEST_BODY)).configure(configure.clone()))
            .workers(1)
            .disable_signals()
            .bind("127.0.0.1:0")
            .expect("a free port");
    let url = format!("http://{}", server.addrs()[0]);
    let server = server.run();
    let handle = server.handle();
    platform_core::spawn(name, server);
    (url, handle)
}
