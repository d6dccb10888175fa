//! What the process tells: logs, one JSON object a line on stderr, and traces for whoever collects them.

use actix_web::http::header::HeaderMap;
use opentelemetry::{
    Key, KeyValue,
    propagation::{Extractor, TextMapPropagator},
    trace::TracerProvider,
};
use opentelemetry_otlp::SpanExporter;
use opentelemetry_sdk::{Resource, propagation::TraceContextPropagator, trace::SdkTracerProvider};
use platform_core::TRACES;
use platform_models::ConfigError;
use tracing::{Span, field::Empty, info_span};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::{EnvFilter, Layer, filter::filter_fn, layer::SubscriberExt, util::SubscriberInitExt};

/// Of the libraries only what an operator can do something about; spans are for traces. What rmcp says of a server
/// names its whole address, in which there may be a secret; we say it ourselves.
const QUIET: &str = "actix_server=warn,opentelemetry=warn,opentelemetry_sdk=warn,opentelemetry_otlp=warn,rmcp=off";

/// Sends what is left of the traces when it is dropped.
pub(crate) struct Telemetry(Option<SdkTracerProvider>);

impl Telemetry {
    /// Starts logging with a filter such as `info` or `platform_chat=debug,warn`, and tracing when somebody collects.
    pub fn start(filter: &str, is_traced: bool) -> Result<Self, ConfigError> {
        let filter = EnvFilter::try_new(format!("{QUIET},{filter},{TRACES}=off"))
            .map_err(|e| ConfigError(format!("PLATFORM_LOG: {e}.")))?;
        let logs = tracing_subscriber::fmt::layer()
            .json()
            .flatten_event(true)
            .with_current_span(false)
            .with_span_list(false)
            .with_writer(std::io::stderr)
            .with_filter(filter);
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

/// The span of a request, in the trace of whoever sent it (W3C Trace Context).
pub(crate) fn request_span(method: &str, route: &str, request_id: &str, headers: &HeaderMap) -> Span {
    let span = info_span!(
        target: TRACES,
        "request",
        otel.name = format!("{method} {route}"),
        otel.kind = "server",
        otel.status_code = Empty,
        http.request.method = method,
        http.route = route,
        http.response.status_code = Empty,
        platform.request.id = request_id,
    );
    if !span.is_disabled() {
        let _ = span.set_parent(TraceContextPropagator::new().extract(&Headers(headers)));
    }
    span
}

/// Notes in a request's span how it was answered.
pub(crate) fn answered(span: &Span, status: u16) {
    span.record("http.response.status_code", i64::from(status));
    if status >= 500 {
        span.record("otel.status_code", "error");
    }
}

struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(actix_web::http::header::HeaderName::as_str).collect()
    }
}
