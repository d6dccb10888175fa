//! What an operator wants to watch, as `OpenMetrics` text on an address of its own (contract 00 §14).

use std::{
    net::TcpListener,
    sync::{Arc, Mutex, atomic::AtomicU64},
    time::{Duration, Instant},
};

use actix_web::{App, HttpResponse, HttpServer, web};
use async_trait::async_trait;
use platform_conversation::message_file_bytes;
use platform_core::{Money, Result};
use platform_db::Db;
use platform_files::PgFileService;
use platform_http::{Http, Observer};
use platform_jobs::Jobs;
use platform_runtime::{
    Answer, Audio, Catalog, Delta, Embedding, Fault, Model, ModelSpec, Operation, Prompt, Transcription, Usage,
};
use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{
        counter::Counter,
        family::{Family, MetricConstructor},
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
        info::Info,
    },
    registry::{Registry, Unit},
};
use tracing::warn;

/// What messages keep is read so often at most.
const MESSAGES_READ: Duration = Duration::from_mins(10);
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RequestLabels {
    method: String,
    route: &'static str,
    status: u16,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct CallLabels {
    provider: String,
    model: String,
    /// `turn`, or what else the call was for.
    operation: &'static str,
    /// `ok`, `dropped`, or the code of the fault.
    outcome: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ModelLabels {
    provider: String,
    model: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct TokenLabels {
    provider: String,
    model: String,
    /// `input`, of which `cached`; `output`, of which `reasoning`.
    kind: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RunLabels {
    kind: String,
    state: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct KindLabels {
    kind: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct StateLabels {
    state: &'static str,
}

/// Histograms over the same buckets, in seconds.
#[derive(Clone, Copy)]
struct Seconds {
    shortest: f64,
    doublings: u16,
}

impl MetricConstructor<Histogram> for Seconds {
    fn new_metric(&self) -> Histogram {
        Histogram::new(exponential_buckets(self.shortest, 2.0, self.doublings))
    }
}

type Timed<L> = Family<L, Histogram, Seconds>;

/// All figures of this process; what is shared with others is read when somebody asks.
pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
    request_seconds: Timed<RouteLabels>,
    calls: Arc<Calls>,
    streams: Gauge,
    runs_here: Gauge,
    runs: Family<RunLabels, Gauge>,
    oldest: Family<KindLabels, Gauge<f64, AtomicU64>>,
    connections: Family<StateLabels, Gauge>,
    files: Family<AccountLabels, Gauge>,
    file_bytes: Family<AccountLabels, Gauge>,
    message_file_bytes: Family<AccountLabels, Gauge>,
    /// When what messages keep was read last.
    messages_read: Mutex<Option<Instant>>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct AccountLabels {
    account: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RouteLabels {
    route: &'static str,
}

/// Figures of model calls.
struct Calls {
    count: Family<CallLabels, Counter>,
    tokens: Family<TokenLabels, Counter>,
    cost: Family<ModelLabels, Counter<f64, AtomicU64>>,
    seconds: Timed<ModelLabels>,
    first_token: Timed<ModelLabels>,
}

impl Metrics {
    pub fn new() -> Self {
        let (quick, slow) = (Seconds { shortest: 0.000_5, doublings: 16 }, Seconds { shortest: 0.05, doublings: 14 });
        let calls = Calls {
            count: Family::default(),
            tokens: Family::default(),
            cost: Family::default(),
            seconds: Family::new_with_constructor(slow),
            first_token: Family::new_with_constructor(slow),
        };
        let mut metrics = Self {
            registry: Registry::with_prefix("platform"),
            requests: Family::default(),
            request_seconds: Family::new_with_constructor(quick),
            calls: Arc::new(calls),
            streams: Gauge::default(),
            runs_here: Gauge::default(),
            runs: Family::default(),
            oldest: Family::default(),
            connections: Family::default(),
            files: Family::default(),
            file_bytes: Family::default(),
            message_file_bytes: Family::default(),
            messages_read: Mutex::default(),
        };
        metrics.register();
        metrics
    }

    fn register(&mut self) {
        let Self { registry, requests, request_seconds, calls, streams, runs_here, runs, oldest, .. } = self;
        let (connections, files, file_bytes) = (&self.connections, &self.files, &self.file_bytes);
        registry.register("files", "Files of the accounts that store the most", files.clone());
        registry.register_with_unit("files_size", "What they store", Unit::Bytes, file_bytes.clone());
        let of_messages = self.message_file_bytes.clone();
        registry.register_with_unit("message_files_size", "Files as messages keep them", Unit::Bytes, of_messages);
        registry.register("build", "What runs here", Info::new([("version", env!("CARGO_PKG_VERSION"))]));
        registry.register("http_requests", "Requests that were answered", requests.clone());
        registry.register_with_unit(
            "http_request_duration",
            "Until the head of the answer",
            Unit::Seconds,
            request_seconds.clone(),
        );
        registry.register("streams_open", "Streams that are open in this process", streams.clone());
        registry.register("runs_here", "Runs that this process works", runs_here.clone());
        registry.register(
            "runs",
            "Runs of all processes: working, waiting for a worker, sleeping until their time, or lost by their worker",
            runs.clone(),
        );
        registry.register_with_unit(
            "run_oldest_wait",
            "How long the oldest run that is due, and that no lane holds back, has waited",
            Unit::Seconds,
            oldest.clone(),
        );
        registry.register("model_calls", "Calls of models that have ended", calls.count.clone());
        registry.register("model_tokens", "Tokens as providers reported them", calls.tokens.clone());
        registry.register("model_cost_usd", "What calls cost, in US dollars", calls.cost.clone());
        registry.register_with_unit("model_call_duration", "Of a whole call", Unit::Seconds, calls.seconds.clone());
        registry.register_with_unit(
            "model_first_token",
            "From the call to its first token",
            Unit::Seconds,
            calls.first_token.clone(),
        );
        registry.register(
            "database_connections",
            "Connections of the pool: used, idle; and callers that wait for one",
            connections.clone(),
        );
    }

    /// The same model, its calls counted.
    pub fn observe(&self, model: Arc<dyn Model>) -> Arc<dyn Model> {
        Arc::new(Observed { model, calls: Arc::clone(&self.calls) })
    }

    /// Everything as text; the queue as all processes share it is read from the database.
    async fn render(&self, watched: &Watched) -> Result<String> {
        self.streams.set(i64::try_from(watched.http.gate().open_streams()).unwrap_or(i64::MAX));
        self.runs_here.set(i64::try_from(watched.jobs.active()).unwrap_or(i64::MAX));
        let pool = watched.db.pool();
        for (state, count) in [("used", pool.used), ("idle", pool.idle), ("waiting", pool.waiting)] {
            self.connections.get_or_create(&StateLabels { state }).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        match watched.jobs.queues().await {
            Ok(queues) => {
                self.runs.clear();
                self.oldest.clear();
                for queue in queues {
                    let states = [
                        ("working", queue.working),
                        ("waiting", queue.waiting),
                        ("sleeping", queue.sleeping),
                        ("lost", queue.lost),
                    ];
                    for (state, count) in states {
                        self.runs.get_or_create(&RunLabels { kind: queue.kind.clone(), state }).set(count);
                    }
                    self.oldest.get_or_create(&KindLabels { kind: queue.kind }).set(queue.oldest_seconds);
                }
            }
            // The other figures are wanted most when the database is away.
            Err(error) => warn!(%error, "The queue could not be read for the metrics; its last figures stand."),
        }
        match watched.files.usage().await {
            Ok(usage) => {
                self.files.clear();
                self.file_bytes.clear();
                for platform_files::Usage { account, files, bytes } in usage {
                    let labels = AccountLabels { account };
                    self.files.get_or_create(&labels).set(files);
                    self.file_bytes.get_or_create(&labels).set(bytes);
                }
            }
            Err(error) => warn!(%error, "What is stored could not be read for the metrics; its last figures stand."),
        }
        if let Err(error) = self.read_messages(&watched.db).await {
            warn!(%error, "What messages keep could not be read for the metrics; its last figures stand.");
        }
        let mut text = String::new();
        encode(&mut text, &self.registry).map_err(platform_core::Error::internal)?;
        Ok(text)
    }

    /// Reads what messages keep of files, now and then: it takes a look at each.
    async fn read_messages(&self, db: &Db) -> Result<()> {
        let read = *self.messages_read.lock().expect("lock");
        if read.is_some_and(|read| read.elapsed() < MESSAGES_READ) {
            return Ok(());
        }
        let usage = message_file_bytes(&mut *db.conn().await?).await?;
        self.message_file_bytes.clear();
        for (account, bytes) in usage {
            self.message_file_bytes.get_or_create(&AccountLabels { account }).set(bytes);
        }
        *self.messages_read.lock().expect("lock") = Some(Instant::now());
        Ok(())
    }
}

impl Observer for Metrics {
    fn answered(&self, method: &str, route: &'static str, status: u16, took: Duration) {
        self.requests.get_or_create(&RequestLabels { method: method.to_owned(), route, status }).inc();
        self.request_seconds.get_or_create(&RouteLabels { route }).observe(took.as_secs_f64());
    }
}

/// What is looked at when somebody asks.
pub(crate) struct Watched {
    pub http: Arc<Http>,
    pub jobs: Arc<Jobs>,
    pub files: Arc<PgFileService>,
    pub db: Db,
}

/// Serves `GET /metrics` until the process ends.
pub(crate) fn serve(listener: TcpListener, metrics: Arc<Metrics>, watched: Watched) -> std::io::Result<()> {
    let watched = web::Data::new(watched);
    let server = HttpServer::new(move || {
        let (metrics, watched) = (Arc::clone(&metrics), watched.clone());
        let answer = move || {
            let (metrics, watched) = (Arc::clone(&metrics), watched.clone());
            async move {
                match metrics.render(&watched).await {
                    Ok(text) => HttpResponse::Ok().content_type(CONTENT_TYPE).body(text),
                    Err(_) => HttpResponse::InternalServerError().finish(),
                }
            }
        };
        App::new().route("/metrics", web::get().to(answer))
    })
    .workers(1)
    .disable_signals()
    .listen(listener)?
    .run();
    platform_core::spawn("metrics", server);
    Ok(())
}

/// A model whose calls are counted.
struct Observed {
    model: Arc<dyn Model>,
    calls: Arc<Calls>,
}

#[async_trait]
impl Model for Observed {
    fn catalog(&self) -> &dyn Catalog {
        self.model.catalog()
    }

    fn of(self: Arc<Self>, account: &platform_core::AccountId) -> Arc<dyn Model> {
        Arc::new(Self { model: Arc::clone(&self.model).of(account), calls: Arc::clone(&self.calls) })
    }

    async fn answer(
        &self,
        prompt: &Prompt,
        on: &mut (dyn for<'d> FnMut(Delta<'d>) + Send),
    ) -> std::result::Result<Answer, Fault> {
        let operation = prompt.operation.map_or("turn", Operation::as_str);
        let mut call =
            Call { calls: &self.calls, model: &prompt.model, operation, began: Instant::now(), ended: false };
        let mut first = true;
        let mut watch = |delta: Delta<'_>| {
            if std::mem::take(&mut first) {
                let labels = labels(&prompt.model);
                self.calls.first_token.get_or_create(&labels).observe(call.began.elapsed().as_secs_f64());
            }
            on(delta);
        };
        let answer = self.model.answer(prompt, &mut watch).await;
        match &answer {
            Ok(answer) => call.answered("ok", answer),
            Err(fault) => match fault.partial.as_deref() {
                Some(partial) => call.answered(fault.code.as_str(), partial),
                None => call.end(fault.code.as_str(), None, &Usage::default(), Money::ZERO),
            },
        }
        answer
    }

    async fn embed(&self, texts: &[String]) -> std::result::Result<Embedding, Fault> {
        let Some(model) = self.model.catalog().embedder() else { return self.model.embed(texts).await };
        let operation = Operation::Embedding.as_str();
        let mut call = Call { calls: &self.calls, model: &model, operation, began: Instant::now(), ended: false };
        let embedded = self.model.embed(texts).await;
        match &embedded {
            Ok(embedded) => call.end("ok", None, &embedded.usage, embedded.cost.total_cost),
            Err(fault) => call.end(fault.code.as_str(), None, &Usage::default(), Money::ZERO),
        }
        embedded
    }

    async fn transcribe(&self, audio: &Audio) -> std::result::Result<Transcription, Fault> {
        let Some(model) = self.model.catalog().transcriber() else { return self.model.transcribe(audio).await };
        let operation = Operation::Transcription.as_str();
        let mut call = Call { calls: &self.calls, model: &model, operation, began: Instant::now(), ended: false };
        let heard = self.model.transcribe(audio).await;
        match &heard {
            Ok(heard) => call.end("ok", None, &heard.usage, heard.cost.total_cost),
            Err(fault) => call.end(fault.code.as_str(), None, &Usage::default(), Money::ZERO),
        }
        heard
    }
}

/// A call under way; one that is broken off counts, too.
struct Call<'a> {
    calls: &'a Calls,
    model: &'a ModelSpec,
    operation: &'static str,
    began: Instant,
    ended: bool,
}

impl Call<'_> {
    fn answered(&mut self, outcome: &'static str, answer: &Answer) {
        self.end(outcome, Some(&answer.model), &answer.usage, answer.cost.total_cost);
    }

    /// `by`: who answered, where that is not whom it asked.
    fn end(&mut self, outcome: &'static str, by: Option<&ModelSpec>, usage: &Usage, cost: Money) {
        self.ended = true;
        let ModelLabels { provider, model } = labels(by.unwrap_or(self.model));
        let of = CallLabels { provider: provider.clone(), model: model.clone(), operation: self.operation, outcome };
        self.calls.count.get_or_create(&of).inc();
        let labels = ModelLabels { provider: provider.clone(), model: model.clone() };
        self.calls.seconds.get_or_create(&labels).observe(self.began.elapsed().as_secs_f64());
        let kinds = [
            ("input", usage.input_tokens),
            ("cached", usage.input_cached_tokens),
            ("output", usage.output_tokens),
            ("reasoning", usage.reasoning_output_tokens),
        ];
        for (kind, count) in kinds.into_iter().filter(|(_, count)| *count > 0) {
            let of = TokenLabels { provider: provider.clone(), model: model.clone(), kind };
            self.calls.tokens.get_or_create(&of).inc_by(count);
        }
        #[expect(clippy::cast_precision_loss, reason = "a figure to watch, not to bill")]
        let dollars = cost.nanos() as f64 / 1e9;
        self.calls.cost.get_or_create(&labels).inc_by(dollars);
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.end("dropped", None, &Usage::default(), Money::ZERO);
        }
    }
}

fn labels(model: &ModelSpec) -> ModelLabels {
    ModelLabels { provider: model.provider.to_string(), model: model.llm.to_string() }
}
