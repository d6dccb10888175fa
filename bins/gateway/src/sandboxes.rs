//! The machines on which agents run commands: who makes them.

use std::sync::Arc;

use platform_egress::Egress;
use platform_environments::SandboxSettings;
use platform_sandbox::{NoBackend, SandboxBackend};

use crate::config::Config;

/// The command that makes this program such a machine.
pub(crate) const COMMAND: &str = "sandbox";

/// Who makes machines, as the settings say.
pub(crate) fn backend(config: &Config, egress: &Egress) -> Arc<dyn SandboxBackend> {
    if config.no_sandboxes {
        let reason = "This server makes no sandboxes: PLATFORM_SANDBOX_BACKEND is none.";
        return Arc::new(NoBackend(reason.to_owned()));
    }
    on_this_host(config, egress)
}

#[cfg(target_os = "linux")]
fn on_this_host(config: &Config, egress: &Egress) -> Arc<dyn SandboxBackend> {
    let dir = config.data_dir.join("sandboxes");
    Arc::new(platform_sandbox::ProcessBackend::new(COMMAND, &dir, egress.clone()))
}

#[cfg(not(target_os = "linux"))]
fn on_this_host(_: &Config, _: &Egress) -> Arc<dyn SandboxBackend> {
    let reason = "Sandboxes are made of namespaces of Linux; run the platform there.";
    Arc::new(NoBackend(reason.to_owned()))
}

/// What machines may be.
pub(crate) fn settings(config: &Config) -> SandboxSettings {
    SandboxSettings { most: config.sandbox_max, output_bytes: config.sandbox_output_bytes }
}
