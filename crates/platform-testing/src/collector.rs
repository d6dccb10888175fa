use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use actix_web::{
    HttpResponse,
    web::{self, ServiceConfig},
};
use bytes::Bytes;
use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::{KeyValue, any_value::Value},
};
use prost::Message;

use crate::server::serve;

/// Collects traces by OTLP over HTTP.
pub struct FakeCollector {
    url: String,
    spans: Arc<Mutex<Vec<Span>>>,
}

/// A span as it was sent.
#[derive(Debug, Clone)]
pub struct Span {
    /// Name.
    pub name: String,
    /// Trace it belongs to, in hexadecimal digits.
    pub trace: String,
    /// Its id.
    pub id: String,
    /// The span it is a part of; empty at the root.
    pub parent: String,
    /// It failed.
    pub failed: bool,
    /// Attributes, with those of its process.
    pub attributes: BTreeMap<String, String>,
}

impl FakeCollector {
    /// Starts one on a port of its own.
    pub fn start() -> Self {
        let spans: Arc<Mutex<Vec<Span>>> = Arc::default();
        let shared = Arc::clone(&spans);
        let collect = move |body: Bytes| {
            let request = ExportTraceServiceRequest::decode(body).expect("OTLP");
            shared.lock().expect("lock").extend(read(request));
            async { HttpResponse::Ok().finish() }
        };
        let configure = move |service: &mut ServiceConfig| {
            service.route("/v1/traces", web::post().to(collect.clone()));
        };
        let (url, _) = serve("fake collector", configure);
        Self { url, spans }
    }

    /// Address.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// What was collected.
    pub fn spans(&self) -> Vec<Span> {
        self.spans.lock().expect("lock").clone()
    }
}

fn read(request: ExportTraceServiceRequest) -> Vec<Span> {
    let mut spans = Vec::new();
    for of in request.resource_spans {
        let process = attributes(of.resource.unwrap_or_default().attributes);
        for span in of.scope_spans.into_iter().flat_map(|scope| scope.spans) {
            let mut all = process.clone();
            all.extend(attributes(span.attributes));
            spans.push(Span {
                name: span.name,
                trace: hex(&span.trace_id),
                id: hex(&span.span_id),
                parent: hex(&span.parent_span_id),
                failed: span.status.is_some_and(|status| status.code == 2),
                attributes: all,
            });
        }
    }
    spans
}

fn attributes(pairs: Vec<KeyValue>) -> BTreeMap<String, String> {
    let text = |value| match value {
        Some(Value::StringValue(text)) => text,
        Some(Value::IntValue(number)) => number.to_string(),
        other => format!("{other:?}"),
    };
    pairs.into_iter().map(|pair| (pair.key, text(pair.value.and_then(|value| value.value)))).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |digits, byte| digits + &format!("{byte:02x}"))
}
