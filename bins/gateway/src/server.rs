//! Serves the route table until it is told to stop.

use std::{
    net::{SocketAddr, TcpListener},
    path::Path,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use actix_http::{HttpService, Request, error::DispatchError};
use actix_server::{GracefulShutdownSignal, ServerBuilder};
use actix_service::{IntoServiceFactory, ServiceFactory, ServiceFactoryExt, fn_service, map_config};
use actix_web::{App as HttpApp, dev::AppConfig, rt::net::TcpStream, web};
use anyhow::{Context, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, Socket, Type};
use tokio::signal::unix::{SignalKind, signal};
use tracing::info;

use crate::{
    app::{App, Services},
    commands::bootstrap,
    config::{Config, Role},
    connection::{Connection, HEAD, LINGER},
    dispatch, metrics, routes,
};

/// Connections that may wait to be taken.
const BACKLOG: i32 = 2048;
/// A connection without a request ends after this.
const KEEP_ALIVE: Duration = Duration::from_secs(75);
/// Bytes of answers that wait for their reader, for each connection.
const WRITE_BUFFER: usize = 8 * 1024;
/// Files that are not connections of clients: of the database, to models and tools, and on the disk.
const OTHER_FILES: usize = 512;

pub(crate) async fn run(config: Config) -> Result<()> {
    let started = std::time::Instant::now();
    let listener = listen(config.addr).with_context(|| format!("PLATFORM_ADDR: cannot listen on {}", config.addr))?;
    let addr = listener.local_addr()?;
    let metrics_at = config
        .metrics_addr
        .map(|addr| listen(addr).with_context(|| format!("PLATFORM_METRICS_ADDR: cannot listen on {addr}")));
    let metrics_at = metrics_at.transpose()?;
    let app = App::build(&config, addr).await?;
    let key_file = bootstrap(&*app.services.auth, &*app.services.keys, &config).await?;
    let mut table = routes::table();
    if config.role == Role::Worker {
        table.retain(|route| matches!(route.path, "/livez" | "/readyz"));
    }
    let services = Arc::clone(&app.services);
    let table = Arc::new(routes::Table::new(table)?);
    let workers = std::thread::available_parallelism().map_or(2, usize::from);
    let files = open_files();
    let server = ServerBuilder::new()
        .workers(workers)
        .max_concurrent_connections((files.saturating_sub(OTHER_FILES.min(files / 2)) / workers).max(1))
        .shutdown_timeout(config.shutdown_grace.as_secs())
        .disable_signals();
    let closing = server.graceful_shutdown_signal();
    let server = server.listen("http", listener, move || http(&services, &table, closing.clone()));
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

/// Connections of clients, each in its place, and what answers on them.
fn http(
    services: &Arc<Services>,
    table: &Arc<routes::Table>,
    closing: GracefulShutdownSignal,
) -> impl ServiceFactory<TcpStream, Config = (), Response = (), Error = DispatchError, InitError = ()> + use<> {
    let gate = Arc::clone(services);
    let (services, table) = (Arc::clone(services), Arc::clone(table));
    let app = HttpApp::new().configure(move |config: &mut web::ServiceConfig| {
        dispatch::mount(config, &services, &table);
    });
    let app = IntoServiceFactory::<_, Request>::into_factory(app).map_err(|error| error.error_response());
    let http = HttpService::build()
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
        let services = Arc::clone(&gate);
        async move {
            let peer = stream.peer_addr()?;
            let place = services.gate.connection(peer.ip()).await;
            // Without a place it is closed.
            let connection = place.map(|place| (Connection::new(stream, place), Some(peer)));
            connection.ok_or(DispatchError::DisconnectTimeout)
        }
    };
    fn_service(take).and_then(http)
}

/// As many files as the system lets this process have; how many that is.
fn open_files() -> usize {
    let limits = getrlimit(Resource::Nofile);
    let mut now = limits.current;
    if limits.current != limits.maximum {
        let raised = setrlimit(Resource::Nofile, Rlimit { current: limits.maximum, ..limits });
        now = raised.map_or(limits.current, |()| limits.maximum);
    }
    info!(was = limits.current, files = now, "So many files may be open.");
    now.map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX))
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
