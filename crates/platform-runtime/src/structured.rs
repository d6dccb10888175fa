use std::sync::Arc;

use platform_core::{AccountId, Checks, Object, Result, run_sized};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::{ChildPool, Schema};

/// Problems told to a model that is asked again.
const MAX_PROBLEMS: usize = 10;

/// The schema that final answers must satisfy (contract 02 §9).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct StructuredOutput {
    /// Whether it is asked for.
    #[serde(default = "yes")]
    #[schema(default = yes)]
    pub enabled: bool,
    /// Name of the result, for providers that want one.
    #[serde(default = "result")]
    #[schema(default = result)]
    pub name: String,
    /// JSON Schema 2020-12 of type object, at most 64 KiB, without remote `$ref`.
    #[schema(value_type = Object)]
    pub schema: Object,
    /// How often an invalid answer is asked for again, 0 to 3.
    #[serde(default = "one")]
    #[schema(default = one)]
    pub max_repairs: u32,
}

fn yes() -> bool {
    true
}
fn result() -> String {
    "result".to_owned()
}
fn one() -> u32 {
    1
}

impl StructuredOutput {
    /// Judges all fields but the schema, which [`crate::check_schema`] does.
    pub fn check(&self) -> Result<()> {
        let mut checks = Checks::default();
        checks.length("structuredOutput.name", &self.name, 1..=64);
        if !self.name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-') {
            checks.issue("structuredOutput.name", "format", "structuredOutput.name must match ^[A-Za-z0-9_-]{1,64}$");
        }
        checks.range("structuredOutput.maxRepairs", self.max_repairs, &(0..=3));
        checks.finish()
    }

    /// Ready for the turns of an account.
    pub fn ready(&self, children: &Arc<ChildPool>, account: &AccountId) -> Arc<OutputSchema> {
        Arc::new(OutputSchema {
            name: self.name.clone(),
            max_repairs: self.max_repairs,
            schema: Schema::new(Value::Object(self.schema.clone())),
            children: Arc::clone(children),
            account: account.clone(),
        })
    }
}

/// What an answer is that was held against its schema.
#[derive(Debug)]
pub enum Checked {
    /// The object that was wanted.
    Fits(Object),
    /// What is wrong with it, fit for the model.
    Misfit(String),
}

/// A [`StructuredOutput`] that answers are held against.
#[derive(Debug)]
pub struct OutputSchema {
    /// Name of the result.
    pub name: String,
    /// How often an invalid answer is asked for again.
    pub max_repairs: u32,
    schema: Schema,
    children: Arc<ChildPool>,
    account: AccountId,
}

impl OutputSchema {
    /// The schema as it was given.
    pub fn schema(&self) -> &Value {
        self.schema.source()
    }

    /// Reads an answer; a code fence around it is taken off.
    pub async fn check(&self, answer: &str) -> Result<Checked> {
        let text = unfenced(answer).to_owned();
        let parse = move || Ok(platform_core::parse::<Value>(text.as_bytes()));
        let value = match run_sized(answer.len(), parse).await? {
            Ok(value) => value,
            Err(error) => return Ok(Checked::Misfit(format!("The answer is not JSON: {error}."))),
        };
        let problems = self.schema.problems(&self.children, &self.account, &value, MAX_PROBLEMS).await;
        Ok(match value {
            Value::Object(object) if problems.is_empty() => Checked::Fits(object),
            _ => Checked::Misfit(problems.join("\n")),
        })
    }

    /// The answer without what JSON may write in two ways, so that whoever screens it sees what is said.
    pub fn canonical(&self, answer: &str) -> Option<String> {
        platform_core::parse::<Value>(unfenced(answer).as_bytes()).ok().map(|value| value.to_string())
    }

    /// What a model is told whose provider has no mode of its own for this.
    pub fn instruction(&self) -> String {
        format!(
            "Your final answer must be one JSON object that satisfies this JSON Schema, and nothing else: no prose, \
             no code fence.\n{}",
            self.schema()
        )
    }

    /// Whether every object in it names all it may hold and allows nothing else: what providers want of a
    /// schema that they enforce themselves.
    pub fn is_closed(&self) -> bool {
        is_closed(self.schema())
    }
}

/// Keywords that the providers take in a schema they enforce.
const ENFORCED: [&str; 13] = [
    "$defs",
    "$ref",
    "additionalProperties",
    "anyOf",
    "const",
    "description",
    "enum",
    "items",
    "properties",
    "required",
    "title",
    "type",
    "$schema",
];

fn is_closed(schema: &Value) -> bool {
    let Value::Object(fields) = schema else { return false };
    let is_object = match fields.get("type") {
        Some(Value::Array(types)) => types.contains(&Value::from("object")),
        Some(one) => one == "object",
        None => fields.contains_key("properties"),
    };
    let whole = fields.get("additionalProperties") == Some(&Value::Bool(false)) && requires_all(fields);
    let within = |name: &str| match fields.get(name) {
        Some(Value::Object(named)) if name != "items" => named.values().all(is_closed),
        Some(Value::Array(all)) => all.iter().all(is_closed),
        Some(one) => is_closed(one),
        None => true,
    };
    fields.keys().all(|name| ENFORCED.contains(&name.as_str()))
        && (!is_object || whole)
        && ["properties", "$defs", "anyOf", "items"].into_iter().all(within)
}

fn requires_all(object: &Object) -> bool {
    let required = object.get("required").and_then(Value::as_array);
    let required = |name: &String| required.is_some_and(|names| names.iter().any(|given| given == name));
    object.get("properties").and_then(Value::as_object).is_some_and(|fields| fields.keys().all(required))
}

fn unfenced(answer: &str) -> &str {
    let text = answer.trim();
    let Some(inner) = text.strip_prefix("```").and_then(|rest| rest.strip_suffix("```")) else { return text };
    inner.strip_prefix("json").unwrap_or(inner).trim()
}

#[cfg(test)]
mod tests {
    use super::*;
    use platform_child::Children;
    use serde_json::json;

    #[tokio::test]
    async fn answers_are_read_through_fences_and_told_what_is_wrong() {
        let schema = json!({"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}});
        let output: StructuredOutput = serde_json::from_value(json!({"schema": schema})).expect("a schema");
        let children = Arc::new(ChildPool::new(Children::new("/nowhere", ""), 1));
        let output = output.ready(&children, &AccountId::generate());
        let check = async |answer| output.check(answer).await.expect("checked");
        let fenced = check("```json\n{\"n\": 1}\n```").await;
        assert!(matches!(&fenced, Checked::Fits(object) if object["n"] == 1), "{fenced:?}");
        let no_integer = check("{\"n\": \"one\"}").await;
        assert!(matches!(&no_integer, Checked::Misfit(problems) if problems.starts_with("/n: ")), "{no_integer:?}");
        let no_json = check("Sure!").await;
        assert!(matches!(&no_json, Checked::Misfit(problems) if problems.contains("not JSON")), "{no_json:?}");
        assert!(!output.is_closed());
    }
}
