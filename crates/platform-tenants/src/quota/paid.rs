//! Model calls that are counted.

use std::sync::Arc;

use async_trait::async_trait;
use platform_core::{AccountId, Error, Money, spawn};
use platform_runtime::{
    Answer, Audio, Catalog, Charge, Delta, Embedding, Fault, FaultCode, Model, ModelSpec, Payer, Prompt, Transcription,
    Usage, UsageLedger,
};
use tracing::error;

use super::Inner;

/// A model whose calls are counted.
pub(super) struct Paid {
    pub quotas: Arc<Inner>,
    pub model: Arc<dyn Model>,
    pub payer: Payer,
    pub ledger: Arc<UsageLedger>,
    /// Nobody else stores what calls took.
    pub at_once: bool,
}

#[async_trait]
impl Model for Paid {
    fn catalog(&self) -> &dyn Catalog {
        self.model.catalog()
    }

    fn of(self: Arc<Self>, _account: &AccountId) -> Arc<dyn Model> {
        self
    }

    async fn answer(
        &self,
        prompt: &Prompt,
        on: &mut (dyn for<'d> FnMut(Delta<'d>) + Send),
    ) -> std::result::Result<Answer, Fault> {
        let (model, is_secondary) = (&prompt.model, prompt.operation.is_some());
        let charge = match self.ledger.held() {
            Some(charge) => charge,
            None => self.reserve(model, is_secondary, Money::ZERO).await?,
        };
        let asked = Usage::estimated(prompt, "", &[]);
        let asked = (asked, Money::ZERO);
        let mut call = Call { paid: self, model, is_secondary, asked, charge: Some(charge), written: 0 };
        let mut count = |delta: Delta<'_>| {
            call.written += match delta {
                Delta::Text(text) => text.len(),
                Delta::ToolCall { arguments, .. } => arguments.len(),
            };
            on(delta);
        };
        let answer = self.model.answer(prompt, &mut count).await;
        let took = match &answer {
            Ok(answer) => Some(answer),
            Err(fault) => fault.partial.as_deref(),
        };
        let took = took.map_or((Usage::default(), Money::ZERO), |answer| (answer.usage, answer.cost.total_cost));
        call.settle(took.0, took.1);
        drop(call);
        if self.at_once {
            self.store().await;
        }
        answer
    }

    async fn embed(&self, texts: &[String]) -> std::result::Result<Embedding, Fault> {
        let Some(model) = self.model.catalog().embedder() else { return self.model.embed(texts).await };
        let bytes: usize = texts.iter().map(String::len).sum();
        let asked = Usage { input_tokens: bytes.div_ceil(4) as u64, ..Usage::default() };
        let took = |embedding: &Embedding| (embedding.usage, embedding.cost.total_cost);
        self.secondary(&model, (asked, Money::ZERO), self.model.embed(texts), took).await
    }

    async fn transcribe(&self, audio: &Audio) -> std::result::Result<Transcription, Fault> {
        let Some(model) = self.model.catalog().transcriber() else { return self.model.transcribe(audio).await };
        let took = |heard: &Transcription| (heard.usage, heard.cost.total_cost);
        let asked = self.model.catalog().transcription_cost(audio.duration.unwrap_or_default());
        self.secondary(&model, (Usage::default(), asked), self.model.transcribe(audio), took).await
    }
}

impl Paid {
    /// Makes a call that is none of a turn; `asked`: what it takes when it is broken off.
    async fn secondary<T>(
        &self,
        model: &ModelSpec,
        asked: (Usage, Money),
        call: impl Future<Output = std::result::Result<T, Fault>>,
        took: impl Fn(&T) -> (Usage, Money),
    ) -> std::result::Result<T, Fault> {
        let charge = self.reserve(model, true, asked.1).await?;
        let mut under_way = Call { paid: self, model, is_secondary: true, asked, charge: Some(charge), written: 0 };
        let outcome = call.await;
        let (usage, cost) = outcome.as_ref().map(took).unwrap_or_default();
        under_way.settle(usage, cost);
        drop(under_way);
        if self.at_once {
            self.store().await;
        }
        outcome
    }

    /// `price`: what it takes beside tokens, known beforehand.
    async fn reserve(&self, model: &ModelSpec, is_secondary: bool, price: Money) -> std::result::Result<Charge, Fault> {
        let away = |error: Error| {
            error!(%error, "A quota could not be looked at; the call is not made.");
            Fault::of(FaultCode::Unavailable, "The quotas cannot be reached at the moment.", &model.provider)
        };
        let charge = self.quotas.charge(&self.payer, model, is_secondary, price).await.map_err(away)?;
        if charge.reserve.is_some()
            && let Some(refusal) = self.quotas.reserving.write(charge.clone()).await.map_err(away)?
        {
            return Err(Fault::refused(refusal, &model.provider));
        }
        Ok(charge)
    }

    /// Stores what calls took and nobody has stored.
    async fn store(&self) {
        for took in self.ledger.take() {
            if self.quotas.settling.write(Arc::clone(&took)).await.is_err() {
                self.ledger.add(took);
            }
        }
    }
}

impl Drop for Paid {
    fn drop(&mut self) {
        self.ledger.let_go();
        let left = self.ledger.take();
        if left.is_empty() {
            return;
        }
        let quotas = Arc::clone(&self.quotas);
        spawn("settle", async move {
            for took in left {
                quotas.settle(took).await;
            }
        });
    }
}

/// A call under way. One that is broken off is settled by what it was asked and what it wrote.
struct Call<'a> {
    paid: &'a Paid,
    model: &'a ModelSpec,
    is_secondary: bool,
    /// The second: what has another price than tokens.
    asked: (Usage, Money),
    charge: Option<Charge>,
    written: usize,
}

impl Call<'_> {
    fn settle(&mut self, usage: Usage, cost: Money) {
        let Some(charge) = self.charge.take() else { return };
        let (tokens, nanos) = (usage.input_tokens.saturating_add(usage.output_tokens), cost.nanos());
        let is_secondary = self.is_secondary;
        if tokens > 0 && self.paid.payer.tenant_id.is_some() {
            self.paid.quotas.learn(&self.paid.payer, is_secondary, i64::try_from(tokens).unwrap_or(i64::MAX), nanos);
        }
        self.paid.ledger.add(charge.note.took(&usage, cost, is_secondary));
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if self.charge.is_some() {
            let (asked, beside) = self.asked;
            let usage = Usage { output_tokens: self.written.div_ceil(4) as u64, ..asked }.normalised();
            let cost = usage.cost(&self.model.prices).total_cost + beside;
            self.settle(usage, cost);
        }
    }
}
