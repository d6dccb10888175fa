//! Vectors of texts: over the wire of a provider, or of a table on this machine.

use platform_runtime::{Embedding, ModelSpec, Usage};
use secrecy::ExposeSecret;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    broken::Broken,
    config::{Protocol, ProviderConfig},
};

/// Dimensions of a vector.
const MAX_DIMENSIONS: usize = 8192;

/// The request for vectors of some texts; `None`: the provider has none.
pub(crate) fn request(
    client: &reqwest::Client,
    provider: &ProviderConfig,
    model: &ModelSpec,
    texts: &[String],
) -> Option<reqwest::RequestBuilder> {
    let (base, llm) = (&provider.base_url, &*model.llm);
    let key = provider.api_key.as_ref().map(ExposeSecret::expose_secret);
    let mut request = match provider.protocol {
        Protocol::OpenAi => {
            let body = json!({"model": llm, "input": texts, "encoding_format": "float"});
            let request = client.post(format!("{base}/embeddings")).json(&body);
            match key {
                Some(key) => request.bearer_auth(key),
                None => request,
            }
        }
        Protocol::Gemini => {
            let name = format!("models/{llm}");
            let one = |text: &String| json!({"model": name, "content": {"parts": [{"text": text}]}});
            let body = json!({"requests": texts.iter().map(one).collect::<Vec<_>>()});
            let request = client.post(format!("{base}/v1beta/{name}:batchEmbedContents"));
            request.header("x-goog-api-key", key.unwrap_or_default()).json(&body)
        }
        Protocol::Anthropic | Protocol::Demo => return None,
    };
    for (name, value) in &provider.headers {
        request = request.header(name, value);
    }
    Some(request)
}

/// Whether a provider has embedding models at all.
pub(crate) fn has_embeddings(protocol: Protocol) -> bool {
    matches!(protocol, Protocol::OpenAi | Protocol::Gemini)
}

/// The answer of OpenAI's `/embeddings`, and of Gemini's `batchEmbedContents`.
#[derive(Deserialize)]
#[serde(untagged)]
enum Answer {
    OpenAi { data: Vec<Indexed>, usage: Option<Value> },
    Gemini { embeddings: Vec<Values> },
}

#[derive(Deserialize)]
struct Indexed {
    index: usize,
    embedding: Vec<f32>,
}

#[derive(Deserialize)]
struct Values {
    values: Vec<f32>,
}

/// Reads the vectors of `texts`; `dimensions`: only so many of the first, where the model is made for that.
pub(crate) fn read(
    body: &[u8],
    texts: &[String],
    model: &ModelSpec,
    dimensions: Option<usize>,
) -> Result<Embedding, Broken> {
    let answer = serde_json::from_slice(body).map_err(|_| Broken::protocol("the answer holds no vectors"))?;
    let (mut vectors, tokens) = match answer {
        Answer::OpenAi { mut data, usage } => {
            data.sort_by_key(|of| of.index);
            let tokens = usage.and_then(|usage| usage.get("prompt_tokens")?.as_u64());
            (data.into_iter().map(|of| of.embedding).collect::<Vec<_>>(), tokens)
        }
        Answer::Gemini { embeddings } => (embeddings.into_iter().map(|of| of.values).collect(), None),
    };
    let length = vectors.first().map_or(0, Vec::len);
    let fits = vectors.iter().all(|vector| vector.len() == length && vector.iter().all(|value| value.is_finite()));
    if vectors.len() != texts.len() || !(1..=MAX_DIMENSIONS).contains(&length) || !fits {
        return Err(Broken::protocol("the vectors do not fit what was asked"));
    }
    for vector in &mut vectors {
        vector.truncate(dimensions.unwrap_or(length).max(1));
        normalise(vector);
    }
    let bytes: usize = texts.iter().map(String::len).sum();
    let input_tokens = tokens.unwrap_or(bytes.div_ceil(4) as u64);
    let usage = Usage { input_tokens, ..Usage::default() }.normalised();
    Ok(Embedding { vectors, usage, cost: usage.cost(&model.prices) })
}

/// Makes a vector one of length 1; one without direction stays as it is.
pub(crate) fn normalise(vector: &mut [f32]) {
    let length = vector.iter().map(|value| value * value).sum::<f32>().sqrt();
    if length > 0.0 {
        for value in vector {
            *value /= length;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::unknown;

    #[test]
    fn vectors_are_read_in_the_order_of_their_texts_and_what_is_none_is_refused() {
        let (model, texts) = (unknown(&"p".into(), "m"), ["a".to_owned(), "b".to_owned()]);
        let body = r#"{"data": [{"index": 1, "embedding": [0, 2, 9]}, {"index": 0, "embedding": [3, 4, 9]}],
            "usage": {"prompt_tokens": 7}}"#;
        let read_with = |body: &str| read(body.as_bytes(), &texts, &model, Some(2));
        let embedding = read_with(body).expect("vectors");
        assert_eq!(embedding.vectors, [vec![0.6, 0.8], vec![0.0, 1.0]]);
        assert_eq!(embedding.usage.input_tokens, 7);
        let gemini = read_with(r#"{"embeddings": [{"values": [1, 0]}, {"values": [0, 1]}]}"#).expect("vectors");
        assert_eq!((gemini.vectors.len(), gemini.usage.input_tokens), (2, 1));
        for wrong in [r#"{"data": []}"#, r#"{"embeddings": [{"values": [1]}, {"values": [1, 2]}]}"#, "{}"] {
            assert!(read_with(wrong).is_err(), "{wrong}");
        }
    }
}
