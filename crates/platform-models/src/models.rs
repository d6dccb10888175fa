use std::{
    hash::{BuildHasher, Hasher, RandomState},
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use platform_core::{AccountId, Code, Error, Money, Result, run_blocking, spawn};
use platform_runtime::{
    Answer, Audio, Catalog, Cost, Delta, Embedding, Fault, FaultCode, Model, ModelSpec, Operation, Prompt, StopReason,
    Transcription, Usage,
};
use tokio::time::timeout;
use tracing::{info, warn};

use crate::{
    broken::Broken,
    call::{LARGEST_PIECE, call, fetch},
    catalog::{self, DefaultModel, ModelList, ModelRecord},
    config::{CallLimits, ConfigError, EmbeddingChoice, ModelsConfig, Protocol, ProviderConfig},
    connection, demo,
    draft::{Draft, InFlight, On},
    embedding,
    provider::Provider,
    speech::{self, SpeechConfig},
    table::Table,
};

const CONNECT: Duration = Duration::from_secs(10);
const PROBE: Duration = Duration::from_secs(2);
const REFRESH: Duration = Duration::from_mins(1);
/// Bytes of the vectors of one call.
const LARGEST_VECTORS: usize = 32 << 20;
/// A longer Retry-After is not waited for.
const MAX_WAIT: Duration = Duration::from_mins(1);

/// All configured providers; the implementation of the port [`Model`].
pub struct Models {
    providers: Vec<Provider>,
    limits: CallLimits,
    client: reqwest::Client,
    default_provider: Option<String>,
    default_model: Option<String>,
    secondary: Option<(String, String)>,
    evaluator: Option<(String, String)>,
    embedder: Option<Embedder>,
    speech: Option<Speech>,
    in_flight: InFlight,
    /// Whoever asks without saying for whom shares as one account.
    nobody: AccountId,
}

/// What turns texts into vectors.
enum Embedder {
    Provider(String, String),
    Local { table: Arc<Table>, spec: ModelSpec },
}

impl Embedder {
    /// Reads the table, where it is one.
    async fn load(choice: EmbeddingChoice) -> Result<Self, ConfigError> {
        let folder = match choice {
            EmbeddingChoice::Provider(provider, llm) => return Ok(Self::Provider(provider, llm)),
            EmbeddingChoice::Local(folder) => folder,
        };
        let name: Arc<str> = folder.to_string_lossy().into();
        let table = run_blocking(move || Ok(Table::load(&folder))).await.map_err(|e| ConfigError(e.to_string()))?;
        let table = table.map_err(|reason| ConfigError(format!("PLATFORM_EMBEDDING_MODEL: {reason}.")))?;
        info!(folder = &*name, dimensions = table.dimensions(), "Loaded the table of vectors.");
        // Another table in the same folder makes other vectors.
        let llm = format!("{name}#{}", table.digest()).into();
        let spec = ModelSpec { llm, ..catalog::unknown(&"local".into(), "") };
        Ok(Self::Local { table: Arc::new(table), spec })
    }
}

/// What turns recordings into text.
struct Speech {
    config: SpeechConfig,
    /// Its breaker, and places among its calls.
    provider: Provider,
    /// Of a minute.
    price: Money,
}

impl Speech {
    fn new(config: SpeechConfig, providers: &[ProviderConfig], limits: &CallLimits) -> Self {
        let named = providers.iter().flat_map(|provider| &provider.models).filter(|model| model.llm == config.model);
        let price = named.map(|model| model.transcription_price).max().unwrap_or(Money::ZERO);
        let own = ProviderConfig::new("speech", Protocol::OpenAi, &config.url);
        Self { provider: Provider::new(own, (Money::ZERO, Money::ZERO), limits), config, price }
    }
}

/// The models as one account asks them.
struct OfAccount {
    models: Arc<Models>,
    account: AccountId,
}

impl Models {
    /// Checks the settings, asks probed providers whether they are there, and keeps asking.
    pub async fn start(config: ModelsConfig) -> Result<Arc<Self>, ConfigError> {
        let client = reqwest::Client::builder()
            .connect_timeout(CONNECT)
            .redirect(reqwest::redirect::Policy::none())
            .pool_max_idle_per_host(256)
            .user_agent(connection::AGENT)
            .build()
            .map_err(|e| ConfigError(format!("The HTTP client cannot be built: {e}")))?;
        let ModelsConfig {
            mut providers,
            default_provider,
            default_model,
            demo_price,
            secondary,
            evaluator,
            embedding,
            speech,
            limits,
        } = config;
        let embedder = match embedding {
            Some(choice) => Some(Embedder::load(choice).await?),
            None => None,
        };
        if !providers.iter().any(|provider| provider.protocol == Protocol::Demo) {
            providers.push(ProviderConfig::new(demo::PROVIDER, Protocol::Demo, ""));
        }
        providers.sort_by_key(|provider| provider.protocol == Protocol::Demo);
        let speech = speech.map(|config| Speech::new(config, &providers, &limits));
        let providers = providers.into_iter().map(|config| Provider::new(config, demo_price, &limits)).collect();
        let models = Arc::new(Self {
            providers,
            limits,
            client,
            default_provider,
            default_model,
            secondary,
            evaluator,
            embedder,
            speech,
            in_flight: InFlight::default(),
            nobody: AccountId::generate(),
        });
        let probes = models.providers.iter().filter(|provider| provider.config.probed);
        for provider in probes {
            let _ = timeout(PROBE, provider.refresh(&models.client)).await;
        }
        models.ask_after_choices().await;
        models.check_default()?;
        spawn("list models", Arc::clone(&models).keep_listing());
        Ok(models)
    }

    /// All usable models and the default (contract 18 §2); `provider` keeps only its models.
    pub fn list(&self, provider: Option<&str>) -> Result<ModelList> {
        let default = self.choose(None, None)?;
        let mut models: Vec<ModelRecord> = self
            .providers
            .iter()
            .filter(|known| provider.is_none_or(|wanted| &*known.name == wanted))
            .flat_map(Provider::usable)
            .map(|spec| ModelRecord::from(&spec))
            .collect();
        models.sort_by(|a, b| (&a.provider, &a.llm).cmp(&(&b.provider, &b.llm)));
        let default = DefaultModel { provider: default.provider.to_string(), llm: default.llm.to_string() };
        Ok(ModelList { models, default })
    }

    /// One sentence for the start-up log: which providers there are.
    pub fn describe(&self) -> String {
        let names: Vec<String> = self
            .providers
            .iter()
            .filter(|provider| provider.is_configured())
            .map(|provider| match provider.usable().len() {
                1 => format!("{} (1 model)", provider.name),
                many => format!("{} ({many} models)", provider.name),
            })
            .collect();
        names.join(", ")
    }

    /// Says in the log who does not answer, and when nobody but the demo model does.
    pub fn warn_if_offline(&self) {
        for provider in self.providers.iter().filter(|provider| !provider.is_configured()) {
            warn!(provider = %provider.name, "A model provider does not answer; it is asked again every minute.");
        }
        let (real, _) = self.failing();
        if real == 0 && self.choose(None, None).is_ok_and(|spec| &*spec.provider == demo::PROVIDER) {
            info!(
                "No model provider is configured; the offline model demo-1 answers. Set OPENAI_API_KEY or another provider for real answers."
            );
        }
    }

    /// How many providers there are, without the demo model, and how many of them are left alone since they fail.
    pub fn failing(&self) -> (usize, usize) {
        let real = |provider: &&Provider| provider.is_configured() && provider.config.protocol != Protocol::Demo;
        let real: Vec<&Provider> = self.providers.iter().filter(real).collect();
        (real.len(), real.iter().filter(|provider| provider.breaker.is_open()).count())
    }

    /// Asks providers for their lists whose models the settings name and nobody here knows.
    async fn ask_after_choices(&self) {
        let chosen = [&self.secondary, &self.evaluator].into_iter().flatten();
        for (provider, llm) in chosen.map(|(provider, llm)| (provider.as_str(), llm.as_str())) {
            let known = self.providers.iter().find(|known| &*known.name == provider);
            if let Some(provider) = known.filter(|known| known.is_configured() && known.find(llm).is_none()) {
                let _ = timeout(PROBE, provider.refresh(&self.client)).await;
            }
        }
    }

    /// Whether a model that is not there may come yet: its provider has not said what it has.
    fn may_come(&self, provider: &str) -> bool {
        let known = self.providers.iter().find(|known| &*known.name == provider);
        known.is_some_and(|known| {
            known.config.protocol != Protocol::Demo && known.listed.read().expect("lock").is_none()
        })
    }

    fn check_default(&self) -> Result<(), ConfigError> {
        let bad = |name: &str, e: &Error| ConfigError(format!("{name}: {}", e.message()));
        if let Some(provider) = &self.default_provider {
            self.choose(Some(provider), None).map_err(|e| bad("PLATFORM_DEFAULT_PROVIDER", &e))?;
        }
        if self.default_model.is_some()
            && let Err(error) = self.choose(None, None)
        {
            // A server that lists its models late may still have it.
            if self.providers.iter().all(|provider| provider.config.protocol == Protocol::Demo) {
                return Err(bad("PLATFORM_DEFAULT_MODEL", &error));
            }
            warn!(reason = error.message(), "PLATFORM_DEFAULT_MODEL is not available yet.");
        }
        for (name, choice) in
            [("PLATFORM_SECONDARY_MODEL", &self.secondary), ("PLATFORM_EVALUATOR_MODEL", &self.evaluator)]
        {
            if let Some((provider, llm)) = choice
                && let Err(error) = self.choose(Some(provider), Some(llm))
            {
                if !self.may_come(provider) {
                    return Err(bad(name, &error));
                }
                warn!(
                    reason = error.message(),
                    "{name} is not available yet; until it is, the turn's own model serves."
                );
            }
        }
        if let Some(Embedder::Provider(provider, _)) = &self.embedder {
            let known = self.providers.iter().find(|known| *known.name == **provider);
            let known = known.ok_or_else(|| bad("PLATFORM_EMBEDDING_MODEL", &self.not_configured(provider, None)))?;
            if !embedding::has_embeddings(known.config.protocol) {
                let message = format!("PLATFORM_EMBEDDING_MODEL: the provider `{provider}` has no embedding models.");
                return Err(ConfigError(message));
            }
        }
        Ok(())
    }

    async fn keep_listing(self: Arc<Self>) {
        loop {
            for provider in &self.providers {
                let _ = timeout(CONNECT, provider.refresh(&self.client)).await;
            }
            tokio::time::sleep(REFRESH).await;
        }
    }

    fn provider(&self, name: &str) -> Option<&Provider> {
        self.providers.iter().find(|provider| &*provider.name == name && provider.is_configured())
    }

    fn default_provider(&self) -> Option<&Provider> {
        match &self.default_provider {
            Some(name) => self.provider(name),
            None => self.providers.iter().find(|provider| provider.is_configured() && provider.first().is_some()),
        }
    }

    fn not_configured(&self, name: &str, llm: Option<&str>) -> Error {
        let available: Vec<&str> =
            self.providers.iter().filter(|p| p.is_configured()).map(|provider| &*provider.name).collect();
        Error::new(
            Code::PROVIDER_NOT_CONFIGURED,
            format!("The provider `{name}` is not configured; available: {}.", available.join(", ")),
        )
        .with("provider", name)
        .with_some("model", llm)
        .with("available", available)
    }

    /// Asks the models of a prompt, one after the other, until one answers.
    async fn complete(&self, account: &AccountId, prompt: &Prompt, on: &mut On<'_>) -> Result<Answer, Fault> {
        let mut last = None;
        let takes_it = |model: &&ModelSpec| model.capabilities.tools || prompt.tools.is_empty();
        for model in std::iter::once(&prompt.model).chain(prompt.fallbacks.iter().filter(takes_it)) {
            match self.ask(account, prompt, model, on).await {
                Ok(answer) => return Ok(answer),
                Err((fault, fall_back)) => {
                    warn!(
                        provider = &*fault.provider,
                        model = &*model.llm,
                        code = fault.code.as_str(),
                        "A model call failed: {}",
                        fault.message
                    );
                    if !fall_back {
                        return Err(fault);
                    }
                    last = Some(fault);
                }
            }
        }
        let nobody = || Fault::of(FaultCode::Unavailable, "No model could be asked.", &prompt.model.provider);
        Err(last.unwrap_or_else(nobody))
    }

    /// Asks one model, with retries.
    async fn ask(
        &self,
        account: &AccountId,
        prompt: &Prompt,
        model: &ModelSpec,
        on: &mut On<'_>,
    ) -> Result<Answer, (Fault, bool)> {
        let Some(provider) = self.provider(&model.provider) else {
            return Err((Broken::unreachable("it is not configured").into_fault(model), true));
        };
        let begun = Instant::now();
        let most = match provider.config.protocol {
            // It keeps to its own limits, and counts words.
            Protocol::Demo => u64::MAX,
            _ => prompt.max_output_tokens.unwrap_or(model.max_output_tokens),
        };
        let mut attempt = 0;
        loop {
            attempt += 1;
            let mut draft = Draft::within(most, account, &self.in_flight);
            let outcome = self.attempt(provider, account, attempt, prompt, model, &mut draft, on).await;
            let Err(broken) = outcome else { return Ok(finish(draft, prompt, model, begun.elapsed())) };
            if draft.has_begun() {
                let partial = Box::new(finish(draft, prompt, model, begun.elapsed()));
                return Err((Fault { partial: Some(partial), ..broken.into_fault(model) }, false));
            }
            let wait = broken.retry_after.unwrap_or_else(|| self.wait(attempt));
            if !broken.retry || attempt >= self.limits.attempts || wait > MAX_WAIT {
                let fall_back = broken.fall_back;
                return Err((broken.into_fault(model), fall_back));
            }
            tokio::time::sleep(wait).await;
        }
    }

    /// Asks a provider once.
    #[expect(clippy::too_many_arguments, reason = "all that a call needs")]
    async fn attempt(
        &self,
        provider: &Provider,
        account: &AccountId,
        attempt: u32,
        prompt: &Prompt,
        model: &ModelSpec,
        draft: &mut Draft,
        on: &mut On<'_>,
    ) -> Result<(), Broken> {
        let total = provider.config.timeout.unwrap_or(self.limits.total);
        let asked = async {
            match provider.config.protocol {
                Protocol::Demo => demo::call(prompt, attempt, draft, on).await,
                _ => call(&self.client, &provider.config, &self.limits, prompt, model, draft, on).await,
            }
        };
        provider.admit(account, &model.llm, total, asked).await
    }

    /// Asks a provider for vectors, with retries.
    async fn vectors(&self, account: &AccountId, model: &ModelSpec, texts: &[String]) -> Result<Embedding, Fault> {
        let not_there = || Broken::unreachable("it is not configured").into_fault(model);
        let provider = self.provider(&model.provider).ok_or_else(not_there)?;
        let dimensions = provider.dimensions.get(&*model.llm).copied();
        let total = provider.config.timeout.unwrap_or(self.limits.first_byte);
        let mut attempt = 0;
        loop {
            attempt += 1;
            let asked = async {
                let request = embedding::request(&self.client, &provider.config, model, texts);
                let request = request.ok_or_else(|| Broken::protocol("it has no embedding models"))?;
                let body = fetch(request, &self.limits, LARGEST_VECTORS).await?;
                let (texts, model) = (texts.to_vec(), model.clone());
                let read = run_blocking(move || Ok(embedding::read(&body, &texts, &model, dimensions)));
                read.await.map_err(|_| Broken::protocol("the vectors cannot be read"))?
            };
            let broken = match provider.admit(account, &model.llm, total, asked).await {
                Ok(embedding) => return Ok(embedding),
                Err(broken) => broken,
            };
            let wait = broken.retry_after.unwrap_or_else(|| self.wait(attempt));
            if !broken.retry || attempt >= self.limits.attempts || wait > MAX_WAIT {
                return Err(broken.into_fault(model));
            }
            tokio::time::sleep(wait).await;
        }
    }

    /// Turns a recording into text, with retries.
    async fn hear(&self, account: &AccountId, audio: &Audio) -> Result<Transcription, Fault> {
        let model = self.transcriber();
        let Some(model) = model else {
            return Err(Fault::of(FaultCode::BadRequest, "No speech engine is configured.", &"".into()));
        };
        let Some(Speech { config, provider, price }) = &self.speech else { return Ok(speech::demo(audio)) };
        let until = Instant::now() + config.longest;
        let limits = CallLimits { first_byte: config.longest, ..self.limits };
        let mut attempt = 0;
        loop {
            attempt += 1;
            let asked = async {
                let heard = fetch(speech::request(&self.client, config, audio), &limits, LARGEST_PIECE).await;
                // Engines fail so on one damaged recording: that is no reason to leave them alone.
                let heard =
                    heard.map_err(|broken| Broken { counts: broken.counts && broken.status != Some(500), ..broken })?;
                speech::read(&heard, audio, *price)
            };
            let left = until.saturating_duration_since(Instant::now());
            let broken = match provider.admit(account, &model.llm, left, asked).await {
                Ok(heard) => return Ok(heard),
                Err(broken) => broken,
            };
            let wait = broken.retry_after.unwrap_or_else(|| self.wait(attempt));
            if !broken.retry || attempt >= self.limits.attempts || Instant::now() + wait >= until {
                return Err(broken.into_fault(&model));
            }
            tokio::time::sleep(wait).await;
        }
    }

    async fn embed_for(&self, account: &AccountId, texts: &[String]) -> Result<Embedding, Fault> {
        match &self.embedder {
            None => Err(Fault::of(FaultCode::BadRequest, "No embedding model is configured.", &"".into())),
            Some(Embedder::Provider(..)) => {
                let model = self.embedder().ok_or_else(|| {
                    Fault::of(FaultCode::Unavailable, "The embedding model is not there.", &"".into())
                })?;
                self.vectors(account, &model, texts).await
            }
            Some(Embedder::Local { table, spec }) => {
                let (table, texts) = (Arc::clone(table), texts.to_vec());
                let looked_up = run_blocking(move || {
                    texts.iter().map(|text| table.embed(text).map_err(Error::internal)).collect::<Result<Vec<_>>>()
                });
                let wrong = |error: Error| Fault::of(FaultCode::Protocol, error.to_string(), &spec.provider);
                let (vectors, tokens): (Vec<_>, Vec<usize>) = looked_up.await.map_err(wrong)?.into_iter().unzip();
                let input_tokens = tokens.iter().sum::<usize>() as u64;
                let usage = Usage { input_tokens, ..Usage::default() }.normalised();
                Ok(Embedding { vectors, usage, cost: Cost::default() })
            }
        }
    }

    /// The pause before the next attempt, with ±25 % jitter.
    fn wait(&self, attempt: u32) -> Duration {
        let base = self.limits.waits[usize::from(attempt > 1)];
        let random = u32::try_from(RandomState::new().build_hasher().finish() % 1000).unwrap_or(500);
        base * 3 / 4 + base * random / 2000
    }
}

impl Catalog for Models {
    fn choose(&self, provider: Option<&str>, llm: Option<&str>) -> Result<ModelSpec> {
        let unsupported = |provider: &str, llm: &str, available: Vec<String>| {
            Error::new(Code::MODEL_NOT_SUPPORTED, format!("The provider `{provider}` has no model `{llm}`."))
                .with("provider", provider)
                .with("model", llm)
                .with("available", available)
        };
        match (provider, llm) {
            (Some(name), llm) => {
                let provider = self.provider(name).ok_or_else(|| self.not_configured(name, llm))?;
                match llm {
                    Some(llm) => provider.find_chat(llm).ok_or_else(|| unsupported(name, llm, provider.names())),
                    None => provider.first().ok_or_else(|| unsupported(name, "", Vec::new())),
                }
            }
            (None, Some(llm)) => {
                let first = self.default_provider();
                let rest = self.providers.iter().filter(|provider| provider.is_configured());
                first.into_iter().chain(rest).find_map(|provider| provider.find_chat(llm)).ok_or_else(|| {
                    let names = first.map(Provider::names).unwrap_or_default();
                    unsupported(first.map_or("", |provider| &provider.name), llm, names)
                })
            }
            (None, None) => {
                let provider = self
                    .default_provider()
                    .ok_or_else(|| self.not_configured(self.default_provider.as_deref().unwrap_or_default(), None))?;
                match &self.default_model {
                    Some(llm) if self.default_provider.is_none() => self.choose(None, Some(llm)),
                    Some(llm) => self.choose(Some(&provider.name), Some(llm)),
                    None => provider.first().ok_or_else(|| unsupported(&provider.name, "", Vec::new())),
                }
            }
        }
    }

    fn count(&self, model: &ModelSpec, text: &str) -> u64 {
        match &*model.provider {
            demo::PROVIDER => demo::count(text),
            _ => text.len().div_ceil(4) as u64,
        }
    }

    fn embedder(&self) -> Option<ModelSpec> {
        match self.embedder.as_ref()? {
            Embedder::Local { spec, .. } => Some(spec.clone()),
            Embedder::Provider(name, llm) => {
                let provider = self.providers.iter().find(|known| *known.name == **name)?;
                Some(provider.find(llm).unwrap_or_else(|| catalog::unknown(&provider.name, llm)))
            }
        }
    }

    fn embedding_space(&self) -> Option<String> {
        let spec = self.embedder()?;
        let known = self.providers.iter().find(|known| known.name == spec.provider);
        let dimensions = known.and_then(|provider| provider.dimensions.get(&*spec.llm));
        let cut = dimensions.map(|dimensions| format!("/{dimensions}")).unwrap_or_default();
        Some(format!("{}:{}{cut}", spec.provider, spec.llm))
    }

    fn transcriber(&self) -> Option<ModelSpec> {
        match &self.speech {
            Some(speech) => Some(speech::spec("speech", &speech.config.model)),
            None => self.choose(None, None).ok().filter(|spec| &*spec.provider == demo::PROVIDER),
        }
    }

    fn transcription_cost(&self, duration: Duration) -> Money {
        self.speech.as_ref().map_or(Money::ZERO, |speech| speech::cost(duration, speech.price).total_cost)
    }

    fn helper(&self, operation: Operation, own: &ModelSpec) -> ModelSpec {
        let choice = match operation {
            Operation::Title | Operation::Summary | Operation::Compaction => &self.secondary,
            Operation::Guardrail | Operation::Evaluation => &self.evaluator,
            Operation::Embedding => return self.embedder().unwrap_or_else(|| own.clone()),
            Operation::Transcription => return self.transcriber().unwrap_or_else(|| own.clone()),
        };
        let spec = choice.as_ref().and_then(|(provider, llm)| self.choose(Some(provider), Some(llm)).ok());
        spec.unwrap_or_else(|| own.clone())
    }
}

#[async_trait]
impl Model for OfAccount {
    fn catalog(&self) -> &dyn Catalog {
        &*self.models
    }

    fn of(self: Arc<Self>, account: &AccountId) -> Arc<dyn Model> {
        Arc::clone(&self.models).of(account)
    }

    async fn answer(&self, prompt: &Prompt, on: &mut (dyn for<'d> FnMut(Delta<'d>) + Send)) -> Result<Answer, Fault> {
        self.models.complete(&self.account, prompt, on).await
    }

    async fn embed(&self, texts: &[String]) -> Result<Embedding, Fault> {
        self.models.embed_for(&self.account, texts).await
    }

    async fn transcribe(&self, audio: &Audio) -> Result<Transcription, Fault> {
        self.models.hear(&self.account, audio).await
    }
}

#[async_trait]
impl Model for Models {
    fn catalog(&self) -> &dyn Catalog {
        self
    }

    fn of(self: Arc<Self>, account: &AccountId) -> Arc<dyn Model> {
        Arc::new(OfAccount { models: self, account: account.clone() })
    }

    async fn answer(&self, prompt: &Prompt, on: &mut (dyn for<'d> FnMut(Delta<'d>) + Send)) -> Result<Answer, Fault> {
        self.complete(&self.nobody, prompt, on).await
    }

    async fn embed(&self, texts: &[String]) -> Result<Embedding, Fault> {
        self.embed_for(&self.nobody, texts).await
    }

    async fn transcribe(&self, audio: &Audio) -> Result<Transcription, Fault> {
        self.hear(&self.nobody, audio).await
    }
}

fn finish(mut draft: Draft, prompt: &Prompt, model: &ModelSpec, latency: Duration) -> Answer {
    let mut usage = draft.usage.unwrap_or_else(|| Usage::estimated(prompt, &draft.text, &draft.tool_calls));
    if let Some(cut) = draft.cut {
        // Whoever is cut off does not say what it took.
        let reported = draft.usage.map_or(0, |usage| usage.output_tokens);
        usage = Usage { output_tokens: reported.max(cut.tokens), ..usage }.normalised();
    }
    let stop = match draft.cut.map(|cut| cut.stop).or(draft.stop) {
        Some(stop) => stop,
        None if draft.tool_calls.is_empty() => StopReason::EndTurn,
        None => StopReason::ToolUse,
    };
    // Some providers say nothing where a tool takes nothing.
    for call in draft.tool_calls.iter_mut().filter(|call| call.function.arguments.trim().is_empty()) {
        "{}".clone_into(&mut call.function.arguments);
    }
    Answer {
        cost: usage.cost(&model.prices),
        text: draft.text,
        tool_calls: draft.tool_calls,
        stop,
        usage,
        model: model.clone(),
        latency,
    }
}
