//! What the process tells: logs on stderr, short lines on a terminal and elsewhere one JSON object a line, and traces for
//! whoever collects them.

use std::io::{IsTerminal, stderr};

use opentelemetry::{Key, KeyValue, trace::TracerProvider};
use opentelemetry_otlp::SpanExporter;
use opentelemetry_sdk::{Resource, trace::SdkTracerProvider};
use platform_core::TRACES;
use platform_models::ConfigError;
use tracing_subscriber::{
    EnvFilter, Layer,
    filter::{LevelFilter, filter_fn},
    fmt::{self, time::ChronoLocal},
    layer::SubscriberExt,
    util::SubscriberInitExt,
};

/// Of the libraries only what an operator can do something about; spans are for traces. What rmcp says of a server
/// names its whole address, in which there may be a secret; we say it ourselves. What is no HTTP is anybody's to send.
const QUIET: &str =
    "actix_http=off,actix_server=warn,opentelemetry=warn,opentelemetry_sdk=warn,opentelemetry_otlp=warn,rmcp=off";

/// Sends what is left of the traces when it is dropped.
pub(crate) struct Telemetry(Option<SdkTracerProvider>);

impl Telemetry {
    /// Starts logging with a filter such as `info` or `platform_chat=debug,warn`, and tracing when somebody collects.
    pub fn start(filter: &str, is_traced: bool) -> Result<Self, ConfigError> {
        // One word alone would be a target, and nothing else would be logged.
        if !filter.contains(['=', ',', '[']) && filter.trim().parse::<LevelFilter>().is_err() {
            let levels = "error, warn, info, debug, trace and off; a crate's own such as info,platform_chat=debug";
            return Err(ConfigError(format!("PLATFORM_LOG: `{filter}` is no level; there are {levels}.")));
        }
        let filter = EnvFilter::try_new(format!("{QUIET},{filter},{TRACES}=off"))
            .map_err(|e| ConfigError(format!("PLATFORM_LOG: {e}.")))?;
        let logs = fmt::layer().with_writer(stderr);
        let logs = if stderr().is_terminal() {
            logs.compact().with_target(false).with_timer(ChronoLocal::new("%H:%M:%S".to_owned())).boxed()
        } else {
            logs.json().flatten_event(true).with_current_span(false).with_span_list(false).boxed()
        };
        let logs = logs.with_filter(filter);
        let provider = is_traced.then(provider).transpose()?;
        let traces = provider.as_ref().map(|provider| {
            tracing_opentelemetry::layer()
                .with_tracer(provider.tracer("platform"))
                .with_location(false)
                .with_threads(false)
                .with_target(false)
                .with_tracked_inactivity(false)
                .with_filter(filter_fn(|metadata| metadata.target() == TRACES))
        });
        // A second start in one process (tests) keeps the first.
        let _ = tracing_subscriber::registry().with(logs).with(traces).try_init();
        Ok(Self(provider))
    }
}

impl Drop for Telemetry {
    fn drop(&mut self) {
        if let Some(provider) = &self.0 {
            let _ = provider.shutdown();
        }
    }
}

/// Where to, how often and with which headers stands in the variables of the `OpenTelemetry` specification.
fn provider() -> Result<SdkTracerProvider, ConfigError> {
    let wrong = |error| ConfigError(format!("OTEL_EXPORTER_OTLP_ENDPOINT: traces cannot be sent: {error}."));
    let exporter = SpanExporter::builder().with_http().build().map_err(wrong)?;
    let name = Key::new("service.name");
    let unnamed =
        |resource: &Resource| resource.get(&name).is_none_or(|name| name.as_str().starts_with("unknown_service"));
    let mut resource = Resource::builder().with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
    if unnamed(&Resource::builder().build()) {
        resource = resource.with_service_name("platform-gateway");
    }
    Ok(SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource.build()).build())
}
