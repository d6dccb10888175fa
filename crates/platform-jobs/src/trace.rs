//! The traces that runs belong to (W3C Trace Context).

use std::collections::HashMap;

use opentelemetry::propagation::TextMapPropagator;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use platform_core::TRACES;
use tracing::{Span, info_span};
use tracing_opentelemetry::OpenTelemetrySpanExt;

use crate::Run;

const PARENT: &str = "traceparent";

/// What is traced here as `traceparent`, for runs that are enqueued; `None` where nothing is.
pub fn traceparent() -> Option<String> {
    let mut carrier = HashMap::new();
    TraceContextPropagator::new().inject_context(&Span::current().context(), &mut carrier);
    carrier.remove(PARENT)
}

/// The span of a run; it belongs to the trace of the request that began it, and may outlast that.
pub(crate) fn span(run: &Run) -> Span {
    let span = info_span!(
        target: TRACES,
        parent: None,
        "run",
        otel.name = format!("run {}", run.kind),
        platform.run.id = run.id,
        platform.run.attempt = run.attempt,
    );
    if !span.is_disabled() {
        let parent = match &run.trace {
            Some(trace) => {
                let carrier = HashMap::from([(PARENT.to_owned(), trace.clone())]);
                TraceContextPropagator::new().extract(&carrier)
            }
            // A child of its span would keep that open.
            None => Span::current().context(),
        };
        let _ = span.set_parent(parent);
    }
    span
}
