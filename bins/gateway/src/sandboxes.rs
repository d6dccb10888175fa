//! The machines on which agents run commands: who makes them.

use std::{net::SocketAddr, sync::Arc};

use bytes::Bytes;
use http::Request;
use platform_egress::Egress;
use platform_environments::{PgEnvironments, PublicDomain, SandboxSettings};
use platform_http::{Forwarding, ProxiedHosts, ReverseProxy};
use platform_sandbox::{NoBackend, SandboxBackend};

use url::Url;

use crate::config::{Config, SandboxKind};

/// The command that makes this program such a machine.
pub(crate) const COMMAND: &str = "sandbox";

/// Who makes machines, as the settings say.
pub(crate) fn backend(config: &Config, egress: &Egress) -> Arc<dyn SandboxBackend> {
    if config.sandbox_backend == SandboxKind::None {
        let reason = "This server makes no sandboxes: PLATFORM_SANDBOX_BACKEND is none.";
        return Arc::new(NoBackend(reason.to_owned()));
    }
    on_this_host(config, egress)
}

#[cfg(target_os = "linux")]
fn on_this_host(config: &Config, egress: &Egress) -> Arc<dyn SandboxBackend> {
    use platform_sandbox::{ContainerBackend, FirstAvailable, ProcessBackend};
    let (dir, images) = (config.data_dir.join("sandboxes"), &config.sandbox_images);
    let process = || ProcessBackend::new(COMMAND, &dir, egress.clone());
    let container = || ContainerBackend::new(COMMAND, &dir, &config.sandbox_socket, images.clone(), egress.clone());
    match config.sandbox_backend {
        SandboxKind::Process => Arc::new(process()),
        SandboxKind::Container => Arc::new(container()),
        _ => Arc::new(FirstAvailable::new(vec![Arc::new(process()), Arc::new(container())])),
    }
}

#[cfg(not(target_os = "linux"))]
fn on_this_host(_: &Config, _: &Egress) -> Arc<dyn SandboxBackend> {
    let reason = "Sandboxes are made on Linux; run the platform there.";
    Arc::new(NoBackend(reason.to_owned()))
}

/// What machines may be.
pub(crate) fn settings(config: &Config, addr: SocketAddr) -> SandboxSettings {
    let runtimes = config.sandbox_images.iter().map(|(name, _)| name.clone()).collect();
    let public = config.sandbox_public_domain.clone().and_then(|name| {
        let url = Url::parse(&config.url(addr)).ok()?;
        Some(PublicDomain { scheme: url.scheme().to_owned(), name, port: url.port() })
    });
    SandboxSettings { most: config.sandbox_max, output_bytes: config.sandbox_output_bytes, runtimes, public }
}

/// Where everybody reaches what machines serve.
pub(crate) fn hosts(config: &Config, environments: &Arc<PgEnvironments>) -> Option<ProxiedHosts> {
    let domain = config.sandbox_public_domain.clone()?;
    Some(ProxiedHosts { domain, proxy: Arc::new(Served(Arc::clone(environments))) })
}

/// What machines serve.
struct Served(Arc<PgEnvironments>);

impl ReverseProxy for Served {
    fn forward(self: Arc<Self>, name: String, network: String, request: Request<Bytes>) -> Forwarding {
        Box::pin(async move { self.0.proxy(&name, &network, request).await })
    }
}
