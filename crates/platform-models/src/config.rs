use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use platform_core::Money;
use platform_runtime::Capabilities;
use secrecy::SecretString;
use serde::Deserialize;

use crate::SpeechConfig;

/// A setting that cannot be used; the sentence names it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(pub String);

/// Which wire a provider speaks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the names are the wire's")]
pub enum Protocol {
    #[default]
    OpenAi,
    Anthropic,
    Gemini,
    #[serde(skip)]
    Demo,
}

/// One provider and how to reach it.
#[derive(Debug, Clone)]
pub struct ProviderConfig {
    /// Name in requests and answers.
    pub name: String,
    /// Which wire it speaks.
    pub protocol: Protocol,
    /// Base address, without a slash at its end.
    pub base_url: String,
    /// Credential, when it wants one.
    pub api_key: Option<SecretString>,
    /// Extra request headers.
    pub headers: BTreeMap<String, String>,
    /// Longest call, instead of the general limit.
    pub timeout: Option<Duration>,
    /// Models it has, or corrections of bundled ones.
    pub models: Vec<FileModel>,
    /// Only usable while it answers (Ollama).
    pub probed: bool,
}

impl ProviderConfig {
    /// A provider without particulars.
    pub fn new(name: &str, protocol: Protocol, base_url: &str) -> Self {
        Self {
            name: name.to_owned(),
            protocol,
            base_url: base_url.trim_end_matches('/').to_owned(),
            api_key: None,
            headers: BTreeMap::new(),
            timeout: None,
            models: Vec::new(),
            probed: false,
        }
    }
}

/// Everything [`crate::Models`] needs to know.
#[derive(Debug, Clone)]
pub struct ModelsConfig {
    /// Providers in order of preference; `demo` is always there besides.
    pub providers: Vec<ProviderConfig>,
    /// `PLATFORM_DEFAULT_PROVIDER`.
    pub default_provider: Option<String>,
    /// `PLATFORM_DEFAULT_MODEL`.
    pub default_model: Option<String>,
    /// Input and output price of `demo` per million tokens.
    pub demo_price: (Money, Money),
    /// Provider and model of titles, summaries and compactions; absent = the turn's own.
    pub secondary: Option<(String, String)>,
    /// Provider and model of judges and evaluations; absent = the turn's own.
    pub evaluator: Option<(String, String)>,
    /// What turns texts into vectors; absent = nothing does.
    pub embedding: Option<EmbeddingChoice>,
    /// What turns recordings into text; absent = nothing does, beside the demo engine.
    pub speech: Option<SpeechConfig>,
    /// Bounds of every call.
    pub limits: CallLimits,
}

/// What turns texts into vectors (contract 06 §4).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EmbeddingChoice {
    /// A model of a provider: names of both.
    Provider(String, String),
    /// The table in this folder, in the layout of model2vec.
    Local(PathBuf),
}

impl Default for ModelsConfig {
    fn default() -> Self {
        Self {
            providers: Vec::new(),
            default_provider: None,
            default_model: None,
            demo_price: (Money::ZERO, Money::ZERO),
            secondary: None,
            evaluator: None,
            embedding: None,
            speech: None,
            limits: CallLimits::default(),
        }
    }
}

/// Bounds of every call (contract 18 §3).
#[derive(Debug, Clone, Copy)]
pub struct CallLimits {
    /// Tries before the next model is asked.
    pub attempts: u32,
    /// Longest wait for the first byte.
    pub first_byte: Duration,
    /// Longest silence after it.
    pub idle: Duration,
    /// Longest attempt.
    pub total: Duration,
    /// Calls at once per provider; 0 = no bound.
    pub concurrency: usize,
    /// Waits between attempts, before jitter.
    pub waits: [Duration; 2],
}

impl Default for CallLimits {
    fn default() -> Self {
        Self {
            attempts: 3,
            first_byte: Duration::from_mins(2),
            idle: Duration::from_mins(1),
            total: Duration::from_mins(10),
            concurrency: 64,
            waits: [Duration::from_secs(1), Duration::from_secs(4)],
        }
    }
}

/// A model as the providers file describes it.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FileModel {
    pub(crate) llm: String,
    pub(crate) context_window: Option<u64>,
    pub(crate) max_output_tokens: Option<u64>,
    #[serde(rename = "inputPricePerMTok")]
    pub(crate) input_price: Option<Money>,
    #[serde(rename = "outputPricePerMTok")]
    pub(crate) output_price: Option<Money>,
    #[serde(rename = "cachedInputPricePerMTok")]
    pub(crate) cached_input_price: Option<Money>,
    #[serde(rename = "cacheWritePricePerMTok")]
    pub(crate) cache_write_price: Option<Money>,
    #[serde(rename = "transcriptionPricePerMinute", default)]
    pub(crate) transcription_price: Money,
    #[serde(default)]
    pub(crate) embedding: bool,
    /// Of its vectors; of longer ones only so many of the first count.
    pub(crate) dimensions: Option<u32>,
    pub(crate) capabilities: Option<Capabilities>,
}

impl FileModel {
    fn has_negative_price(&self) -> bool {
        let Self { input_price, output_price, cached_input_price, cache_write_price, .. } = self;
        let given = [input_price, output_price, cached_input_price, cache_write_price].into_iter().flatten();
        given.chain([&self.transcription_price]).any(|price| *price < Money::ZERO)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    providers: Vec<FileProvider>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FileProvider {
    name: String,
    base_url: Option<String>,
    api_key: Option<String>,
    api_key_env: Option<String>,
    #[serde(default)]
    kind: Protocol,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    timeout_ms: Option<u64>,
    #[serde(default)]
    models: Vec<FileModel>,
}

/// Reads `PLATFORM_PROVIDERS_FILE` (YAML or JSON) and lays it over the providers of the variables:
/// entries of the file come first, in its order. `env` looks up the keys the file names.
pub fn read_providers_file(
    path: &Path,
    built_in: Vec<ProviderConfig>,
    env: impl Fn(&str) -> Option<String>,
) -> Result<Vec<ProviderConfig>, ConfigError> {
    let bad = |reason: String| ConfigError(format!("PLATFORM_PROVIDERS_FILE ({}): {reason}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|e| bad(e.to_string()))?;
    let file: File = serde_yaml_ng::from_str(&text).map_err(|e| bad(e.to_string()))?;
    let mut rest = built_in;
    let mut providers = Vec::new();
    for entry in file.providers {
        if let Some(model) = entry.models.iter().find(|model| model.has_negative_price()) {
            return Err(bad(format!("a price of {} is below zero", model.llm)));
        }
        let base = rest.iter().position(|known| known.name == entry.name).map(|known| rest.remove(known));
        providers.push(merge(entry, base, &env).map_err(bad)?);
    }
    providers.append(&mut rest);
    Ok(providers)
}

fn merge(
    entry: FileProvider,
    base: Option<ProviderConfig>,
    env: &impl Fn(&str) -> Option<String>,
) -> Result<ProviderConfig, String> {
    let name = entry.name;
    let form = !name.is_empty()
        && name.len() <= 32
        && name.bytes().next().is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_' || b == b'-');
    if !form {
        return Err(format!("the provider name `{name}` must match ^[a-z0-9][a-z0-9_-]{{0,31}}$"));
    }
    let mut provider = match base {
        Some(base) => base,
        None if name == "demo" => ProviderConfig::new("demo", Protocol::Demo, ""),
        None => {
            let known = match name.as_str() {
                "openai" => Some(("https://api.openai.com/v1", Protocol::OpenAi)),
                "anthropic" => Some(("https://api.anthropic.com", Protocol::Anthropic)),
                "gemini" => Some(("https://generativelanguage.googleapis.com", Protocol::Gemini)),
                _ => None,
            };
            let (url, protocol) = match (known, &entry.base_url) {
                (Some(known), _) => known,
                (None, Some(url)) => (url.as_str(), entry.kind),
                (None, None) => return Err(format!("the provider `{name}` has no baseUrl")),
            };
            ProviderConfig::new(&name, protocol, url)
        }
    };
    if provider.protocol != Protocol::Demo {
        if let Some(url) = entry.base_url {
            url.trim_end_matches('/').clone_into(&mut provider.base_url);
        }
        let key = match (entry.api_key, entry.api_key_env) {
            (Some(key), _) => Some(key),
            (None, Some(variable)) => {
                Some(env(&variable).ok_or(format!("the provider `{name}` names {variable}, which is not set"))?)
            }
            (None, None) => None,
        };
        provider.api_key = key.map(SecretString::from).or(provider.api_key);
        provider.headers.extend(entry.headers);
        provider.timeout = entry.timeout_ms.map(Duration::from_millis).or(provider.timeout);
    }
    provider.models = entry.models;
    Ok(provider)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_providers_file_adds_servers_and_corrects_built_in_ones() {
        let path = std::env::temp_dir().join(format!("providers-{}.yaml", std::process::id()));
        std::fs::write(
            &path,
            "providers:\n  - {name: local, baseUrl: 'http://127.0.0.1:1/v1/', apiKeyEnv: LOCAL_KEY, \
             models: [{llm: m, inputPricePerMTok: 1.5}]}\n  - {name: openai, apiKey: other}\n",
        )
        .expect("written");
        let mut openai = ProviderConfig::new("openai", Protocol::OpenAi, "https://api.openai.com/v1");
        openai.api_key = Some("first".into());
        let env = |name: &str| (name == "LOCAL_KEY").then(|| "secret".to_owned());
        let providers = read_providers_file(&path, vec![openai], env).expect("read");
        assert_eq!(providers.iter().map(|p| p.name.as_str()).collect::<Vec<_>>(), ["local", "openai"]);
        assert_eq!(providers[0].base_url, "http://127.0.0.1:1/v1");
        assert_eq!(providers[0].models[0].input_price, Some(Money::from_nanos(1_500_000_000)));
        assert_eq!(providers[1].api_key.as_ref().map(secrecy::ExposeSecret::expose_secret), Some("other"));
        assert!(!format!("{providers:?}").contains("secret"));

        std::fs::write(&path, "providers: [{name: local, baseUrl: x, colour: red}]").expect("written");
        let error = read_providers_file(&path, vec![], env).expect_err("unknown key");
        assert!(error.to_string().contains("PLATFORM_PROVIDERS_FILE") && error.to_string().contains("colour"));
        let cheap = "providers: [{name: local, baseUrl: 'http://x/', models: [{llm: m, outputPricePerMTok: -1}]}]";
        std::fs::write(&path, cheap).expect("written");
        let error = read_providers_file(&path, vec![], env).expect_err("below zero");
        assert!(error.to_string().contains("price of m"), "{error}");
        std::fs::remove_file(path).expect("removed");
    }
}
