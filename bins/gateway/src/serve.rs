//! Serves the route table until it is told to stop.

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
};

use anyhow::{Context, Result};
use platform_http::listen;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    time::Instant,
};
use tracing::{info, warn};

use crate::{
    bootstrap::{First, bootstrap},
    config::Config,
    metrics,
    running::Running,
};

/// Files that are not connections of clients: of the database, to models and tools, and on the disk.
const OTHER_FILES: usize = 512;

pub(crate) async fn run(mut config: Config) -> Result<()> {
    let started = Instant::now();
    let listener = listen(config.addr).with_context(|| format!("PLATFORM_ADDR: cannot listen on {}", config.addr))?;
    let addr = listener.local_addr()?;
    let metrics_at = config
        .metrics_addr
        .map(|addr| listen(addr).with_context(|| format!("PLATFORM_METRICS_ADDR: cannot listen on {addr}")));
    let metrics_at = metrics_at.transpose()?;
    for (name, meant) in &config.unknown {
        let meant = meant.map(|meant| format!(" Did you mean {meant}?")).unwrap_or_default();
        warn!("There is no setting {name}; it changes nothing.{meant}");
    }
    let (files_before, files) = open_files();
    config.http.connections = files.saturating_sub(OTHER_FILES.min(files / 2));
    let mut end = EndSignals::listen()?;
    let mut starting = std::pin::pin!(Running::start(&config, addr));
    let app = tokio::select! {
        app = &mut starting => app?,
        () = end.wait() => {
            info!("Told to stop while it starts: what has begun ends first; once more stops at once.");
            tokio::select! {
                app = starting => {
                    let app = app?;
                    let until = app.drain().await;
                    app.stop(until).await;
                }
                () = end.wait() => {}
            }
            return Ok(());
        }
    };
    let first = bootstrap(&app.auth, &config, addr).await?;
    if files > files_before {
        info!(was = files_before, now = files, "The limit of open files was raised.");
    }
    let serving = match platform_http::serve(&app.http, listener, config.shutdown_grace) {
        Ok(serving) => serving,
        Err(error) => {
            app.stop(Instant::now()).await;
            return Err(error.into());
        }
    };
    if let (Some(listener), Some(metrics)) = (metrics_at, &app.metrics) {
        info!(addr = %listener.local_addr()?, "Metrics are served.");
        let (http, jobs, files) = (Arc::clone(&app.http), Arc::clone(&app.jobs), Arc::clone(&app.files));
        let watched = metrics::Watched { http, jobs, files, db: app.db.clone() };
        metrics::serve(listener, Arc::clone(metrics), watched)?;
    }
    app.health.ready.store(true, Ordering::Relaxed);
    info!(%addr, ready_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(0), "Ready.");
    welcome(&config, addr, &app, &first);

    end.wait().await;
    info!("Shutting down: no new work, streams are told to reconnect, runs may end.");
    let (until, ()) = tokio::join!(app.drain(), serving.stop());
    app.stop(until).await;
    info!("Stopped.");
    Ok(())
}

/// The signals that end a process.
struct EndSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl EndSignals {
    fn listen() -> Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn wait(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// As many files as the system lets this process have; how many that was and is.
fn open_files() -> (usize, usize) {
    let limits = getrlimit(Resource::Nofile);
    let mut now = limits.current;
    if limits.current != limits.maximum {
        let raised = setrlimit(Resource::Nofile, Rlimit { current: limits.maximum, ..limits });
        now = raised.map_or(limits.current, |()| limits.maximum);
    }
    let count = |files: Option<u64>| files.map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX));
    (count(limits.current), count(now))
}

/// What a new user wants to know first.
fn welcome(config: &Config, addr: SocketAddr, app: &Running, first: &First) {
    let url = config.url(addr);
    println!("The platform listens on {url} (API at {url}/v1, reference at {url}/docs).");
    match &first.log_in {
        Some(link) => println!("The console is at {url}; this link logs you in, once, within a day:\n  {link}"),
        None => println!(
            "The console is at {url}; `platform-gateway users link`, with the same settings, prints a link that logs you in."
        ),
    }
    println!("Models: {}.", app.models.describe());
    let key = match &first.key_file {
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
