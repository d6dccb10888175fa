use std::sync::Arc;

use genai_prices::{Calculator, PriceRequest, Usage, UsageKey};
use platform_core::Money;
use platform_runtime::{Capabilities, ModelSpec, Prices};
use serde::Serialize;
use utoipa::ToSchema;

use crate::config::FileModel;

/// A model as `GET /v1/models` shows it (contract 18 §2); prices in US dollars per million tokens.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelRecord {
    /// Provider name.
    pub provider: String,
    /// Model name.
    pub llm: String,
    /// Tokens that fit into one call.
    pub context_window: u64,
    /// Longest answer in tokens.
    pub max_output_tokens: u64,
    /// Price of prompt tokens.
    #[serde(rename = "inputPricePerMTok")]
    pub input_price: Money,
    /// Price of answer tokens.
    #[serde(rename = "outputPricePerMTok")]
    pub output_price: Money,
    /// Price of prompt tokens read from the cache.
    #[serde(rename = "cachedInputPricePerMTok")]
    pub cached_input_price: Money,
    /// Price of prompt tokens written to the cache.
    #[serde(rename = "cacheWritePricePerMTok")]
    pub cache_write_price: Money,
    /// What it can do.
    pub capabilities: Capabilities,
}

/// The model that is used when nobody names one.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct DefaultModel {
    /// Provider name.
    pub provider: String,
    /// Model name.
    pub llm: String,
}

/// Answer of `GET /v1/models`.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ModelList {
    /// All usable models, by provider and name.
    pub models: Vec<ModelRecord>,
    /// The server's default.
    pub default: DefaultModel,
}

impl From<&ModelSpec> for ModelRecord {
    fn from(spec: &ModelSpec) -> Self {
        Self {
            provider: spec.provider.to_string(),
            llm: spec.llm.to_string(),
            context_window: spec.context_window,
            max_output_tokens: spec.max_output_tokens,
            input_price: spec.prices.input,
            output_price: spec.prices.output,
            cached_input_price: spec.prices.cached_input,
            cache_write_price: spec.prices.cache_write,
            capabilities: spec.capabilities,
        }
    }
}

/// Name of a built-in provider in the price table, and the models to prefer as its default.
fn table_name(provider: &str) -> Option<(&'static str, &'static [&'static str])> {
    match provider {
        "openai" => Some(("openai", &["gpt-5-mini", "gpt-5", "gpt-4.1", "gpt-4o"])),
        "anthropic" => Some(("anthropic", &["claude-sonnet-4-5", "claude-sonnet-4-0", "claude-haiku-4-5"])),
        "gemini" => Some(("google", &["gemini-2.5-flash", "gemini-2.5-pro", "gemini-2.0-flash"])),
        _ => None,
    }
}

/// The bundled models of a provider, its preferred one first.
pub(crate) fn bundled_models(provider: &Arc<str>) -> Vec<ModelSpec> {
    let Some((table, preferred)) = table_name(provider) else { return Vec::new() };
    let Some(info) = Calculator::bundled().providers().find(|info| info.id() == table) else { return Vec::new() };
    let mut models: Vec<ModelSpec> = info
        .models()
        .filter(|model| is_chat_model(model.id()))
        .filter_map(|model| bundled_model(provider, model.id()))
        .collect();
    let rank = |spec: &ModelSpec| preferred.iter().position(|name| *name == &*spec.llm).unwrap_or(usize::MAX);
    models.sort_by_key(rank);
    models
}

/// A model of the bundled table, by its name or a dated form of it.
pub(crate) fn bundled_model(provider: &Arc<str>, llm: &str) -> Option<ModelSpec> {
    let (table, _) = table_name(provider)?;
    let tokens = |input: f64, cached: f64, written: f64, output: f64| {
        let mut usage = Usage::from([(UsageKey::INPUT_TOKENS, input), (UsageKey::OUTPUT_TOKENS, output)]);
        usage.insert("cache_read_tokens", cached);
        usage.insert("cache_write_tokens", written);
        let price = genai_prices::calculate(&PriceRequest::new(llm, &usage).with_provider_id(table)).ok()?;
        Some((price.total_price, price.model_id))
    };
    // A thousand tokens stay below every volume tier.
    let price = |found: Option<(f64, String)>| found.map_or(Money::ZERO, |(dollars, _)| million(dollars));
    let (input, id) = tokens(1000.0, 0.0, 0.0, 0.0)?;
    let prices = Prices {
        input: million(input),
        output: price(tokens(0.0, 0.0, 0.0, 1000.0)),
        cached_input: price(tokens(1000.0, 1000.0, 0.0, 0.0)),
        cache_write: price(tokens(1000.0, 0.0, 1000.0, 0.0)),
    };
    let info = Calculator::bundled().providers().find(|info| info.id() == table)?;
    let window = info.models().find(|model| model.id() == id).and_then(genai_prices::ModelInfo::context_window);
    let (max_output_tokens, capabilities) = abilities(llm);
    let context_window = window.unwrap_or(128_000);
    Some(ModelSpec {
        provider: Arc::clone(provider),
        llm: llm.into(),
        context_window,
        max_output_tokens: max_output_tokens.min(context_window),
        prices,
        capabilities,
    })
}

fn million(dollars_per_thousand: f64) -> Money {
    #[expect(clippy::cast_possible_truncation, reason = "prices are small")]
    Money::from_nanos((dollars_per_thousand * 1e12).round() as i64)
}

/// What the price table does not say: longest answer and capabilities, by family.
fn abilities(llm: &str) -> (u64, Capabilities) {
    let starts = |prefixes: &[&str]| prefixes.iter().any(|prefix| llm.starts_with(prefix));
    let old_claude = starts(&["claude-3-haiku", "claude-3-opus", "claude-3-sonnet", "claude-2", "claude-instant"]);
    let max_output = if starts(&["gpt-5"]) {
        128_000
    } else if starts(&["o1", "o3", "o4"]) {
        100_000
    } else if starts(&["gpt-4.1"]) {
        32_768
    } else if starts(&["gpt-4o"]) {
        16_384
    } else if starts(&["claude-3-5"]) {
        8192
    } else if starts(&["claude"]) && !old_claude {
        32_000
    } else if starts(&["gemini-2.5", "gemini-3"]) {
        65_536
    } else if starts(&["gemini"]) {
        8192
    } else {
        4096
    };
    let reasoning = starts(&["o1", "o3", "o4", "gpt-5", "claude-3-7", "gemini-2.5", "gemini-3"])
        || (starts(&["claude"]) && !old_claude && !starts(&["claude-3"]));
    let vision = reasoning || starts(&["gpt-4o", "gpt-4.1", "claude-3", "gemini"]);
    (max_output, Capabilities { tools: true, vision, streaming: true, reasoning })
}

fn is_chat_model(id: &str) -> bool {
    const OTHERS: [&str; 18] = [
        "embed",
        "tts",
        "whisper",
        "dall-e",
        "image",
        "audio",
        "realtime",
        "moderation",
        "transcribe",
        "search",
        "sora",
        "veo",
        "imagen",
        "davinci",
        "babbage",
        "ada",
        "curie",
        "instruct",
    ];
    !OTHERS.iter().any(|other| id.contains(other))
}

/// Lays what the providers file says over what is known.
pub(crate) fn with_file(base: Option<ModelSpec>, provider: &Arc<str>, file: &FileModel) -> ModelSpec {
    let base = base.unwrap_or_else(|| unknown(provider, &file.llm));
    ModelSpec {
        context_window: file.context_window.unwrap_or(base.context_window),
        max_output_tokens: file.max_output_tokens.unwrap_or(base.max_output_tokens),
        prices: Prices {
            input: file.input_price.unwrap_or(base.prices.input),
            output: file.output_price.unwrap_or(base.prices.output),
            cached_input: file.cached_input_price.unwrap_or(base.prices.cached_input),
            cache_write: file.cache_write_price.unwrap_or(base.prices.cache_write),
        },
        capabilities: file.capabilities.unwrap_or(base.capabilities),
        ..base
    }
}

/// A model of which only the name is known.
pub(crate) fn unknown(provider: &Arc<str>, llm: &str) -> ModelSpec {
    ModelSpec {
        provider: Arc::clone(provider),
        llm: llm.into(),
        context_window: 8192,
        max_output_tokens: 4096,
        prices: Prices::default(),
        capabilities: Capabilities::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bundled_table_prices_each_component() {
        let spec = bundled_model(&"openai".into(), "gpt-4o-2024-08-06").expect("a known model");
        assert_eq!(spec.prices.input.nanos(), 2_500_000_000);
        assert_eq!(spec.prices.cached_input.nanos(), 1_250_000_000);
        assert_eq!(spec.prices.output.nanos(), 10_000_000_000);
        assert!(bundled_model(&"openai".into(), "no-such-model").is_none());
        for provider in ["openai", "anthropic", "gemini"] {
            let models = bundled_models(&provider.into());
            assert!(models.len() > 5, "{provider} has {}", models.len());
            assert!(models.iter().all(|spec| spec.context_window > 0));
        }
    }
}
