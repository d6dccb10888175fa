//! Settings (contract 00 §14): read once, at start, from the environment alone.

mod settings;
mod variables;

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf, absolute},
    time::Duration,
};

use ipnet::IpNet;
use platform_auth::{KeySecret, TokenAlgorithm, TrustedIssuer};
use platform_core::{FieldLimits, Money};
use platform_egress::{Allowed, EgressRules};
use platform_files::{S3Access, StoreConfig};
use platform_http::{HttpConfig, Rates};
use platform_integrations::AppClient;
use platform_mail::MailConfig;
use platform_memory::MemoryLimits;
use platform_models::{
    CallLimits, ConfigError, EmbeddingChoice, ModelsConfig, Protocol, ProviderConfig, SpeechConfig, read_providers_file,
};
use platform_triggers::TriggerRules;
use platform_vault::{MasterKey, Secret};
use platform_webhooks::DeliveryRules;
use secrecy::SecretString;

pub use self::settings::{help, page};
use self::variables::{
    Result, beginning, choice, collects_traces, days, directory, duration, limit, list, number, one_of, rate, read,
    text, variable, wait,
};

/// What this process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Serves and works.
    All,
    /// Serves HTTP; works only what somebody waits for.
    Api,
    /// Works runs; serves only `/livez` and `/readyz`.
    Worker,
}

/// Who makes sandboxes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SandboxKind {
    /// Whoever can.
    Auto,
    /// Namespaces of this host.
    Process,
    /// A container engine.
    Container,
    /// Nobody.
    None,
}

const SANDBOX_KINDS: [(&str, SandboxKind); 4] = [
    ("auto", SandboxKind::Auto),
    ("process", SandboxKind::Process),
    ("container", SandboxKind::Container),
    ("none", SandboxKind::None),
];

/// All settings.
#[expect(missing_docs, reason = "each field is the setting of its name, described in settings.rs")]
pub struct Config {
    pub addr: SocketAddr,
    pub public_url: Option<String>,
    pub role: Role,
    pub database_url: Option<String>,
    pub database_pool: usize,
    pub data_dir: PathBuf,
    /// Where the bytes of files are.
    pub store: StoreConfig,
    pub sweep_interval: Duration,
    /// 0 = no bound.
    pub max_upload_bytes: usize,
    /// 0 = no bound.
    pub max_document_bytes: usize,
    pub key_prefix: String,
    pub token_algorithm: TokenAlgorithm,
    /// NATS servers between the processes.
    pub nats_url: Option<SecretString>,
    /// Somebody collects traces.
    pub traces: bool,
    /// Where metrics are served; `None` = nowhere.
    pub metrics_addr: Option<SocketAddr>,
    pub access_ttl: Duration,
    pub refresh_ttl: Duration,
    pub trusted_issuer: Option<TrustedIssuer>,
    pub oauth_registration: bool,
    pub mcp_audit_keep: Duration,
    pub bootstrap_key: Option<KeySecret>,
    pub http: HttpConfig,
    pub egress: EgressRules,
    pub limits: FieldLimits,
    pub memory_limits: MemoryLimits,
    pub sandbox_backend: SandboxKind,
    /// Where a container engine listens.
    pub sandbox_socket: PathBuf,
    /// Runtimes and their images, `default` among them.
    pub sandbox_images: Vec<(String, String)>,
    pub sandbox_max: usize,
    pub sandbox_output_bytes: usize,
    /// Below which everybody reaches what sandboxes serve; `None` = nobody does.
    pub sandbox_public_domain: Option<String>,
    pub client_tool_timeout: Duration,
    pub async_tool_timeout: Duration,
    pub approval_timeout: Duration,
    pub max_subagent_depth: usize,
    pub event_keep: Duration,
    pub deliveries: DeliveryRules,
    pub triggers: TriggerRules,
    pub connect_ttl: Duration,
    pub connection_refresh_before: Duration,
    pub mail: Option<MailConfig>,
    pub secret_key: Option<SecretString>,
    pub secret_key_previous: Vec<SecretString>,
    pub stream_frame_bytes: usize,
    pub sync_timeout: Duration,
    pub speech_timeout: Duration,
    pub stream_coalesce: Duration,
    pub run_lease: Duration,
    pub run_heartbeat: Duration,
    pub run_max_attempts: i32,
    pub worker_concurrency: usize,
    pub models: ModelsConfig,
    pub docs_dir: Option<PathBuf>,
    /// Connectors of the operator.
    pub connectors_dir: Option<PathBuf>,
    /// How this server stands with apps, by their slugs.
    pub app_clients: BTreeMap<String, AppClient>,
    pub log: String,
    /// Variables that nobody reads, and what they may be meant to be.
    pub unknown: Vec<(String, Option<&'static str>)>,
    pub shutdown_grace: Duration,
}

impl Config {
    /// Base of emitted links, when it listens there.
    pub fn url(&self, addr: SocketAddr) -> String {
        self.public_url.clone().unwrap_or_else(|| format!("http://{addr}"))
    }

    /// Reads and checks every setting; the error names the one that is wrong.
    pub fn from_env() -> Result<Self> {
        let addr: SocketAddr = read("PLATFORM_ADDR", "an address such as 127.0.0.1:8080", |text| text.parse().ok())?;
        let key_prefix = read("PLATFORM_KEY_PREFIX", "2 to 12 lower-case letters", |text| {
            let good = (2..=12).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_lowercase());
            good.then(|| text.to_owned())
        })?;
        let bootstrap_key = variable("PLATFORM_BOOTSTRAP_KEY")
            .map(|value| {
                KeySecret::parse(value.trim(), &key_prefix).ok_or_else(|| {
                    ConfigError(format!(
                        "PLATFORM_BOOTSTRAP_KEY: the value must be `{key_prefix}-` and 43 letters and digits."
                    ))
                })
            })
            .transpose()?;
        let database_url = text("DATABASE_URL");
        let role = one_of("PLATFORM_ROLE", &[("all", Role::All), ("api", Role::Api), ("worker", Role::Worker)])?;
        if role != Role::All && database_url.is_none() {
            return Err(ConfigError("PLATFORM_ROLE: without DATABASE_URL only `all` is possible.".to_owned()));
        }
        let run_lease = duration("PLATFORM_RUN_LEASE")?;
        let run_heartbeat = duration("PLATFORM_RUN_HEARTBEAT")?;
        if run_heartbeat.is_zero() || run_heartbeat * 2 > run_lease {
            return Err(ConfigError(
                "PLATFORM_RUN_HEARTBEAT: it must be above 0 and at most half of PLATFORM_RUN_LEASE.".to_owned(),
            ));
        }
        let has_metrics = one_of("PLATFORM_METRICS", &[("on", true), ("off", false)])?;
        let (data_dir, public_url) = (data_dir()?, public_url()?);
        let sandbox_public_domain = sandbox_public_domain(public_url.as_deref())?;
        let metrics_addr =
            read("PLATFORM_METRICS_ADDR", "an address such as 127.0.0.1:9090", |text| text.parse().ok())?;
        Ok(Self {
            nats_url: text("PLATFORM_NATS_URL").map(SecretString::from),
            traces: collects_traces()?,
            metrics_addr: has_metrics.then_some(metrics_addr),
            public_url,
            addr,
            role,
            database_url,
            database_pool: number("PLATFORM_DATABASE_POOL", 1)?,
            store: store(&data_dir)?,
            sweep_interval: duration("PLATFORM_SWEEP_INTERVAL")?,
            max_upload_bytes: number("PLATFORM_MAX_UPLOAD_BYTES", 0)?,
            max_document_bytes: number("PLATFORM_MAX_DOCUMENT_BYTES", 0)?,
            http: http(&data_dir)?,
            data_dir,
            key_prefix,
            token_algorithm: one_of(
                "PLATFORM_OAUTH_ALGORITHM",
                &[("eddsa", TokenAlgorithm::EdDsa), ("rs256", TokenAlgorithm::Rs256)],
            )?,
            access_ttl: duration("PLATFORM_OAUTH_ACCESS_TTL")?,
            refresh_ttl: duration("PLATFORM_OAUTH_REFRESH_TTL")?,
            trusted_issuer: trusted_issuer()?,
            oauth_registration: one_of("PLATFORM_OAUTH_REGISTRATION", &[("on", true), ("off", false)])?,
            bootstrap_key,
            egress: egress()?,
            limits: field_limits()?,
            memory_limits: memory_limits()?,
            sandbox_backend: one_of("PLATFORM_SANDBOX_BACKEND", &SANDBOX_KINDS)?,
            sandbox_socket: text("PLATFORM_SANDBOX_SOCKET").unwrap_or_default().into(),
            sandbox_images: sandbox_images()?,
            sandbox_max: number("PLATFORM_SANDBOX_MAX", 0)?,
            sandbox_output_bytes: limit("PLATFORM_LIMIT_SANDBOX_OUTPUT_BYTES")?,
            sandbox_public_domain,
            client_tool_timeout: duration("PLATFORM_CLIENT_TOOL_TIMEOUT")?,
            async_tool_timeout: duration("PLATFORM_ASYNC_TOOL_TIMEOUT")?,
            approval_timeout: duration("PLATFORM_APPROVAL_TIMEOUT")?,
            max_subagent_depth: number("PLATFORM_MAX_SUBAGENT_DEPTH", 0)?,
            event_keep: days("PLATFORM_EVENT_DAYS")?,
            mcp_audit_keep: Duration::from_hours(24 * number("PLATFORM_MCP_AUDIT_DAYS", 0)? as u64),
            deliveries: deliveries()?,
            triggers: triggers()?,
            connect_ttl: duration("PLATFORM_CONNECT_TTL")?,
            connection_refresh_before: duration("PLATFORM_CONNECTION_REFRESH_BEFORE")?,
            mail: mail()?,
            secret_key: text("PLATFORM_SECRET_KEY").map(|key| master_key("PLATFORM_SECRET_KEY", &key)).transpose()?,
            secret_key_previous: text("PLATFORM_SECRET_KEY_PREVIOUS")
                .unwrap_or_default()
                .split(',')
                .filter(|key| !key.trim().is_empty())
                .map(|key| master_key("PLATFORM_SECRET_KEY_PREVIOUS", key))
                .collect::<Result<_>>()?,
            stream_frame_bytes: number("PLATFORM_LIMIT_STREAM_FRAME_BYTES", 0)?,
            sync_timeout: duration("PLATFORM_SYNC_TIMEOUT")?,
            speech_timeout: duration("PLATFORM_SPEECH_TIMEOUT")?,
            stream_coalesce: duration("PLATFORM_STREAM_COALESCE")?,
            run_lease,
            run_heartbeat,
            run_max_attempts: i32::try_from(number("PLATFORM_RUN_MAX_ATTEMPTS", 1)?).unwrap_or(i32::MAX),
            worker_concurrency: number("PLATFORM_WORKER_CONCURRENCY", 1)?,
            models: models()?,
            docs_dir: directory("PLATFORM_DOCS_DIR")?,
            connectors_dir: directory("PLATFORM_CONNECTORS_DIR")?,
            unknown: variables::unknown(),
            app_clients: app_clients()?,
            log: text("PLATFORM_LOG").unwrap_or_default(),
            shutdown_grace: duration("PLATFORM_SHUTDOWN_GRACE")?,
        })
    }
}

/// The data directory, from the root.
fn data_dir() -> Result<PathBuf> {
    let dir = text("PLATFORM_DATA_DIR").unwrap_or_default();
    absolute(&dir).map_err(|error| ConfigError(format!("PLATFORM_DATA_DIR: `{dir}`: {error}.")))
}

/// Where the bytes of files are.
fn store(data_dir: &Path) -> Result<StoreConfig> {
    let url = match text("PLATFORM_OBJECT_STORE_URL") {
        Some(text) => url::Url::parse(text.trim()).ok().filter(|url| matches!(url.scheme(), "file" | "s3")).ok_or(text),
        None => url::Url::from_directory_path(data_dir.join("objects")).map_err(|()| data_dir.display().to_string()),
    };
    let wrong =
        |text| format!("PLATFORM_OBJECT_STORE_URL: `{text}` is not such as file:///a/directory or s3://bucket/prefix.");
    let s3 = S3Access {
        key_id: text("AWS_ACCESS_KEY_ID"),
        secret: text("AWS_SECRET_ACCESS_KEY").map(SecretString::from),
        session_token: text("AWS_SESSION_TOKEN").map(SecretString::from),
        region: text("AWS_REGION"),
        endpoint: text("AWS_ENDPOINT_URL"),
    };
    Ok(StoreConfig { url: url.map_err(|text| ConfigError(wrong(text)))?, s3 })
}

fn http(data_dir: &Path) -> Result<HttpConfig> {
    Ok(HttpConfig {
        public_url: String::new(),
        upload_dir: data_dir.join("uploads"),
        max_json_bytes: number("PLATFORM_MAX_JSON_BYTES", 1)?,
        trusted_proxies: list("PLATFORM_TRUSTED_PROXIES", "a list of addresses or networks", |text| {
            text.parse().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from))
        })?,
        cors_origins: list("PLATFORM_CORS_ORIGINS", "`*` or a list of origins such as https://app.example", |text| {
            let good = text == "*" || (text.contains("://") && !text.ends_with('/'));
            good.then(|| text.to_owned())
        })?,
        rates: rates()?,
        connections: 0,
        connections_per_address: number("PLATFORM_CONNECTIONS_PER_ADDRESS", 0)?,
        bodies_per_address: number("PLATFORM_BODIES_PER_ADDRESS", 0)?,
        streams_per_key: number("PLATFORM_STREAMS_PER_KEY", 0)?,
        streams_per_session: number("PLATFORM_STREAMS_PER_SESSION", 0)?,
        stream_lifetime: duration("PLATFORM_STREAM_LIFETIME")?,
        stream_keepalive: duration("PLATFORM_STREAM_KEEPALIVE")?,
    })
}

/// Base of emitted links: paths are put behind it.
fn public_url() -> Result<Option<String>> {
    let Some(text) = text("PLATFORM_PUBLIC_URL") else { return Ok(None) };
    let is_base = |url: &url::Url| {
        let bare = url.query().is_none() && url.fragment().is_none() && url.username().is_empty();
        matches!(url.scheme(), "http" | "https") && url.has_host() && url.password().is_none() && bare
    };
    match url::Url::parse(text.trim()).ok().filter(is_base) {
        Some(_) => Ok(Some(text.trim().trim_end_matches('/').to_owned())),
        None => {
            let wrong = format!("PLATFORM_PUBLIC_URL: `{text}` is not an address such as https://platform.example.");
            Err(ConfigError(wrong))
        }
    }
}

fn egress() -> Result<EgressRules> {
    Ok(EgressRules {
        allow_private: read("PLATFORM_ALLOW_PRIVATE_EGRESS", "true or false", |text| text.parse().ok())?,
        allow: list("PLATFORM_EGRESS_ALLOW", "a list of hosts and networks", Allowed::parse)?,
        most_bytes: number("PLATFORM_LIMIT_EGRESS_BYTES", 0)?,
        at_once: number("PLATFORM_EGRESS_CONCURRENCY", 0)?,
        at_once_an_account: number("PLATFORM_EGRESS_PER_ACCOUNT", 0)?,
    })
}

/// Name and image of each runtime, `default` among them.
fn sandbox_images() -> Result<Vec<(String, String)>> {
    let image = |text: &str| {
        let (name, image) = text.split_once('=')?;
        let is_name = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'.';
        let is_good = (1..=40).contains(&name.len()) && name.bytes().all(is_name) && !image.is_empty();
        is_good.then(|| (name.to_ascii_lowercase(), image.to_owned()))
    };
    let mut images = list("PLATFORM_SANDBOX_IMAGES", "a list such as default=node:24,tools=me/tools:1", image)?;
    if !images.iter().any(|(name, _)| name == "default")
        && let Some((_, first)) = images.first()
    {
        images.push(("default".to_owned(), first.clone()));
    }
    Ok(images)
}

/// The domain whose hosts are sandboxes; nothing else of the platform is reached below it.
fn sandbox_public_domain(public_url: Option<&str>) -> Result<Option<String>> {
    let Some(text) = text("PLATFORM_SANDBOX_PUBLIC_DOMAIN") else { return Ok(None) };
    let domain = text.trim().to_ascii_lowercase();
    let good = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
    let is_label = |label: &str| !label.is_empty() && label.len() <= 63 && label.bytes().all(good);
    if domain.len() > 200 || !domain.split('.').all(is_label) || domain.parse::<IpAddr>().is_ok() {
        let wrong = format!("PLATFORM_SANDBOX_PUBLIC_DOMAIN: `{text}` is not a domain such as sandboxes.example.");
        return Err(ConfigError(wrong));
    }
    let public = public_url.and_then(|url| url::Url::parse(url).ok());
    // On one's own machine nothing else has a name.
    let is_shared = |host: &str| host.ends_with(&format!(".{domain}")) || (host == domain && domain != "localhost");
    if public.as_ref().and_then(url::Url::host_str).is_some_and(is_shared) {
        let wrong = "PLATFORM_SANDBOX_PUBLIC_DOMAIN: PLATFORM_PUBLIC_URL lies in it, so that a sandbox could take its place or \
            set its cookies; choose a domain of its own.";
        return Err(ConfigError(wrong.to_owned()));
    }
    Ok(Some(domain))
}

fn deliveries() -> Result<DeliveryRules> {
    Ok(DeliveryRules {
        waits: list("PLATFORM_WEBHOOK_RETRIES", "a list of waits such as 0s,5s,5m", wait)?,
        disable_after: duration("PLATFORM_WEBHOOK_DISABLE_AFTER")?,
        keep: days("PLATFORM_DELIVERY_DAYS")?,
    })
}

fn triggers() -> Result<TriggerRules> {
    Ok(TriggerRules {
        waits: list("PLATFORM_TRIGGER_RETRIES", "a list of waits such as 0s,10s,60s", wait)?,
        duplicate_window: duration("PLATFORM_TRIGGER_DUPLICATE_WINDOW")?,
        poll_interval: duration("PLATFORM_TRIGGER_POLL_INTERVAL")?,
        bytes_an_hour: number("PLATFORM_TRIGGER_BYTES_AN_HOUR", 0)?,
        keep: days("PLATFORM_DELIVERY_DAYS")?,
    })
}

fn mail() -> Result<Option<MailConfig>> {
    match (text("PLATFORM_SMTP_URL"), text("PLATFORM_MAIL_FROM")) {
        (None, _) => Ok(None),
        (Some(url), Some(from)) => Ok(Some(MailConfig { url: url.into(), from })),
        (Some(_), None) => {
            let missing = "PLATFORM_MAIL_FROM: it is required with PLATFORM_SMTP_URL, such as noreply@example.com.";
            Err(ConfigError(missing.to_owned()))
        }
    }
}

fn rates() -> Result<Rates> {
    Ok(Rates {
        full: rate("PLATFORM_RATE_FULL")?,
        restricted: rate("PLATFORM_RATE_RESTRICTED")?,
        session: rate("PLATFORM_RATE_SESSION")?,
        oauth: rate("PLATFORM_RATE_OAUTH")?,
        create_full: rate("PLATFORM_RATE_CREATE_FULL")?,
        create_key: rate("PLATFORM_RATE_CREATE_KEY")?,
        create_session: rate("PLATFORM_RATE_CREATE_SESSION")?,
        bad_credential: rate("PLATFORM_RATE_BAD_CREDENTIAL")?,
    })
}

fn trusted_issuer() -> Result<Option<TrustedIssuer>> {
    let Some(issuer) = text("PLATFORM_OAUTH_TRUSTED_ISSUER") else { return Ok(None) };
    let is_good = url::Url::parse(&issuer).is_ok_and(|url| match url.scheme() {
        "https" => true,
        "http" => match url.host() {
            Some(url::Host::Domain(name)) => name == "localhost",
            Some(url::Host::Ipv4(address)) => address.is_loopback(),
            Some(url::Host::Ipv6(address)) => address.is_loopback(),
            None => false,
        },
        _ => false,
    });
    if !is_good {
        let message = "PLATFORM_OAUTH_TRUSTED_ISSUER: it must be an https address; http only on this machine.";
        return Err(ConfigError(message.to_owned()));
    }
    let Some(audience) = text("PLATFORM_OAUTH_TRUSTED_AUDIENCE") else {
        let message = "PLATFORM_OAUTH_TRUSTED_AUDIENCE: it is required with PLATFORM_OAUTH_TRUSTED_ISSUER.";
        return Err(ConfigError(message.to_owned()));
    };
    let admin_claim = read("PLATFORM_OAUTH_TRUSTED_ADMIN_CLAIM", "name=value", |text| {
        if text.is_empty() {
            return Some(None);
        }
        let (name, value) = text.split_once('=')?;
        Some(Some((name.to_owned(), value.to_owned())))
    })?;
    Ok(Some(TrustedIssuer {
        issuer,
        audience,
        account: text("PLATFORM_OAUTH_TRUSTED_ACCOUNT").unwrap_or_default(),
        scope_claim: text("PLATFORM_OAUTH_TRUSTED_SCOPE_CLAIM").unwrap_or_default(),
        admin_claim,
    }))
}

fn field_limits() -> Result<FieldLimits> {
    Ok(FieldLimits {
        message_bytes: number("PLATFORM_LIMIT_MESSAGE_BYTES", 0)?,
        presets_bytes: number("PLATFORM_LIMIT_PRESETS_BYTES", 0)?,
        metadata_bytes: number("PLATFORM_LIMIT_METADATA_BYTES", 0)?,
        metadata_depth: number("PLATFORM_LIMIT_METADATA_DEPTH", 0)?,
        tags: number("PLATFORM_LIMIT_TAGS", 0)?,
        files_per_message: number("PLATFORM_LIMIT_FILES_PER_MESSAGE", 0)?,
        tools_per_server: number("PLATFORM_LIMIT_TOOLS_PER_SERVER", 0)?,
        webhooks: number("PLATFORM_LIMIT_WEBHOOKS", 0)?,
        env_vars: number("PLATFORM_LIMIT_ENV_VARS", 0)?,
        document_versions: number("PLATFORM_LIMIT_DOCUMENT_VERSIONS", 0)?,
        tool_response_bytes: number("PLATFORM_LIMIT_TOOL_RESPONSE_BYTES", 0)?,
        end_user_file_bytes: number("PLATFORM_LIMIT_END_USER_FILE_BYTES", 0)?,
    })
}

/// A key is never shown, not even a wrong one.
fn master_key(name: &str, text: &str) -> Result<SecretString> {
    match MasterKey::parse(text) {
        Some(_) => Ok(text.into()),
        None => Err(ConfigError(format!(
            "{name}: this is not 32 bytes in base64; `openssl rand -base64 32` prints such a key."
        ))),
    }
}

fn memory_limits() -> Result<MemoryLimits> {
    Ok(MemoryLimits {
        max_chars: number("PLATFORM_LIMIT_CORE_MEMORY_CHARS", 0)?,
        max_entries: number("PLATFORM_LIMIT_CORE_MEMORY_ENTRIES", 0)?,
        max_entry_chars: number("PLATFORM_LIMIT_CORE_MEMORY_ENTRY_CHARS", 0)?,
    })
}

fn speech() -> Result<Option<SpeechConfig>> {
    if text("PLATFORM_SPEECH_MODEL_PATH").is_some() {
        let none = "PLATFORM_SPEECH_MODEL_PATH: this build has no engine of its own; run a transcription server beside it, \
            such as whisper.cpp's, and set PLATFORM_SPEECH_URL.";
        return Err(ConfigError(none.to_owned()));
    }
    let Some(url) = text("PLATFORM_SPEECH_URL") else { return Ok(None) };
    check_url("PLATFORM_SPEECH_URL", &url)?;
    Ok(Some(SpeechConfig {
        url,
        api_key: text("PLATFORM_SPEECH_API_KEY").map(SecretString::from),
        model: text("PLATFORM_SPEECH_MODEL").unwrap_or_default(),
        longest: duration("PLATFORM_SPEECH_TIMEOUT")?,
    }))
}

fn models() -> Result<ModelsConfig> {
    let built_in = [
        ("openai", Protocol::OpenAi, "OPENAI", "https://api.openai.com/v1"),
        ("anthropic", Protocol::Anthropic, "ANTHROPIC", "https://api.anthropic.com"),
        ("gemini", Protocol::Gemini, "GEMINI", "https://generativelanguage.googleapis.com"),
    ];
    let mut providers = Vec::new();
    for (name, protocol, prefix, url) in built_in {
        let (key, base) = (text(&format!("{prefix}_API_KEY")), text(&format!("{prefix}_BASE_URL")));
        if key.is_some() || (base.is_some() && protocol == Protocol::OpenAi) {
            let base = base.unwrap_or_else(|| url.to_owned());
            check_url(&format!("{prefix}_BASE_URL"), &base)?;
            let mut provider = ProviderConfig::new(name, protocol, &base);
            provider.api_key = key.map(SecretString::from);
            providers.push(provider);
        }
    }
    if let Some(host) = text("OLLAMA_HOST") {
        let host = if host.contains("://") { host } else { format!("http://{host}") };
        check_url("OLLAMA_HOST", &host)?;
        let mut provider =
            ProviderConfig::new("ollama", Protocol::OpenAi, &format!("{}/v1", host.trim_end_matches('/')));
        provider.probed = true;
        providers.push(provider);
    }
    if let Some(path) = text("PLATFORM_PROVIDERS_FILE") {
        providers = read_providers_file(path.as_ref(), providers, variable)?;
    }
    let demo_price = read("PLATFORM_DEMO_PRICE", "input:output in USD per million tokens, such as 0.5:2", |text| {
        let (input, output) = text.split_once(':')?;
        let money = |text: &str| serde_json::from_str::<Money>(text).ok().filter(|money| money.nanos() >= 0);
        Some((money(input)?, money(output)?))
    })?;
    Ok(ModelsConfig {
        providers,
        default_provider: text("PLATFORM_DEFAULT_PROVIDER"),
        default_model: text("PLATFORM_DEFAULT_MODEL"),
        demo_price,
        secondary: choice("PLATFORM_SECONDARY_MODEL")?,
        evaluator: choice("PLATFORM_EVALUATOR_MODEL")?,
        speech: speech()?,
        embedding: choice("PLATFORM_EMBEDDING_MODEL")?.map(|(provider, model)| match provider.as_str() {
            "local" => EmbeddingChoice::Local(PathBuf::from(model)),
            _ => EmbeddingChoice::Provider(provider, model),
        }),
        limits: CallLimits {
            attempts: u32::try_from(number("PLATFORM_MODEL_ATTEMPTS", 1)?).unwrap_or(u32::MAX),
            first_byte: duration("PLATFORM_MODEL_FIRST_BYTE")?,
            idle: duration("PLATFORM_MODEL_IDLE")?,
            total: duration("PLATFORM_MODEL_TIMEOUT")?,
            concurrency: number("PLATFORM_MODEL_CONCURRENCY", 0)?,
            ..CallLimits::default()
        },
    })
}

fn check_url(name: &str, url: &str) -> Result<()> {
    let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    match rest {
        Some(rest) if !rest.is_empty() => Ok(()),
        _ => Err(ConfigError(format!("{name}: `{url}` is not an http or https address."))),
    }
}

/// The clients that this server has at apps: `PLATFORM_APP_<SLUG>_CLIENT_ID` and so on.
fn app_clients() -> Result<BTreeMap<String, AppClient>> {
    let of = "PLATFORM_APP_";
    let given: BTreeMap<String, String> = beginning(of).collect();
    let mut clients = BTreeMap::new();
    for (name, id) in &given {
        let Some(app) = name.strip_suffix("_CLIENT_ID") else { continue };
        let other = |end: &str| given.get(&format!("{app}_{end}")).map(|value| Secret::from(value.clone()));
        let missing = || ConfigError(format!("{of}{app}_CLIENT_SECRET is required together with the client's id."));
        let secret = other("CLIENT_SECRET").ok_or_else(missing)?;
        let client = AppClient { id: id.clone(), secret: Some(secret), signing_secret: other("SIGNING_SECRET") };
        clients.insert(app.to_lowercase().replace('_', "-"), client);
    }
    Ok(clients)
}
