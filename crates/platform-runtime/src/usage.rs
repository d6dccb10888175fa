use std::ops::AddAssign;

use platform_core::Money;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Prices, Prompt, ToolCall};

/// Tokens of one or more model calls (contract 00 §13). Input holds its cached parts,
/// output its reasoning part.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Usage {
    /// All prompt tokens, cached ones included.
    pub input_tokens: u64,
    /// All answer tokens, reasoning included.
    pub output_tokens: u64,
    /// Prompt tokens read from the provider's cache.
    pub input_cached_tokens: u64,
    /// Prompt tokens written to the provider's cache.
    pub input_cache_write_tokens: u64,
    /// Answer tokens the provider had cached.
    pub output_cached_tokens: u64,
    /// Answer tokens spent on reasoning.
    pub reasoning_output_tokens: u64,
    /// Input and output.
    pub total_tokens: u64,
}

/// Tokens of one call in one direction; what is said to be more is a mistake, and sums of it would not fit.
const MAX_TOKENS: u64 = 1 << 36;

impl Usage {
    /// Parts can never exceed their whole, the total is their sum, and no provider counts more than a model can read.
    #[must_use]
    pub fn normalised(mut self) -> Self {
        self.input_tokens = self.input_tokens.min(MAX_TOKENS);
        self.output_tokens = self.output_tokens.min(MAX_TOKENS);
        self.input_cached_tokens = self.input_cached_tokens.min(self.input_tokens);
        self.input_cache_write_tokens = self.input_cache_write_tokens.min(self.input_tokens - self.input_cached_tokens);
        self.output_cached_tokens = self.output_cached_tokens.min(self.output_tokens);
        self.reasoning_output_tokens = self.reasoning_output_tokens.min(self.output_tokens - self.output_cached_tokens);
        self.total_tokens = self.input_tokens.saturating_add(self.output_tokens);
        self
    }

    /// Four bytes a token, for an answer whose provider reports nothing (contract 00 §13).
    #[must_use]
    pub fn estimated(prompt: &Prompt, text: &str, tool_calls: &[ToolCall]) -> Self {
        let asked = prompt.system.len() + prompt.messages.iter().map(|message| message.text.len()).sum::<usize>();
        let arguments: usize = tool_calls.iter().map(|call| call.function.arguments.len()).sum();
        let tokens = |bytes: usize| bytes.div_ceil(4) as u64;
        Self { input_tokens: tokens(asked), output_tokens: tokens(text.len() + arguments), ..Self::default() }
            .normalised()
    }

    /// Cached tokens of both directions.
    pub fn total_cached_tokens(&self) -> u64 {
        self.input_cached_tokens.saturating_add(self.input_cache_write_tokens).saturating_add(self.output_cached_tokens)
    }

    /// What these tokens cost; each component in integers.
    pub fn cost(&self, prices: &Prices) -> Cost {
        let plain_input = self.input_tokens - self.input_cached_tokens - self.input_cache_write_tokens;
        let plain_output = self.output_tokens - self.output_cached_tokens - self.reasoning_output_tokens;
        let mut cost = Cost {
            input_cost: prices.input.per_million(plain_input),
            output_cost: prices.output.per_million(plain_output),
            input_cached_cost: prices.cached_input.per_million(self.input_cached_tokens),
            input_cache_write_cost: prices.cache_write.per_million(self.input_cache_write_tokens),
            output_cached_cost: prices.cached_input.per_million(self.output_cached_tokens),
            reasoning_output_cost: prices.output.per_million(self.reasoning_output_tokens),
            total_cost: Money::ZERO,
        };
        cost.total_cost = cost.input_cost
            + cost.output_cost
            + cost.input_cached_cost
            + cost.input_cache_write_cost
            + cost.output_cached_cost
            + cost.reasoning_output_cost;
        cost
    }
}

impl AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        let add = |sum: &mut u64, more: u64| *sum = sum.saturating_add(more);
        add(&mut self.input_tokens, other.input_tokens);
        add(&mut self.output_tokens, other.output_tokens);
        add(&mut self.input_cached_tokens, other.input_cached_tokens);
        add(&mut self.input_cache_write_tokens, other.input_cache_write_tokens);
        add(&mut self.output_cached_tokens, other.output_cached_tokens);
        add(&mut self.reasoning_output_tokens, other.reasoning_output_tokens);
        add(&mut self.total_tokens, other.total_tokens);
    }
}

/// US dollars of one or more model calls, by component (contract 00 §13).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Cost {
    /// Prompt tokens that were neither read from nor written to a cache.
    pub input_cost: Money,
    /// Answer tokens without reasoning and cached ones.
    pub output_cost: Money,
    /// Cached prompt tokens.
    pub input_cached_cost: Money,
    /// Prompt tokens written to the cache.
    pub input_cache_write_cost: Money,
    /// Cached answer tokens.
    pub output_cached_cost: Money,
    /// Reasoning tokens, at the output price.
    pub reasoning_output_cost: Money,
    /// The sum of the six.
    pub total_cost: Money,
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Self) {
        self.input_cost += other.input_cost;
        self.output_cost += other.output_cost;
        self.input_cached_cost += other.input_cached_cost;
        self.input_cache_write_cost += other.input_cache_write_cost;
        self.output_cached_cost += other.output_cached_cost;
        self.reasoning_output_cost += other.reasoning_output_cost;
        self.total_cost += other.total_cost;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_priced_once_and_add_up() {
        let usage = Usage {
            input_tokens: 1000,
            output_tokens: 50,
            input_cached_tokens: 400,
            input_cache_write_tokens: 100,
            reasoning_output_tokens: 20,
            ..Usage::default()
        }
        .normalised();
        let prices = Prices {
            input: Money::from_nanos(2_000_000_000),
            output: Money::from_nanos(8_000_000_000),
            cached_input: Money::from_nanos(500_000_000),
            cache_write: Money::from_nanos(2_500_000_000),
        };
        let cost = usage.cost(&prices);
        assert_eq!(cost.input_cost.nanos(), 1_000_000);
        assert_eq!(cost.input_cached_cost.nanos(), 200_000);
        assert_eq!(cost.input_cache_write_cost.nanos(), 250_000);
        assert_eq!(cost.output_cost.nanos(), 240_000);
        assert_eq!(cost.reasoning_output_cost.nanos(), 160_000);
        assert_eq!(cost.total_cost.nanos(), 1_850_000);
        assert_eq!(usage.total_tokens, 1050);
    }
}
