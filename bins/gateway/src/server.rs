//! Serves the route table until it is told to stop.

use std::{
    net::{SocketAddr, TcpListener},
    path::Path,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use actix_web::{App as HttpApp, HttpServer, web};
use socket2::{Domain, Socket, Type};
use tokio::signal::unix::{SignalKind, signal};
use tracing::info;

use crate::{
    app::{App, StartError},
    commands::bootstrap,
    config::{Config, Role},
    dispatch, metrics, routes,
};

/// Connections that may wait to be taken.
const BACKLOG: i32 = 2048;
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of answers that wait for their reader, for each connection.
const WRITE_BUFFER: usize = 8 * 1024;
/// A write that nobody reads ends its connection after this (contract 00 §1.8).
const STALLED_WRITE: Duration = Duration::from_secs(30);

pub(crate) async fn run(config: Config) -> Result<(), StartError> {
    let started = std::time::Instant::now();
    let listener = listen(config.addr)
        .map_err(|e| StartError::Message(format!("PLATFORM_ADDR: cannot listen on {}: {e}.", config.addr)))?;
    let addr = listener.local_addr()?;
    let metrics_at = config.metrics_addr.map(|addr| {
        let refused = |e| StartError::Message(format!("PLATFORM_METRICS_ADDR: cannot listen on {addr}: {e}."));
        listen(addr).map_err(refused)
    });
    let metrics_at = metrics_at.transpose()?;
    let app = App::build(&config, addr).await?;
    let key_file = bootstrap(&*app.services.auth, &*app.services.keys, &config).await?;
    let mut table = routes::table();
    if config.role == Role::Worker {
        table.retain(|route| matches!(route.path, "/livez" | "/readyz"));
    }
    let services = Arc::clone(&app.services);
    let table = Arc::new(routes::Table::new(table));
    let server = HttpServer::new(move || {
        let (services, table) = (Arc::clone(&services), Arc::clone(&table));
        HttpApp::new().configure(move |config: &mut web::ServiceConfig| dispatch::mount(config, &services, &table))
    })
    .workers(std::thread::available_parallelism().map_or(2, usize::from))
    .tcp_nodelay(true)
    // A client that closes its end has left: its stream's place is free at once.
    .h1_allow_half_closed(false)
    .h1_write_buffer_size(WRITE_BUFFER)
    .client_request_timeout(HEADER_TIMEOUT)
    .keep_alive(Duration::from_secs(75))
    .shutdown_timeout(config.shutdown_grace.as_secs())
    .disable_signals()
    .on_connect(|connection, _| {
        #[cfg(target_os = "linux")]
        if let Some(stream) = connection.downcast_ref::<actix_web::rt::net::TcpStream>() {
            let _ = socket2::SockRef::from(stream).set_tcp_user_timeout(Some(STALLED_WRITE));
        }
    })
    .listen(listener);
    let server = match server {
        Ok(server) => server.run(),
        Err(error) => {
            app.stop().await;
            return Err(error.into());
        }
    };
    if let (Some(listener), Some(metrics)) = (metrics_at, &app.services.metrics) {
        info!(addr = %listener.local_addr()?, "Metrics are served.");
        let (services, jobs) = (Arc::clone(&app.services), Arc::clone(&app.jobs));
        metrics::serve(listener, Arc::clone(metrics), metrics::Watched { services, jobs })?;
    }
    let handle = server.handle();
    let serving = platform_core::spawn("http", server);
    app.services.health.ready.store(true, Ordering::Relaxed);
    info!(%addr, ready_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(0), "Ready.");
    welcome(&config, addr, &app, key_file.as_deref());

    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    info!("Shutting down: no new work, streams are told to reconnect, runs may end.");
    tokio::join!(app.drain(), handle.stop(true));
    let _ = serving.await;
    app.stop().await;
    info!("Stopped.");
    Ok(())
}

/// A socket that takes connections from now on; they are answered when everything is built.
fn listen(addr: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&addr.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// What a new user wants to know first.
fn welcome(config: &Config, addr: SocketAddr, app: &App, key_file: Option<&Path>) {
    let url = config.url(addr);
    println!("The platform listens on {url} (API at {url}/v1, reference at {url}/docs).");
    println!("Models: {}.", app.services.models.describe());
    let key = match key_file {
        Some(path) => {
            println!("The first API key is in {}. Say hello:", path.display());
            format!("$(cat {})", path.display())
        }
        None => {
            println!("Say hello with your API key:");
            "$KEY".to_owned()
        }
    };
    println!(
        "  curl -s {url}/v1/assistants/default/messages -H \"Authorization: Bearer {key}\" \\\n    \
         -H 'Content-Type: application/json' -d '{{\"message\": \"Hello\"}}'"
    );
}
