//! OpenAPI 3.x descriptions become tool servers (contract 04 §5): one tool an operation.

use std::{
    collections::{BTreeMap, HashSet},
    time::Duration,
};

use platform_child::{ChildError, Work};
use platform_core::{AccountId, Code, Error, Issue, Object, Result, without_nul};
use platform_egress::Url;
use platform_runtime::{ChildPool, compile_schema, json_work, no_answer};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::request::URL_ENCODED;

const METHODS: [&str; 5] = ["get", "post", "put", "patch", "delete"];
const OTHER_METHODS: [&str; 3] = ["head", "options", "trace"];
const MAX_DESCRIPTION: usize = 4000;
/// References are followed so deep; what lies deeper may be anything.
const DEEPEST: usize = 12;
/// A schema larger than this is cut short: every model call carries it.
const MAX_SCHEMA: usize = 32_768;
const MAX_NODES: usize = 4096;
/// Text of a description, and JSON of all tools made of it, in bytes.
const MAX_SPEC: usize = 4 << 20;
const MAX_RESOLVED: usize = 16 << 20;

/// What an import gives.
#[derive(Serialize, Deserialize)]
pub(crate) struct Imported {
    /// Title of the description.
    pub title: String,
    pub description: String,
    pub address: String,
    pub tools: Vec<Value>,
    pub skipped: Vec<Value>,
}

/// A description, and what is wanted of it.
#[derive(Serialize, Deserialize)]
pub(crate) struct Import {
    /// JSON or YAML text, or an object.
    pub spec: Value,
    /// Where it came from.
    pub source: Option<String>,
    pub base: Option<String>,
    pub include: Option<Vec<String>>,
    /// Tools of one server; 0 = no bound.
    pub most: usize,
}

/// Path, code and message of what is wrong with a description.
type Wrong = (String, String, String);

const WORK: &str = "openapi";
/// Brackets of YAML within each other.
const MAX_NESTED: usize = 1000;

/// What a child process does with descriptions.
pub(crate) const WORKS: [Work; 1] = [Work { name: WORK, run: work, cpu: Duration::from_secs(10), memory: 256 << 20 }];

/// Makes tools of a description, in a child process.
pub(crate) async fn import(children: &ChildPool, account: &AccountId, given: &Import) -> Result<Imported> {
    if given.spec.as_str().is_some_and(|text| text.len() > MAX_SPEC) {
        return Err(invalid(format!("spec must have at most {MAX_SPEC} bytes")));
    }
    match children.ask::<Result<Imported, Wrong>>(account, WORK, given).await {
        Ok(Ok(imported)) => Ok(imported),
        Ok(Err((path, code, message))) => {
            let code = if code == "required" { "required" } else { "format" };
            Err(Error::invalid(&path, code, message))
        }
        Err(error @ (ChildError::TooLong | ChildError::TooLarge)) => {
            Err(invalid(format!("spec cannot be imported: {error}; import a smaller part of it")))
        }
        Err(error) => Err(no_answer(error)),
    }
}

fn work(input: &[u8]) -> Vec<u8> {
    json_work(input, |given: Import| {
        read(given.spec)
            .and_then(|spec| {
                let source = given.source.and_then(|source| source.parse().ok());
                tools_of(&spec, source.as_ref(), given.base.as_deref(), given.include.as_deref(), given.most)
            })
            .map_err(|error| match error.issues() {
                [Issue { path, code, message }, ..] => (path.clone(), (*code).to_owned(), message.clone()),
                [] => ("spec".to_owned(), "format".to_owned(), error.message().to_owned()),
            })
    })
}

fn invalid(message: String) -> Error {
    Error::invalid("spec", "format", message)
}

/// How deep brackets stand within each other, whatever they mean.
fn deepest(text: &str) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    for byte in text.bytes() {
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
}

/// Reads a description: JSON or YAML text, or an object.
fn read(spec: Value) -> Result<Value> {
    let spec = match spec {
        Value::String(text) => serde_json::from_str(&text).or_else(|_| {
            if let Some(name) = alias(&text) {
                return Err(invalid(format!("spec uses the YAML alias *{name}: write out what it stands for")));
            }
            // Reading lists and objects within each other takes ever longer.
            if deepest(&text) > MAX_NESTED {
                return Err(invalid(format!("spec has more than {MAX_NESTED} lists and objects within each other")));
            }
            serde_yaml_ng::from_str::<Value>(&text)
                .map_err(|error| invalid(format!("spec is neither JSON nor YAML: {error}")))
        })?,
        other => other,
    };
    let spec = without_nul(spec);
    let version = spec["openapi"].as_str().unwrap_or_default();
    if !version.starts_with("3.") {
        let message = "spec must be an OpenAPI 3.x description: its field `openapi` says 3.0.x or 3.1.x";
        return Err(invalid(message.to_owned()));
    }
    Ok(spec)
}

/// The name of an anchor (`&name`) that something refers to (`*name`): each use would be a copy.
fn alias(yaml: &str) -> Option<&str> {
    let ends = |c: char| c.is_whitespace() || matches!(c, ',' | '[' | ']' | '{' | '}');
    let words: HashSet<&str> = yaml.split(ends).collect();
    let anchors = words.iter().filter_map(|word| word.strip_prefix('&')).filter(|name| !name.is_empty());
    let mut used = anchors.filter(|name| words.contains(format!("*{name}").as_str()));
    used.next()
}

/// One tool an operation; `source`: where the description came from.
fn tools_of(
    spec: &Value,
    source: Option<&Url>,
    base: Option<&str>,
    include: Option<&[String]>,
    most: usize,
) -> Result<Imported> {
    let address = address(spec, source, base)?;
    let mut reader = Reader { spec, names: HashSet::new() };
    let (mut tools, mut skipped) = (Vec::new(), Vec::new());
    let mut found = HashSet::new();
    let mut left = MAX_RESOLVED;
    for (path, item) in spec["paths"].as_object().into_iter().flatten() {
        let item = reader.resolve(item);
        for (method, operation) in item.as_object().into_iter().flatten() {
            let id = operation["operationId"].as_str();
            let is_operation = METHODS.contains(&method.as_str()) || OTHER_METHODS.contains(&method.as_str());
            if !is_operation || include.is_some_and(|ids| id.is_none_or(|id| !ids.iter().any(|given| given == id))) {
                continue;
            }
            found.extend(id.map(str::to_owned));
            let tool = if most > 0 && tools.len() >= most {
                Err(format!("a server has at most {most} tools; import the rest with `include`"))
            } else {
                reader.tool(path, method, item, operation).and_then(|tool| {
                    left = left.checked_sub(tool.to_string().len()).ok_or_else(|| {
                        format!("all tools of a description have at most {MAX_RESOLVED} bytes; use `include`")
                    })?;
                    Ok(tool)
                })
            };
            match tool {
                Ok(tool) => tools.push(tool),
                Err(reason) => {
                    let operation = id.map_or_else(|| format!("{} {path}", method.to_uppercase()), str::to_owned);
                    skipped.push(json!({"operation": operation, "reason": reason}));
                }
            }
        }
    }
    for missing in include.into_iter().flatten().filter(|id| !found.contains(*id)) {
        skipped.push(json!({"operation": missing, "reason": "there is no such operation"}));
    }
    let text = |name: &str| spec["info"][name].as_str().unwrap_or_default();
    Ok(Imported {
        title: text("title").chars().take(200).collect(),
        description: text("description").chars().take(MAX_DESCRIPTION).collect(),
        address: address.as_str().trim_end_matches('/').to_owned(),
        tools,
        skipped,
    })
}

fn address(spec: &Value, source: Option<&Url>, base: Option<&str>) -> Result<Url> {
    let first = &spec["servers"][0];
    let described = first["url"].as_str().map(|url| {
        let variables = first["variables"].as_object().into_iter().flatten();
        variables.fold(url.to_owned(), |url, (name, variable)| {
            url.replace(&format!("{{{name}}}"), variable["default"].as_str().unwrap_or_default())
        })
    });
    let text = base.map(str::to_owned).or(described).unwrap_or_default();
    let parsed = match source {
        Some(source) if !text.is_empty() => source.join(&text),
        _ => Url::parse(&text),
    };
    parsed.ok().filter(|url| matches!(url.scheme(), "http" | "https")).ok_or_else(|| {
        let message = "baseUrl is required: the description does not say where its server is";
        Error::invalid("baseUrl", "required", message)
    })
}

/// What an inlined schema may still take: each reference may lead to much.
struct Left {
    nodes: usize,
    bytes: usize,
}

struct Reader<'a> {
    spec: &'a Value,
    names: HashSet<String>,
}

impl<'a> Reader<'a> {
    fn tool(&mut self, path: &str, method: &str, item: &Value, operation: &Value) -> Result<Value, String> {
        if !METHODS.contains(&method) {
            return Err(format!("the method {} is not offered to tools", method.to_uppercase()));
        }
        self.check_references(item, operation)?;
        let mut parameters = Parameters::default();
        let given = self.parameters(item, operation);
        let is_in_path = |name: &str| given.iter().any(|of| of["in"] == "path" && of["name"] == name);
        for parameter in &given {
            let name = parameter["name"].as_str().unwrap_or_default();
            let required = parameter["required"] == true;
            match parameter["in"].as_str() {
                Some("path") => parameters.path.push(name.to_owned()),
                // An argument stands in one place.
                Some("query") if is_in_path(name) && !required => continue,
                Some("query") if is_in_path(name) => {
                    return Err(format!("it needs `{name}` in its path and in its query, and both have one name"));
                }
                Some("query") => parameters.query.push(name.to_owned()),
                Some(place @ ("header" | "cookie")) if required => {
                    return Err(format!("it needs the {place} `{name}`; set it as a header of the server"));
                }
                _ => continue,
            }
            let schema = match parameter["content"].as_object().and_then(|content| content.values().next()) {
                Some(content) => &content["schema"],
                None => &parameter["schema"],
            };
            let mut schema = self.schema(schema);
            describe(&mut schema, parameter["description"].as_str());
            parameters.add(name, schema, required || parameter["in"] == "path");
        }
        for name in placeholders(path) {
            if !parameters.path.iter().any(|known| known == name) {
                parameters.path.push(name.to_owned());
                parameters.add(name, json!({"type": "string"}), true);
            }
        }
        let mut tool = Map::new();
        if method != "get" {
            self.body(operation, &mut parameters, &mut tool)?;
        }
        let name = self.name(path, method, operation);
        let text = |field: &str| operation[field].as_str().map(str::trim).filter(|text| !text.is_empty());
        let description = match (text("summary"), text("description")) {
            (Some(summary), Some(more)) if more != summary => format!("{summary}\n\n{more}"),
            (summary, more) => summary.or(more).unwrap_or_default().to_owned(),
        };
        let description: String = description.chars().take(MAX_DESCRIPTION).collect();
        let endpoint = placeholders(path)
            .into_iter()
            .fold(path.to_owned(), |endpoint, name| endpoint.replace(&format!("{{{name}}}"), &format!("${{{name}}}")));
        let schema = usable(parameters.schema())?;
        tool.extend([
            ("type".to_owned(), "function".into()),
            ("function".to_owned(), json!({"name": name, "description": description, "parameters": schema})),
            ("endpoint".to_owned(), endpoint.into()),
            ("method".to_owned(), method.to_uppercase().into()),
            ("pathParametersKeys".to_owned(), parameters.path.into()),
            ("queryParametersKeys".to_owned(), parameters.query.into()),
        ]);
        Ok(Value::Object(tool))
    }

    /// Parameters and body that are referred to must be there.
    fn check_references(&self, item: &Value, operation: &Value) -> Result<(), String> {
        let parameters = [item, operation].into_iter().flat_map(|of| of["parameters"].as_array().into_iter().flatten());
        for referring in parameters.chain(operation.get("requestBody")) {
            if self.resolve(referring).is_null() {
                return Err(format!(
                    "there is no `{}` in this description",
                    referring["$ref"].as_str().unwrap_or_default()
                ));
            }
        }
        Ok(())
    }

    /// Parameters of the operation, and those of the path that it does not name itself.
    fn parameters<'v>(&self, item: &'v Value, operation: &'v Value) -> Vec<&'v Value>
    where
        'a: 'v,
    {
        let of = |place: &'v Value| place["parameters"].as_array().into_iter().flatten().map(|p| self.resolve(p));
        let own: Vec<&Value> = of(operation).collect();
        let names: HashSet<(&str, &str)> =
            own.iter().filter_map(|p| Some((p["name"].as_str()?, p["in"].as_str()?))).collect();
        let is_own = |p: &Value| p["name"].as_str().zip(p["in"].as_str()).is_some_and(|key| names.contains(&key));
        of(item).filter(|parameter| !is_own(parameter)).chain(own.iter().copied()).collect()
    }

    fn body(&self, operation: &Value, parameters: &mut Parameters, tool: &mut Object) -> Result<(), String> {
        let body = self.resolve(&operation["requestBody"]);
        let Some(content) = body["content"].as_object().filter(|content| !content.is_empty()) else { return Ok(()) };
        let required = body["required"] == true;
        let bare = |kind: &String| kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        let is_json = |kind: &String| {
            let kind = bare(kind);
            kind == "application/json" || kind.ends_with("+json") || kind == "*/*"
        };
        let form = ["multipart/form-data", URL_ENCODED];
        let found = content
            .iter()
            .find(|(kind, _)| is_json(kind))
            .or_else(|| form.iter().find_map(|form| content.iter().find(|(kind, _)| bare(kind) == *form)));
        let Some((kind, content)) = found else {
            let kinds = content.keys().cloned().collect::<Vec<_>>().join(", ");
            return Err(format!("its body is neither JSON nor a form: {kinds}"));
        };
        if !is_json(kind) {
            tool.insert("isFormDataBody".to_owned(), true.into());
            if bare(kind) == URL_ENCODED {
                tool.insert("customHeaders".to_owned(), json!([{"headerName": "Content-Type", "value": URL_ENCODED}]));
            }
        }
        let schema = as_one_object(self.schema(&content["schema"]));
        let properties = schema["properties"].as_object().filter(|properties| !properties.is_empty());
        let is_plain = schema.get("allOf").or(schema.get("anyOf")).or(schema.get("oneOf")).is_none();
        match properties {
            Some(properties) if is_plain && properties.keys().all(|name| !parameters.properties.contains_key(name)) => {
                let needed = schema["required"].as_array().cloned().unwrap_or_default();
                for (name, mut property) in properties.clone() {
                    if bare(kind) == "multipart/form-data" {
                        as_files(&mut property);
                    }
                    let required = required && needed.iter().any(|needed| *needed == name.as_str());
                    parameters.add(&name, property, required);
                }
            }
            _ => {
                let mut name = "body".to_owned();
                while parameters.properties.contains_key(&name) {
                    name.insert(0, '_');
                }
                let mut schema = schema;
                describe(&mut schema, body["description"].as_str());
                parameters.add(&name, schema, required);
                tool.insert("bodyPropertyKey".to_owned(), name.into());
            }
        }
        Ok(())
    }

    /// The operation's id made fit, else method and path; no two alike.
    fn name(&mut self, path: &str, method: &str, operation: &Value) -> String {
        let id = operation["operationId"].as_str().filter(|id| !id.is_empty());
        let text = id.map_or_else(|| format!("{method}_{}", path.trim_matches('/')), str::to_owned);
        let mut name = String::new();
        for c in text.chars() {
            match c {
                c if c.is_ascii_alphanumeric() || c == '-' => name.push(c),
                _ if !name.ends_with('_') => name.push('_'),
                _ => {}
            }
        }
        let name: String = name.trim_matches('_').chars().take(60).collect();
        let name = if name.is_empty() { method.to_owned() } else { name };
        let numbered = (2..).map(|n| format!("{name}_{n}"));
        let name = std::iter::once(name.clone()).chain(numbered).find(|name| !self.names.contains(name));
        let name = name.expect("there are numbers enough");
        self.names.insert(name.clone());
        name
    }

    /// What a reference stands for; references to references too.
    fn resolve<'v>(&self, mut value: &'v Value) -> &'v Value
    where
        'a: 'v,
    {
        for _ in 0..DEEPEST {
            let Some(target) = value["$ref"].as_str() else { break };
            let found = target.strip_prefix('#').and_then(|path| self.spec.pointer(path));
            value = found.unwrap_or(&Value::Null);
        }
        value
    }

    /// A schema with all it refers to in it, as JSON Schema 2020-12.
    fn schema(&self, schema: &Value) -> Value {
        // The deepest that fits: a tool tells what its parameters are, not the whole description.
        let depths = [DEEPEST, 6, 4, 2, 1];
        let schemas = depths.into_iter().map(|depth| {
            let mut left = Left { nodes: MAX_NODES, bytes: MAX_SCHEMA };
            let inlined = self.inlined(schema, &mut Vec::new(), depth, &mut left);
            (left.nodes > 0 && left.bytes > 0).then_some(inlined)
        });
        schemas.flatten().next().unwrap_or_else(|| json!({}))
    }

    fn inlined(&self, schema: &Value, above: &mut Vec<String>, depth: usize, left: &mut Left) -> Value {
        left.nodes = left.nodes.saturating_sub(1);
        let Some(fields) = schema.as_object().filter(|_| left.nodes > 0 && left.bytes > 0) else { return json!({}) };
        if let Some(target) = fields.get("$ref").and_then(Value::as_str) {
            if depth == 0 || above.iter().any(|known| known == target) {
                return json!({});
            }
            let found = target.strip_prefix('#').and_then(|path| self.spec.pointer(path));
            above.push(target.to_owned());
            let inlined = found.map_or_else(|| json!({}), |found| self.inlined(found, above, depth - 1, left));
            above.pop();
            return inlined;
        }
        let mut all = Map::new();
        for (name, value) in fields {
            left.bytes = left.bytes.saturating_sub(name.len() + 4);
            let value = match name.as_str() {
                "properties" | "patternProperties" | "$defs" => {
                    let named = value.as_object().into_iter().flatten();
                    let mut inlined = Object::new();
                    for (name, value) in named {
                        left.bytes = left.bytes.saturating_sub(name.len() + 4);
                        inlined.insert(name.clone(), self.inlined(value, above, depth, left));
                    }
                    inlined.into()
                }
                "items" | "not" | "additionalProperties" if value.is_object() => {
                    self.inlined(value, above, depth, left)
                }
                "allOf" | "anyOf" | "oneOf" | "prefixItems" => {
                    let items = value.as_array().into_iter().flatten();
                    items.map(|item| self.inlined(item, above, depth, left)).collect()
                }
                "type"
                | "enum"
                | "const"
                | "description"
                | "title"
                | "default"
                | "format"
                | "required"
                | "pattern"
                | "minimum"
                | "maximum"
                | "multipleOf"
                | "minLength"
                | "maxLength"
                | "minItems"
                | "maxItems"
                | "uniqueItems"
                | "minProperties"
                | "maxProperties"
                | "exclusiveMinimum"
                | "exclusiveMaximum"
                | "additionalProperties" => {
                    left.bytes = left.bytes.saturating_sub(value.to_string().len());
                    if left.bytes == 0 {
                        break;
                    }
                    value.clone()
                }
                _ => continue,
            };
            all.insert(name.clone(), value);
        }
        modern(&mut all, fields.get("nullable") == Some(&Value::Bool(true)));
        Value::Object(all)
    }
}

/// A part of bytes becomes what a file of a form is given by (contract 04 §3), alone or in a list.
fn as_files(property: &mut Value) {
    if property["format"] == "binary" {
        let description = property["description"].take();
        *property = json!({
            "type": "object",
            "properties": {"downloadUrl": {"type": "string"}, "name": {"type": "string"}},
            "required": ["downloadUrl"],
        });
        describe(property, description.as_str());
    } else if let Some(items) = property.get_mut("items") {
        as_files(items);
    }
}

/// What OpenAPI 3.0 says otherwise than JSON Schema.
fn modern(schema: &mut Object, nullable: bool) {
    for (flag, bound) in [("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")] {
        match schema.get(flag) {
            Some(Value::Bool(true)) => {
                if let Some(limit) = schema.remove(bound) {
                    schema.insert(flag.to_owned(), limit);
                } else {
                    schema.remove(flag);
                }
            }
            Some(Value::Bool(false)) => {
                schema.remove(flag);
            }
            _ => {}
        }
    }
    if nullable {
        if let Some(Value::String(kind)) = schema.get("type") {
            schema.insert("type".to_owned(), json!([kind, "null"]));
        }
        if let Some(Value::Array(values)) = schema.get_mut("enum")
            && !values.contains(&Value::Null)
        {
            values.push(Value::Null);
        }
    }
}

#[derive(Default)]
struct Parameters {
    properties: BTreeMap<String, Value>,
    required: Vec<String>,
    path: Vec<String>,
    query: Vec<String>,
}

impl Parameters {
    fn add(&mut self, name: &str, schema: Value, required: bool) {
        self.properties.insert(name.to_owned(), schema);
        if required {
            self.required.push(name.to_owned());
        }
    }

    fn schema(&self) -> Value {
        json!({"type": "object", "properties": self.properties, "required": self.required})
    }
}

/// A schema that we can check against: when its patterns are the trouble, without them.
fn usable(schema: Value) -> Result<Value, String> {
    if compile_schema(&schema).is_ok() {
        return Ok(schema);
    }
    let mut bare = schema;
    without_patterns(&mut bare);
    compile_schema(&bare).map(|_| bare).map_err(|reason| format!("its parameters are a schema that {reason}"))
}

fn without_patterns(schema: &mut Value) {
    match schema {
        Value::Array(items) => items.iter_mut().for_each(without_patterns),
        Value::Object(fields) => {
            fields.retain(|name, value| !(matches!(name.as_str(), "pattern") && value.is_string()));
            fields.remove("patternProperties");
            fields.values_mut().for_each(without_patterns);
        }
        _ => {}
    }
}

/// An object that is described in parts (`allOf`), as one; anything else as it is.
fn as_one_object(schema: Value) -> Value {
    let Some(parts) = schema["allOf"].as_array() else { return schema };
    let mut own = schema.clone();
    own.as_object_mut().expect("it has a field").remove("allOf");
    let is_choice = |part: &Value| ["allOf", "anyOf", "oneOf", "not"].iter().any(|name| part.get(name).is_some());
    if is_choice(&own) {
        return schema;
    }
    let (mut properties, mut required) = (Map::new(), own["required"].as_array().cloned().unwrap_or_default());
    let own = Some(own).filter(|own| own["properties"].is_object());
    for part in parts.iter().cloned().chain(own) {
        let part = as_one_object(part);
        let Some(of_part) = part["properties"].as_object().filter(|_| !is_choice(&part)) else { return schema };
        for (name, property) in of_part {
            if properties.insert(name.clone(), property.clone()).is_some_and(|known| known != *property) {
                return schema;
            }
        }
        required.extend(part["required"].as_array().cloned().unwrap_or_default());
    }
    let mut whole = json!({"type": "object", "properties": properties, "required": required});
    describe(&mut whole, schema["description"].as_str());
    whole
}

fn describe(schema: &mut Value, description: Option<&str>) {
    if let (Some(fields), Some(description)) = (schema.as_object_mut(), description) {
        fields.entry("description").or_insert_with(|| description.into());
    }
}

/// The names in `{name}` of a path.
fn placeholders(path: &str) -> Vec<&str> {
    path.split('{').skip(1).filter_map(|rest| rest.split_once('}')).map(|(name, _)| name).collect()
}

/// An import that has neither source nor description.
pub(crate) fn nothing_given() -> Error {
    Error::invalid("spec", "required", "spec or url is required: the OpenAPI description to import")
}

/// The description could not be fetched.
pub(crate) fn unreadable(status: u16) -> Error {
    Error::new(Code::UPSTREAM_ERROR, format!("The address of the description answers {status}.")).with("status", status)
}
