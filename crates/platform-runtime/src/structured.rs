use std::{collections::HashMap, sync::Arc, time::Duration};

use jsonschema::{Draft, PatternOptions, Validator};
use platform_core::{Checks, Code, Error, Object, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

const SCHEMA_BYTES: usize = 65_536;
/// Problems told to a model that is asked again.
const MOST_PROBLEMS: usize = 10;
/// Schemas one value may be checked against, a pattern counting as more.
const MOST_STEPS: u64 = 20_000;
const PATTERN_STEPS: u64 = 100;
/// Longest check of an answer.
const LONGEST_CHECK: Duration = Duration::from_secs(5);
/// Compiled size of a pattern, in bytes.
const PATTERN_BYTES: usize = 1 << 18;

/// The schema that final answers must satisfy (contract 02 §9).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct StructuredOutput {
    /// Whether it is asked for.
    #[serde(default = "yes")]
    pub enabled: bool,
    /// Name of the result, for providers that want one.
    #[serde(default = "result")]
    pub name: String,
    /// JSON Schema 2020-12 of type object, at most 64 KiB, without remote `$ref`.
    #[schema(value_type = Object)]
    pub schema: Object,
    /// How often an invalid answer is asked for again, 0 to 3.
    #[serde(default = "one")]
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
    /// Judges the fields and compiles the schema; `INVALID_SCHEMA` when it cannot be used.
    pub fn compile(&self) -> Result<Arc<OutputSchema>> {
        let mut checks = Checks::default();
        checks.length("structuredOutput.name", &self.name, 1..=64);
        if !self.name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-') {
            checks.issue("structuredOutput.name", "format", "structuredOutput.name must match ^[A-Za-z0-9_-]{1,64}$");
        }
        checks.range("structuredOutput.maxRepairs", self.max_repairs, &(0..=3));
        checks.finish()?;
        let schema = Value::Object(self.schema.clone());
        let validator = compile_schema("structuredOutput.schema", &schema)?;
        Ok(Arc::new(OutputSchema { name: self.name.clone(), schema, max_repairs: self.max_repairs, validator }))
    }
}

/// Compiles a schema that a client gave; `INVALID_SCHEMA` when it is none of type object.
pub fn compile_schema(path: &str, schema: &Value) -> Result<Validator> {
    let invalid = |reason: String| {
        let mut checks = Checks::default();
        checks.issue(path, "format", format!("{path} {reason}"));
        checks.finish_as(Code::InvalidSchema).expect_err("an issue was recorded")
    };
    if schema.to_string().len() > SCHEMA_BYTES {
        return Err(invalid(format!("must have at most {SCHEMA_BYTES} bytes")));
    }
    if schema.get("type") != Some(&Value::from("object")) {
        return Err(invalid("must be a JSON Schema of type object".to_owned()));
    }
    if let Some(reference) = remote_reference(schema) {
        return Err(invalid(format!("must not refer to `{reference}`: only references within the schema (#…) work")));
    }
    if expansion(schema, schema, &mut HashMap::new()) > MOST_STEPS {
        return Err(invalid(format!(
            "refers to itself so often that checking an answer would take over {MOST_STEPS} steps"
        )));
    }
    let patterns = PatternOptions::regex().size_limit(PATTERN_BYTES).dfa_size_limit(PATTERN_BYTES);
    let options = jsonschema::options().with_draft(Draft::Draft202012).with_pattern_options(patterns);
    options.build(schema).map_err(|error| invalid(format!("is no valid JSON Schema 2020-12: {error}")))
}

/// What is wrong with a value, at most `most` sentences. Looked at beside the threads that serve others, and not
/// for ever: some schemas take exponential time.
pub async fn problems(validator: Arc<Validator>, value: Value, most: usize) -> Vec<String> {
    let checked = tokio::task::spawn_blocking(move || sentences(&validator, &value, most));
    match tokio::time::timeout(LONGEST_CHECK, checked).await {
        Ok(Ok(problems)) => problems,
        _ => vec!["The value could not be checked in time; use a simpler schema.".to_owned()],
    }
}

fn sentences(validator: &Validator, value: &Value, most: usize) -> Vec<String> {
    let sentence = |error: jsonschema::ValidationError<'_>| {
        let path = error.instance_path().as_str();
        format!("{}: {error}", if path.is_empty() { "/" } else { path })
    };
    validator.iter_errors(value).take(most).map(sentence).collect()
}

/// How many schemas one value may have to be checked against: each reference counts as all it leads to.
fn expansion<'a>(schema: &'a Value, root: &'a Value, known: &mut HashMap<&'a str, u64>) -> u64 {
    match schema {
        Value::Array(items) => items.iter().fold(0, |sum, item| sum.saturating_add(expansion(item, root, known))),
        Value::Object(fields) => fields.iter().fold(1, |sum: u64, (name, value)| {
            let more = match (name.as_str(), value) {
                ("$ref" | "$dynamicRef", Value::String(target)) => match known.get(target.as_str()) {
                    Some(known) => *known,
                    None => {
                        // One that leads back to itself goes down the value, which has an end.
                        known.insert(target, 1);
                        let of = target.strip_prefix('#').and_then(|path| root.pointer(path));
                        let steps = of.map_or(1, |of| expansion(of, root, known));
                        known.insert(target, steps);
                        steps
                    }
                },
                ("enum" | "const" | "default" | "examples" | "$defs" | "definitions", _) => 0,
                ("pattern", _) => PATTERN_STEPS,
                _ => expansion(value, root, known),
            };
            sum.saturating_add(more)
        }),
        _ => 0,
    }
}

fn remote_reference(schema: &Value) -> Option<&str> {
    match schema {
        Value::Array(items) => items.iter().find_map(remote_reference),
        Value::Object(fields) => fields.iter().find_map(|(name, value)| match (name.as_str(), value) {
            ("$ref" | "$dynamicRef", Value::String(target)) => (!target.starts_with('#')).then_some(target.as_str()),
            // What an enumeration holds is data.
            ("enum" | "const" | "default" | "examples", _) => None,
            _ => remote_reference(value),
        }),
        _ => None,
    }
}

/// A compiled [`StructuredOutput`].
#[derive(Debug)]
pub struct OutputSchema {
    /// Name of the result.
    pub name: String,
    /// The schema as it was given.
    pub schema: Value,
    /// How often an invalid answer is asked for again.
    pub max_repairs: u32,
    validator: Validator,
}

impl OutputSchema {
    /// The object an answer holds, or what is wrong with it, fit for the model. A code fence around it is taken off.
    pub fn read(&self, answer: &str) -> std::result::Result<Object, String> {
        let value: Value =
            serde_json::from_str(unfenced(answer)).map_err(|error| format!("The answer is not JSON: {error}."))?;
        let problems = sentences(&self.validator, &value, MOST_PROBLEMS);
        match value {
            Value::Object(object) if problems.is_empty() => Ok(object),
            _ => Err(problems.join("\n")),
        }
    }

    /// The same beside the threads that serve others, and not for ever: some schemas take exponential time.
    pub async fn check(self: &Arc<Self>, answer: &str) -> Result<std::result::Result<Object, String>> {
        let (output, answer) = (Arc::clone(self), answer.to_owned());
        let read = tokio::task::spawn_blocking(move || output.read(&answer));
        match tokio::time::timeout(LONGEST_CHECK, read).await {
            Ok(read) => read.map_err(Error::internal),
            Err(_) => Ok(Err("The answer could not be checked in time; use a simpler schema.".to_owned())),
        }
    }

    /// The answer without what JSON may write in two ways, so that whoever screens it sees what is said.
    pub fn canonical(&self, answer: &str) -> Option<String> {
        serde_json::from_str::<Value>(unfenced(answer)).ok().map(|value| value.to_string())
    }

    /// What a model is told whose provider has no mode of its own for this.
    pub fn instruction(&self) -> String {
        format!(
            "Your final answer must be one JSON object that satisfies this JSON Schema, and nothing else: no prose, \
             no code fence.\n{}",
            self.schema
        )
    }

    /// Whether every object in it names all it may hold and allows nothing else: what providers want of a
    /// schema that they enforce themselves.
    pub fn is_closed(&self) -> bool {
        is_closed(&self.schema)
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
    use serde_json::json;

    fn output(schema: &Value) -> Result<Arc<OutputSchema>> {
        serde_json::from_value::<StructuredOutput>(json!({"schema": schema})).expect("a schema").compile()
    }

    #[test]
    fn answers_are_read_through_fences_and_told_what_is_wrong() {
        let output = output(&json!({"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}));
        let output = output.expect("a schema");
        assert_eq!(output.read("```json\n{\"n\": 1}\n```").expect("an object")["n"], 1);
        assert!(output.read("{\"n\": \"one\"}").expect_err("no integer").starts_with("/n: "));
        assert!(output.read("Sure!").expect_err("no JSON").contains("not JSON"));
        assert!(!output.is_closed());
    }

    #[test]
    fn schemas_that_lead_elsewhere_or_are_none_are_refused() {
        for bad in [
            json!({"type": "array"}),
            json!({"type": "object", "properties": {"a": {"type": "nonsense"}}}),
            json!({"type": "object", "properties": {"a": {"$ref": "https://example.com/schema"}}}),
            json!({"type": "object", "properties": {"a": {"$ref": "file:///etc/passwd"}}}),
            json!({"type": "object", "properties": {"a": {"pattern": "(a)\\1"}}}),
            json!({"type": "object", "description": "x".repeat(70_000)}),
        ] {
            assert_eq!(output(&bad).expect_err("refused").code(), Code::InvalidSchema, "{bad:.100}");
        }
        let link = |n: usize| json!({"$ref": format!("#/$defs/d{}", n + 1)});
        let mut chain: Object = (0..40).map(|n| (format!("d{n}"), json!({"allOf": [link(n), link(n)]}))).collect();
        chain.insert("d40".to_owned(), json!({"type": "string"}));
        let bomb = json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": chain});
        assert_eq!(output(&bomb).expect_err("refused").code(), Code::InvalidSchema);
        let tree = json!({"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#"}}}});
        assert!(output(&tree).expect("a tree").read("{\"children\": [{\"children\": []}]}").is_ok());
        let local =
            json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"type": "string"}}});
        assert!(output(&local).expect("a schema").read("{\"a\":1}").is_err());
    }
}
