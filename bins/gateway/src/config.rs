//! Settings (contract 00 §14): read once, at start, from the environment alone.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use ipnet::IpNet;
use platform_auth::{KeySecret, TokenAlgorithm, TrustedIssuer};
use platform_core::{FieldLimits, Money};
use platform_egress::{Allowed, EgressRules};
use platform_limits::Rate;
use platform_mail::MailConfig;
use platform_models::{CallLimits, ConfigError, ModelsConfig, Protocol, ProviderConfig, read_providers_file};
use platform_vault::MasterKey;
use secrecy::SecretString;

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

/// All settings.
#[expect(missing_docs, reason = "each field is the setting of its name, described in SETTINGS")]
pub struct Config {
    pub addr: SocketAddr,
    pub public_url: Option<String>,
    pub role: Role,
    pub database_url: Option<String>,
    pub database_pool: usize,
    pub data_dir: PathBuf,
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
    pub bootstrap_key: Option<KeySecret>,
    pub max_json_bytes: usize,
    pub trusted_proxies: Vec<IpNet>,
    pub cors_origins: Vec<String>,
    pub egress: EgressRules,
    pub rates: Rates,
    pub streams_per_key: usize,
    pub streams_per_session: usize,
    pub limits: FieldLimits,
    pub client_tool_timeout: Duration,
    pub async_tool_timeout: Duration,
    pub approval_timeout: Duration,
    pub max_subagent_depth: usize,
    pub event_keep: Duration,
    pub mail: Option<MailConfig>,
    pub secret_key: Option<SecretString>,
    pub secret_key_previous: Vec<SecretString>,
    pub stream_frame_bytes: usize,
    pub sync_timeout: Duration,
    pub stream_lifetime: Duration,
    pub stream_keepalive: Duration,
    pub stream_coalesce: Duration,
    pub run_lease: Duration,
    pub run_heartbeat: Duration,
    pub run_max_attempts: i32,
    pub worker_concurrency: usize,
    pub models: ModelsConfig,
    pub docs_dir: Option<PathBuf>,
    pub log: String,
    pub shutdown_grace: Duration,
}

/// How often who may ask.
#[derive(Debug, Clone, Copy)]
pub struct Rates {
    /// Requests of a full key.
    pub full: Rate,
    /// Requests of a restricted key.
    pub restricted: Rate,
    /// Requests of the sessions of one end user.
    pub session: Rate,
    /// Requests of an application for one user.
    pub oauth: Rate,
    /// Messages of a full key.
    pub create_full: Rate,
    /// Messages of a restricted key.
    pub create_key: Rate,
    /// Messages of the sessions of one end user.
    pub create_session: Rate,
    /// Credentials that are no good, per client address.
    pub bad_credential: Rate,
}

/// Name, default, meaning. An empty default means absent.
const SETTINGS: &[(&str, &str, &str)] = &[
    ("PLATFORM_ADDR", "127.0.0.1:8080", "listen address"),
    ("PLATFORM_PUBLIC_URL", "", "base of emitted links (http://<addr>)"),
    ("PLATFORM_ROLE", "all", "all, api (HTTP only) or worker (runs only)"),
    ("DATABASE_URL", "", "PostgreSQL 15 or newer; absent: one of our own under the data directory"),
    ("PLATFORM_DATABASE_POOL", "32", "connections per process"),
    (
        "PLATFORM_NATS_URL",
        "",
        "NATS servers, separated by commas: what one process writes streams on all; else on its own",
    ),
    ("PLATFORM_DATA_DIR", "./.platform", "embedded database, first key, master key"),
    ("PLATFORM_KEY_PREFIX", "ak", "prefix of API keys"),
    ("PLATFORM_BOOTSTRAP_KEY", "", "value of a full key that is made at start"),
    ("PLATFORM_OAUTH_ALGORITHM", "eddsa", "how access tokens are signed: eddsa or rs256"),
    ("PLATFORM_OAUTH_ACCESS_TTL", "30m", "how long access tokens last"),
    ("PLATFORM_OAUTH_REFRESH_TTL", "30d", "how long a refresh token lasts that nobody uses"),
    ("PLATFORM_OAUTH_TRUSTED_ISSUER", "", "https address of another issuer whose access tokens are taken"),
    ("PLATFORM_OAUTH_TRUSTED_AUDIENCE", "", "what their aud must contain; required with the issuer"),
    ("PLATFORM_OAUTH_TRUSTED_ACCOUNT", "default", "clientUID or name of their account, or claim:<name>"),
    ("PLATFORM_OAUTH_TRUSTED_SCOPE_CLAIM", "scope", "their claim that holds scopes"),
    ("PLATFORM_OAUTH_TRUSTED_ADMIN_CLAIM", "", "name=value of the claim that makes an administrator"),
    ("PLATFORM_MAX_JSON_BYTES", "2097152", "largest JSON body"),
    ("PLATFORM_SYNC_TIMEOUT", "10m", "longest wait of a synchronous message"),
    ("PLATFORM_TRUSTED_PROXIES", "", "addresses or networks whose X-Forwarded-For counts, separated by commas"),
    ("PLATFORM_CORS_ORIGINS", "*", "origins that browsers may call from, separated by commas"),
    ("PLATFORM_ALLOW_PRIVATE_EGRESS", "false", "true: addresses that clients name may be inner ones"),
    ("PLATFORM_EGRESS_ALLOW", "", "inner hosts and networks that may be called, separated by commas"),
    ("PLATFORM_RATE_FULL", "6000:1000", "requests of a full key, per minute:burst; 0 = no bound, here and below"),
    ("PLATFORM_RATE_RESTRICTED", "600:100", "requests of a restricted key"),
    ("PLATFORM_RATE_OAUTH", "600:100", "requests of an application for one user"),
    ("PLATFORM_RATE_SESSION", "300:60", "requests of the sessions of one end user"),
    ("PLATFORM_RATE_CREATE_FULL", "0", "messages and threads of a full key"),
    (
        "PLATFORM_RATE_CREATE_KEY",
        "120:30",
        "messages and threads of a restricted key, or of an application for one user",
    ),
    ("PLATFORM_RATE_CREATE_SESSION", "30:8", "messages and threads of the sessions of one end user"),
    ("PLATFORM_RATE_BAD_CREDENTIAL", "60:20", "credentials that are no good, per client address"),
    ("PLATFORM_STREAMS_PER_KEY", "100", "open streams of a key in this process"),
    ("PLATFORM_STREAMS_PER_SESSION", "4", "open streams of a session in this process"),
    ("PLATFORM_LIMIT_MESSAGE_BYTES", "262144", "text of a message"),
    ("PLATFORM_LIMIT_PRESETS_BYTES", "262144", "system prompt"),
    ("PLATFORM_LIMIT_METADATA_BYTES", "65536", "metadata as JSON"),
    ("PLATFORM_LIMIT_METADATA_DEPTH", "10", "levels of metadata"),
    ("PLATFORM_LIMIT_TAGS", "50", "tags of a record"),
    ("PLATFORM_LIMIT_FILES_PER_MESSAGE", "20", "files of a message"),
    ("PLATFORM_LIMIT_EGRESS_BYTES", "10485760", "response of an address that a client named"),
    ("PLATFORM_LIMIT_STREAM_FRAME_BYTES", "8388608", "frame of a stream; above it only the newest messages"),
    (
        "PLATFORM_SECRET_KEY",
        "",
        "master key of secrets at rest, 32 bytes in base64; made in the data dir, required with DATABASE_URL",
    ),
    ("PLATFORM_SECRET_KEY_PREVIOUS", "", "older master keys, comma list: only to read what they sealed"),
    ("PLATFORM_CLIENT_TOOL_TIMEOUT", "15m", "a chat waits so long for its client's tools and approvals"),
    ("PLATFORM_ASYNC_TOOL_TIMEOUT", "15d", "a thread waits so long for the result of an asynchronous tool"),
    ("PLATFORM_APPROVAL_TIMEOUT", "15d", "a thread waits so long for an approval"),
    ("PLATFORM_MAX_SUBAGENT_DEPTH", "5", "how deep agents may hand work on"),
    ("PLATFORM_EVENT_DAYS", "30", "days for which events are kept"),
    ("PLATFORM_SMTP_URL", "", "smtp://user:password@host:587?tls=required or smtps://host; absent: no mail is sent"),
    ("PLATFORM_MAIL_FROM", "", "sender of mail, required with PLATFORM_SMTP_URL"),
    ("PLATFORM_LIMIT_TOOLS_PER_SERVER", "200", "tools of a tool server"),
    ("PLATFORM_LIMIT_TOOL_RESPONSE_BYTES", "1048576", "a longer tool result is cut"),
    ("PLATFORM_STREAM_LIFETIME", "60s", "a stream is closed after this"),
    ("PLATFORM_STREAM_KEEPALIVE", "15s", "a comment after so much silence"),
    ("PLATFORM_STREAM_COALESCE", "25ms", "growing text is sent at most so often"),
    ("PLATFORM_RUN_LEASE", "30s", "a silent worker's runs are taken over after this"),
    ("PLATFORM_RUN_HEARTBEAT", "10s", "how often leases are renewed"),
    ("PLATFORM_RUN_MAX_ATTEMPTS", "3", "a run lost so often ends in error"),
    ("PLATFORM_WORKER_CONCURRENCY", "256", "runs at once in this process"),
    ("OPENAI_API_KEY", "", "OpenAI; OPENAI_BASE_URL alone is enough for a server without keys"),
    ("OPENAI_BASE_URL", "", "https://api.openai.com/v1"),
    ("ANTHROPIC_API_KEY", "", "Anthropic"),
    ("ANTHROPIC_BASE_URL", "", "https://api.anthropic.com"),
    ("GEMINI_API_KEY", "", "Gemini"),
    ("GEMINI_BASE_URL", "", "https://generativelanguage.googleapis.com"),
    ("OLLAMA_HOST", "", "an Ollama server; probed at start and every 60 s"),
    ("PLATFORM_PROVIDERS_FILE", "", "more OpenAI-compatible servers, models and prices (YAML or JSON)"),
    ("PLATFORM_DEFAULT_PROVIDER", "", "the first configured one"),
    ("PLATFORM_DEFAULT_MODEL", "", "that provider's first model"),
    ("PLATFORM_SECONDARY_MODEL", "", "provider:model of titles, summaries, compaction; the turn's own"),
    ("PLATFORM_EVALUATOR_MODEL", "", "provider:model of judges; the turn's own"),
    ("PLATFORM_DEMO_PRICE", "0:0", "price of demo-1, input:output in USD per million tokens"),
    ("PLATFORM_MODEL_ATTEMPTS", "3", "tries before a fall-back is asked"),
    ("PLATFORM_MODEL_FIRST_BYTE", "120s", "longest wait for a model's first byte"),
    ("PLATFORM_MODEL_IDLE", "60s", "longest silence of a model after that"),
    ("PLATFORM_MODEL_TIMEOUT", "10m", "longest attempt"),
    ("PLATFORM_MODEL_CONCURRENCY", "64", "calls at once per provider; 0 = no bound"),
    ("PLATFORM_DOCS_DIR", "", "a directory of more documentation pages"),
    ("PLATFORM_METRICS", "off", "on: GET /metrics (OpenMetrics) on PLATFORM_METRICS_ADDR"),
    ("PLATFORM_METRICS_ADDR", "127.0.0.1:9090", "listen address of the metrics"),
    (
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "",
        "collector that gets traces by OTLP over HTTP, as http://localhost:4318; the other OTEL_ variables hold, too",
    ),
    ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "", "the same, with the whole path"),
    ("PLATFORM_LOG", "info", "log filter; JSON lines to stderr"),
    ("PLATFORM_SHUTDOWN_GRACE", "25s", "time to drain after SIGTERM"),
];

/// The table of settings, for `--help`.
pub fn help() -> String {
    let width = SETTINGS.iter().map(|(name, ..)| name.len()).max().unwrap_or(0);
    let mut text = "Settings (environment variables; durations as 250ms, 30s, 10m, 15d):\n".to_owned();
    for (name, default, meaning) in SETTINGS {
        let default = if default.is_empty() { String::new() } else { format!(" [{default}]") };
        text = format!("{text}  {name:width$}  {meaning}{default}\n");
    }
    text.push_str(
        "\nExamples:\n  platform-gateway                                  start; the log says where the first key is\n  \
         OPENAI_API_KEY=… platform-gateway                 answer with OpenAI's models\n  \
         DATABASE_URL=postgres://… platform-gateway serve  use a PostgreSQL of yours\n  \
         platform-gateway keys create --name ci            make another key",
    );
    text
}

type Result<T> = std::result::Result<T, ConfigError>;

#[expect(clippy::disallowed_methods, reason = "the one place that reads the environment")]
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The value of a setting, its default when it is not set, `None` when it has none.
fn text(name: &str) -> Option<String> {
    let (_, default, _) = SETTINGS.iter().find(|(known, ..)| *known == name).expect("a known setting");
    variable(name).or_else(|| (!default.is_empty()).then(|| (*default).to_owned()))
}

/// One of a few words, in any case.
fn one_of<T: Copy>(name: &str, words: &[(&str, T)]) -> Result<T> {
    let named: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
    let find = |text: &str| words.iter().find(|(word, _)| text.eq_ignore_ascii_case(word)).map(|(_, of)| *of);
    read(name, &named.join(" or "), find)
}

fn read<T>(name: &str, what: &str, parse: impl Fn(&str) -> Option<T>) -> Result<T> {
    let value = text(name).unwrap_or_default();
    parse(value.trim()).ok_or_else(|| ConfigError(format!("{name}: `{value}` is not {what}.")))
}

/// Whether somebody collects traces; the library reads where.
fn collects_traces() -> Result<bool> {
    let mut collects = false;
    for name in ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] {
        let Some(endpoint) = text(name) else { continue };
        if !url::Url::parse(&endpoint).is_ok_and(|url| matches!(url.scheme(), "http" | "https")) {
            return Err(ConfigError(format!("{name}: it must be such as http://localhost:4318.")));
        }
        collects = true;
    }
    Ok(collects)
}

fn number(name: &str, least: usize) -> Result<usize> {
    let what = if least == 0 { "a whole number" } else { "a whole number of 1 or more" };
    read(name, what, |text| text.parse().ok().filter(|number| *number >= least))
}

fn rate(name: &str) -> Result<Rate> {
    read(name, "a rate such as 6000:1000 (per minute:burst), or 0", Rate::parse)
}

fn list<T>(name: &str, what: &str, parse: impl Fn(&str) -> Option<T>) -> Result<Vec<T>> {
    read(name, what, |text| {
        text.split(',').map(str::trim).filter(|element| !element.is_empty()).map(&parse).collect::<Option<Vec<T>>>()
    })
}

/// `provider:model`.
fn choice(name: &str) -> Result<Option<(String, String)>> {
    let Some(text) = text(name) else { return Ok(None) };
    match text.split_once(':') {
        Some((provider, model)) if !provider.is_empty() && !model.is_empty() => {
            Ok(Some((provider.to_owned(), model.to_owned())))
        }
        _ => Err(ConfigError(format!("{name}: `{text}` is not provider:model."))),
    }
}

fn duration(name: &str) -> Result<Duration> {
    read(name, "a duration such as 250ms, 30s, 10m or 15d", |text| {
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let number: u64 = digits.parse().ok()?;
        match &text[digits.len()..] {
            "ms" => Some(Duration::from_millis(number)),
            "s" => Some(Duration::from_secs(number)),
            "m" => number.checked_mul(60).map(Duration::from_secs),
            "h" => number.checked_mul(3600).map(Duration::from_secs),
            "d" => number.checked_mul(86_400).map(Duration::from_secs),
            _ => None,
        }
    })
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
        let metrics_addr =
            read("PLATFORM_METRICS_ADDR", "an address such as 127.0.0.1:9090", |text| text.parse().ok())?;
        Ok(Self {
            nats_url: text("PLATFORM_NATS_URL").map(SecretString::from),
            traces: collects_traces()?,
            metrics_addr: has_metrics.then_some(metrics_addr),
            public_url: text("PLATFORM_PUBLIC_URL").map(|url| url.trim_end_matches('/').to_owned()),
            addr,
            role,
            database_url,
            database_pool: number("PLATFORM_DATABASE_POOL", 1)?,
            data_dir: PathBuf::from(text("PLATFORM_DATA_DIR").unwrap_or_default()),
            key_prefix,
            token_algorithm: one_of(
                "PLATFORM_OAUTH_ALGORITHM",
                &[("eddsa", TokenAlgorithm::EdDsa), ("rs256", TokenAlgorithm::Rs256)],
            )?,
            access_ttl: duration("PLATFORM_OAUTH_ACCESS_TTL")?,
            refresh_ttl: duration("PLATFORM_OAUTH_REFRESH_TTL")?,
            trusted_issuer: trusted_issuer()?,
            bootstrap_key,
            max_json_bytes: number("PLATFORM_MAX_JSON_BYTES", 1)?,
            trusted_proxies: list("PLATFORM_TRUSTED_PROXIES", "a list of addresses or networks", |text| {
                text.parse().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from))
            })?,
            cors_origins: list(
                "PLATFORM_CORS_ORIGINS",
                "`*` or a list of origins such as https://app.example",
                |text| {
                    let good = text == "*" || (text.contains("://") && !text.ends_with('/'));
                    good.then(|| text.to_owned())
                },
            )?,
            egress: EgressRules {
                allow_private: read("PLATFORM_ALLOW_PRIVATE_EGRESS", "true or false", |text| text.parse().ok())?,
                allow: list("PLATFORM_EGRESS_ALLOW", "a list of hosts and networks", Allowed::parse)?,
                most_bytes: number("PLATFORM_LIMIT_EGRESS_BYTES", 0)?,
            },
            rates: rates()?,
            streams_per_key: number("PLATFORM_STREAMS_PER_KEY", 0)?,
            streams_per_session: number("PLATFORM_STREAMS_PER_SESSION", 0)?,
            limits: field_limits()?,
            client_tool_timeout: duration("PLATFORM_CLIENT_TOOL_TIMEOUT")?,
            async_tool_timeout: duration("PLATFORM_ASYNC_TOOL_TIMEOUT")?,
            approval_timeout: duration("PLATFORM_APPROVAL_TIMEOUT")?,
            max_subagent_depth: number("PLATFORM_MAX_SUBAGENT_DEPTH", 0)?,
            event_keep: Duration::from_hours(24 * number("PLATFORM_EVENT_DAYS", 1)? as u64),
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
            stream_lifetime: duration("PLATFORM_STREAM_LIFETIME")?,
            stream_keepalive: duration("PLATFORM_STREAM_KEEPALIVE")?,
            stream_coalesce: duration("PLATFORM_STREAM_COALESCE")?,
            run_lease,
            run_heartbeat,
            run_max_attempts: i32::try_from(number("PLATFORM_RUN_MAX_ATTEMPTS", 1)?).unwrap_or(i32::MAX),
            worker_concurrency: number("PLATFORM_WORKER_CONCURRENCY", 1)?,
            models: models()?,
            docs_dir: text("PLATFORM_DOCS_DIR").map(PathBuf::from),
            log: text("PLATFORM_LOG").unwrap_or_default(),
            shutdown_grace: duration("PLATFORM_SHUTDOWN_GRACE")?,
        })
    }
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
        tool_response_bytes: number("PLATFORM_LIMIT_TOOL_RESPONSE_BYTES", 0)?,
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
