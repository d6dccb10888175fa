//! JSON Schemas of clients (2020-12). What is not plain is compiled and matched in a child process alone.

use std::{cell::RefCell, collections::HashMap, sync::Arc, time::Duration};

use jsonschema::{Draft, PatternOptions, Validator};
use platform_child::{ChildError, Work};
use platform_core::{AccountId, Checks, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{ChildPool, code, json_work, no_answer};

const SCHEMA_BYTES: usize = 65_536;
/// Objects and lists of a schema.
const MAX_NODES: usize = 2000;
/// Regular expressions of a schema, names of `patternProperties` too.
const MAX_PATTERNS: usize = 100;
/// Schemas one value may be checked against, a pattern counting as more.
const MAX_STEPS: u64 = 20_000;
const PATTERN_STEPS: u64 = 100;
/// Compiled size of a pattern, in bytes.
const PATTERN_BYTES: usize = 1 << 18;

/// A problem repeats the value it is about, which may be long.
const SENTENCE_BYTES: usize = 500;

/// A schema that is checked on the thread of its caller: so many nodes, times so many parts of a value.
const PLAIN_NODES: usize = 256;
const PLAIN_STEPS: usize = 50_000;
/// Keywords of such a schema. No reference and no pattern: the time they take is not seen in their size.
const PLAIN: [&str; 30] = [
    "$comment",
    "$schema",
    "additionalProperties",
    "allOf",
    "anyOf",
    "const",
    "default",
    "deprecated",
    "description",
    "enum",
    "examples",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "items",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "oneOf",
    "properties",
    "required",
    "title",
    "type",
    "readOnly",
];

const CHECK: &str = "schemas";
const VALIDATE: &str = "value";
const TOO_LONG: &str = "takes too long to be used: make it simpler";

/// What a child process does with schemas.
pub const SCHEMA_WORKS: [Work; 2] = [
    Work { name: CHECK, run: check_work, cpu: Duration::from_secs(2), memory: 64 << 20 },
    Work { name: VALIDATE, run: value_work, cpu: Duration::from_secs(1), memory: 64 << 20 },
];

/// What is wrong with schemas that a client gave, each under its path; empty when all can be used. To be asked
/// before a transaction begins.
pub async fn check_schemas(
    children: &ChildPool,
    account: &AccountId,
    schemas: &[(String, &Value)],
) -> Result<Vec<(String, String)>> {
    let mut issues = Vec::new();
    let mut plain_left = PLAIN_NODES;
    let mut others = Vec::new();
    for (path, schema) in schemas {
        match plain_nodes(schema).and_then(|nodes| plain_left.checked_sub(nodes)) {
            Some(left) => {
                plain_left = left;
                issues.extend(compile(schema).err().map(|reason| (path.clone(), reason)));
            }
            None => others.push((path, schema)),
        }
    }
    if !others.is_empty() {
        let given: Vec<&Value> = others.iter().map(|(_, schema)| **schema).collect();
        let reasons = match children.ask::<Vec<Option<String>>>(account, CHECK, &given).await {
            Ok(reasons) => reasons,
            Err(ChildError::TooLong | ChildError::TooLarge) => vec![Some(TOO_LONG.to_owned()); others.len()],
            Err(error) => return Err(no_answer(error)),
        };
        let found = others.iter().zip(reasons);
        issues.extend(found.filter_map(|((path, _), reason)| Some(((*path).clone(), reason?))));
    }
    Ok(issues)
}

/// The same for one schema: `INVALID_SCHEMA` when it cannot be used.
pub async fn check_schema(children: &ChildPool, account: &AccountId, path: &str, schema: &Value) -> Result<()> {
    let mut checks = Checks::default();
    for (path, reason) in check_schemas(children, account, &[(path.to_owned(), schema)]).await? {
        checks.issue(&path, "format", format!("{path} {reason}"));
    }
    checks.finish_as(code::INVALID_SCHEMA)
}

/// A schema that values are checked against.
#[derive(Debug)]
pub struct Schema {
    source: Arc<Value>,
    plain: Option<(usize, Validator)>,
}

impl Schema {
    /// Compiles only what is plain; one that cannot be used finds nothing wrong.
    pub fn new(source: impl Into<Arc<Value>>) -> Self {
        let source = source.into();
        let nodes = plain_nodes(&source).filter(|nodes| *nodes <= PLAIN_NODES);
        let plain = nodes.and_then(|nodes| Some((nodes, compile(&source).ok()?)));
        Self { source, plain }
    }

    /// The schema as it was given.
    pub fn source(&self) -> &Value {
        &self.source
    }

    /// What is wrong with a value, at most `most` sentences.
    pub async fn problems(&self, children: &ChildPool, account: &AccountId, value: &Value, most: usize) -> Vec<String> {
        if let Some((nodes, validator)) = &self.plain
            && fits(value, &mut (PLAIN_STEPS / nodes))
        {
            return sentences(validator, value, most);
        }
        let asked = Asked { schema: &self.source, value, most };
        match children.ask(account, VALIDATE, &asked).await {
            Ok(problems) => problems,
            Err(error) => {
                tracing::warn!(%error, "A value could not be checked against its schema.");
                vec!["The value could not be checked in time; use a simpler schema.".to_owned()]
            }
        }
    }
}

#[derive(Serialize)]
struct Asked<'a> {
    schema: &'a Value,
    value: &'a Value,
    most: usize,
}

#[derive(Deserialize)]
struct Given {
    schema: Value,
    value: Value,
    most: usize,
}

fn check_work(input: &[u8]) -> Vec<u8> {
    json_work(input, |schemas: Vec<Value>| schemas.iter().map(|schema| compile(schema).err()).collect::<Vec<_>>())
}

fn value_work(input: &[u8]) -> Vec<u8> {
    thread_local! {
        /// Schemas that were just used: the calls of one tool come together.
        static LAST: RefCell<Vec<(Value, Option<Validator>)>> = const { RefCell::new(Vec::new()) };
    }
    json_work(input, |given: Given| {
        LAST.with_borrow_mut(|last| {
            let at = last.iter().position(|(schema, _)| *schema == given.schema).unwrap_or_else(|| {
                last.truncate(15);
                let validator = compile(&given.schema).ok();
                last.insert(0, (given.schema, validator));
                0
            });
            // A schema of an MCP server that we cannot read is that server's to enforce.
            last[at].1.as_ref().map_or_else(Vec::new, |validator| sentences(validator, &given.value, given.most))
        })
    })
}

/// Makes a schema ready; the reason when it is none of type object, or takes too much. Bounded work, but not little:
/// for a child, or for a schema of our own.
pub fn compile(schema: &Value) -> std::result::Result<Validator, String> {
    if schema.to_string().len() > SCHEMA_BYTES {
        return Err(format!("must have at most {SCHEMA_BYTES} bytes"));
    }
    if schema.get("type") != Some(&Value::from("object")) {
        return Err("must be a JSON Schema of type object".to_owned());
    }
    let mut size = Size::default();
    size.add(schema);
    if size.nodes > MAX_NODES || size.patterns > MAX_PATTERNS {
        return Err(format!("must have at most {MAX_NODES} objects and lists and {MAX_PATTERNS} patterns"));
    }
    if let Some(reference) = remote_reference(schema) {
        return Err(format!("must not refer to `{reference}`: only references within the schema (#…) work"));
    }
    if expansion(schema, schema, &mut HashMap::new()) > MAX_STEPS {
        return Err(format!("refers to itself so often that checking an answer would take over {MAX_STEPS} steps"));
    }
    let patterns = PatternOptions::regex().size_limit(PATTERN_BYTES).dfa_size_limit(PATTERN_BYTES);
    let options = jsonschema::options().with_draft(Draft::Draft202012).with_pattern_options(patterns);
    options.build(schema).map_err(|error| format!("is no valid JSON Schema 2020-12: {error}"))
}

fn sentences(validator: &Validator, value: &Value, most: usize) -> Vec<String> {
    let sentence = |error: jsonschema::ValidationError<'_>| {
        let path = error.instance_path().as_str();
        let mut sentence = format!("{}: {error}", if path.is_empty() { "/" } else { path });
        if sentence.len() > SENTENCE_BYTES {
            sentence.truncate(sentence.floor_char_boundary(SENTENCE_BYTES));
            sentence.push('…');
        }
        sentence
    };
    validator.iter_errors(value).take(most).map(sentence).collect()
}

/// Objects and lists of a schema that has plain keywords alone.
fn plain_nodes(schema: &Value) -> Option<usize> {
    let sum = |parts: &mut dyn Iterator<Item = &Value>| parts.map(plain_nodes).sum::<Option<usize>>();
    match schema {
        Value::Object(fields) => fields.iter().try_fold(1, |nodes: usize, (name, value)| {
            let more = match (name.as_str(), value) {
                (name, _) if !PLAIN.contains(&name) => return None,
                ("properties", Value::Object(named)) => sum(&mut named.values())?,
                ("allOf" | "anyOf" | "oneOf", Value::Array(all)) => sum(&mut all.iter())?,
                ("items" | "additionalProperties", one) => plain_nodes(one)?,
                ("enum" | "required", Value::Array(all)) => all.len(),
                _ => 1,
            };
            nodes.checked_add(more)
        }),
        Value::Bool(_) => Some(1),
        _ => None,
    }
}

/// Whether a value has at most so many parts; a long text counts as several.
fn fits(value: &Value, left: &mut usize) -> bool {
    let parts = match value {
        Value::String(text) => 1 + text.len() / 64,
        _ => 1,
    };
    let Some(rest) = left.checked_sub(parts) else { return false };
    *left = rest;
    match value {
        Value::Array(items) => items.iter().all(|item| fits(item, left)),
        Value::Object(fields) => fields.iter().all(|(name, value)| {
            *left = left.saturating_sub(name.len() / 64);
            fits(value, left)
        }),
        _ => true,
    }
}

#[derive(Default)]
struct Size {
    nodes: usize,
    patterns: usize,
}

impl Size {
    fn add(&mut self, schema: &Value) {
        match schema {
            Value::Array(items) => {
                self.nodes += 1;
                for item in items {
                    self.add(item);
                }
            }
            Value::Object(fields) => {
                self.nodes += 1;
                for (name, value) in fields {
                    match (name.as_str(), value) {
                        ("pattern", _) => self.patterns += 1,
                        ("patternProperties", Value::Object(named)) => self.patterns += named.len(),
                        _ => {}
                    }
                    self.add(value);
                }
            }
            _ => {}
        }
    }
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
                ("patternProperties", Value::Object(named)) => named.values().fold(0, |sum: u64, value| {
                    sum.saturating_add(PATTERN_STEPS).saturating_add(expansion(value, root, known))
                }),
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

#[cfg(test)]
mod tests {
    use super::*;
    use platform_core::Object;
    use serde_json::json;

    #[test]
    fn schemas_that_lead_elsewhere_or_take_too_much_are_refused() {
        let many = |what: fn(usize) -> (String, Value), count| (0..count).map(what).collect::<Object>();
        for bad in [
            json!({"type": "array"}),
            json!({"type": "object", "properties": {"a": {"type": "nonsense"}}}),
            json!({"type": "object", "properties": {"a": {"$ref": "https://example.com/schema"}}}),
            json!({"type": "object", "properties": {"a": {"$ref": "file:///etc/passwd"}}}),
            json!({"type": "object", "properties": {"a": {"pattern": "(a)\\1"}}}),
            json!({"type": "object", "description": "x".repeat(70_000)}),
            json!({"type": "object", "properties": many(|n| (format!("p{n}"), json!({})), 2001)}),
            json!({"type": "object", "patternProperties": many(|n| (format!("\\w{{{n}}}"), json!({})), 101)}),
        ] {
            assert!(compile(&bad).is_err(), "{bad:.100}");
        }
        let link = |n: usize| json!({"$ref": format!("#/$defs/d{}", n + 1)});
        let mut chain: Object = (0..40).map(|n| (format!("d{n}"), json!({"allOf": [link(n), link(n)]}))).collect();
        chain.insert("d40".to_owned(), json!({"type": "string"}));
        let bomb = json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": chain});
        assert!(compile(&bomb).is_err());
        let tree = json!({"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#"}}}});
        assert!(compile(&tree).expect("a tree").is_valid(&json!({"children": [{"children": []}]})));
    }

    #[test]
    fn only_what_is_small_and_has_neither_pattern_nor_reference_is_plain() {
        let of = |part: Value| json!({"type": "object", "properties": {"a": part}, "required": ["a"]});
        assert_eq!(plain_nodes(&of(json!({"type": "string", "enum": ["x", "y"]}))), Some(7));
        for part in [
            json!({"pattern": "a"}),
            json!({"$ref": "#"}),
            json!({"patternProperties": {"a": {}}}),
            json!({"items": {"anyOf": [{"not": {"pattern": "a"}}]}}),
            json!({"uniqueItems": true}),
        ] {
            assert_eq!(plain_nodes(&of(part.clone())), None, "{part}");
        }
        assert!(fits(&json!({"a": ["x", 1]}), &mut 4) && !fits(&json!({"a": ["x", 1]}), &mut 3));
        assert!(!fits(&json!("x".repeat(6400)), &mut 100));
    }
}
