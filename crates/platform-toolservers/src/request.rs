//! Arguments become a request (contract 04 §4).

use bytes::Bytes;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use platform_core::{AccountId, Object, parse};
use platform_egress::{Egress, FormPart, Payload, Url};
use serde_json::Value;

use crate::{
    calling::Calling,
    definition::{BodyMode, HttpMethod, ToolDefinition, is_absolute},
    failure::Failure,
    script,
};

pub(crate) const URL_ENCODED: &str = "application/x-www-form-urlencoded";

/// Parts and bytes of one form.
const MAX_PARTS: usize = 100;
const MAX_FORM: usize = 26_214_400;

/// Bytes of an address: its template may name one argument many times.
const MAX_ADDRESS: usize = 65_536;

/// What stands in a path as it is (RFC 3986 §2.3).
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Address with path and query: each argument is one segment of the one or one value of the other.
pub(crate) fn address(server: &Url, tool: &ToolDefinition, arguments: &Object) -> Result<Url, Failure> {
    let path = fill(&tool.endpoint, arguments)?;
    let text = if is_absolute(&path) {
        path
    } else {
        let mut base = server.clone();
        let query = base.query().map(str::to_owned);
        base.set_query(None);
        base.set_fragment(None);
        let mut text = match path.as_str() {
            "" => base.to_string(),
            path if path.starts_with('?') => format!("{base}{path}"),
            path => format!("{}/{}", base.as_str().trim_end_matches('/'), path.trim_start_matches('/')),
        };
        if let Some(query) = query {
            text.push(if text.contains('?') { '&' } else { '?' });
            text.push_str(&query);
        }
        text
    };
    let mut url =
        Url::parse(&text).map_err(|error| Failure::new("INVALID_ARGUMENTS", format!("`{text}`: {error}.")))?;
    if url.origin() != server.origin() {
        return Err(Failure::new("URL_NOT_ALLOWED", "The request would leave the scheme, host or port of the server."));
    }
    let queries = tool.query_parameters_keys.iter().filter_map(|key| Some((key, arguments.get(key)?)));
    for (key, value) in queries {
        let values = match value {
            Value::Null => continue,
            Value::Array(values) => values.as_slice(),
            one => std::slice::from_ref(one),
        };
        for value in values {
            url.query_pairs_mut().append_pair(key, &plain(value));
            check_length(url.as_str())?;
        }
    }
    Ok(url)
}

fn check_length(address: &str) -> Result<(), Failure> {
    let issue = || format!("They make an address of more than {MAX_ADDRESS} bytes.");
    if address.len() > MAX_ADDRESS { Err(Failure::arguments(vec![issue()])) } else { Ok(()) }
}

fn fill(endpoint: &str, arguments: &Object) -> Result<String, Failure> {
    let mut filled = String::new();
    let mut rest = endpoint;
    while let Some((before, (name, after))) =
        rest.split_once("${").and_then(|(before, after)| Some((before, after.split_once('}')?)))
    {
        let value = arguments.get(name).filter(|value| !value.is_null()).map(plain).unwrap_or_default();
        if matches!(value.as_str(), "" | "." | "..") {
            let issue = format!("`{name}` stands in the path: it must not be empty, `.` or `..`.");
            return Err(Failure::arguments(vec![issue]));
        }
        filled.push_str(before);
        filled.extend(utf8_percent_encode(&value, ENCODED));
        check_length(&filled)?;
        rest = after;
    }
    filled.push_str(rest);
    Ok(filled)
}

/// A string as it is, everything else as JSON.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// The body, and its media type unless it is a form.
pub(crate) async fn body(
    calling: &Calling,
    account: &AccountId,
    tool: &ToolDefinition,
    arguments: &Object,
) -> Result<(Payload, Option<&'static str>), Failure> {
    if tool.method == HttpMethod::Get {
        return Ok((Payload::Empty, None));
    }
    let Some(value) = body_value(calling, account, tool, arguments).await? else { return Ok((Payload::Empty, None)) };
    if !tool.is_form_data_body {
        return Ok((Payload::Bytes(value.to_string().into()), Some("application/json")));
    }
    let Value::Object(fields) = value else {
        return Err(Failure::arguments(vec!["A form is made of an object: one part for each property.".to_owned()]));
    };
    if is_url_encoded(tool) {
        let mut form = Url::parse("form:").expect("a URL");
        form.query_pairs_mut().extend_pairs(fields.iter().map(|(name, value)| (name, plain(value))));
        let text = form.query().unwrap_or_default().to_owned();
        return Ok((Payload::Bytes(text.into()), Some(URL_ENCODED)));
    }
    let (mut parts, mut bytes) = (Vec::new(), 0);
    for (name, value) in fields {
        let values = match value {
            Value::Null => Vec::new(),
            Value::Array(values) if values.iter().any(is_file) => values,
            one => vec![one],
        };
        for value in &values {
            let part = part(&calling.http.egress.of(account), &name, value).await?;
            bytes += part.bytes.len();
            if parts.len() >= MAX_PARTS || bytes > MAX_FORM {
                let reason = format!("A form has at most {MAX_PARTS} parts and {MAX_FORM} bytes.");
                return Err(Failure::arguments(vec![reason]));
            }
            parts.push(part);
        }
    }
    Ok((Payload::Form(parts), None))
}

/// A form whose own header says that it is of the older kind.
fn is_url_encoded(tool: &ToolDefinition) -> bool {
    let mut headers = tool.custom_headers.iter();
    headers.any(|header| {
        header.header_name.eq_ignore_ascii_case("content-type") && header.value.expose().starts_with(URL_ENCODED)
    })
}

async fn body_value(
    calling: &Calling,
    account: &AccountId,
    tool: &ToolDefinition,
    arguments: &Object,
) -> Result<Option<Value>, Failure> {
    if tool.body_mode == BodyMode::Advanced {
        let params = Value::Object(arguments.clone());
        let template = &tool.body_json_template;
        let value = script::evaluate(&calling.children, account, template, "params", &params).await;
        return value
            .map(Some)
            .map_err(|reason| Failure::new("TEMPLATE_ERROR", format!("bodyJsonTemplate: {reason}.")));
    }
    if !tool.body_property_key.is_empty() {
        return Ok(arguments.get(&tool.body_property_key).cloned());
    }
    let elsewhere = |key: &String| tool.path_parameters_keys.contains(key) || tool.query_parameters_keys.contains(key);
    let rest = arguments.iter().filter(|(key, _)| !elsewhere(key)).map(|(key, value)| (key.clone(), value.clone()));
    let rest: Object = rest.collect();
    Ok((!rest.is_empty()).then_some(Value::Object(rest)))
}

fn file_address(value: &Value) -> Option<&str> {
    value.get("downloadUrl").or_else(|| value.get("donwloadUrl"))?.as_str()
}

fn is_file(value: &Value) -> bool {
    file_address(value).is_some()
}

async fn part(egress: &Egress, name: &str, value: &Value) -> Result<FormPart, Failure> {
    let name = name.to_owned();
    let Some(address) = file_address(value) else {
        return Ok(FormPart { name, file: None, bytes: plain(value).into() });
    };
    let fetched = egress.get(address).await?;
    if !(200..300).contains(&fetched.status) {
        let reason = format!("The file `{name}` cannot be read: its address answers {}.", fetched.status);
        return Err(Failure::new("UPSTREAM_ERROR", reason));
    }
    let given = value.get("name").and_then(Value::as_str);
    let last = || address.rsplit('/').next().and_then(|name| name.split('?').next()).filter(|name| !name.is_empty());
    let file = given.or_else(last).unwrap_or("file").to_owned();
    let media_type = if fetched.media_type.is_empty() { "application/octet-stream" } else { &fetched.media_type };
    Ok(FormPart { name, file: Some((file, media_type.to_owned())), bytes: fetched.bytes })
}

/// The answer as a value: JSON where the media type or the text allows, else text.
pub(crate) fn read(media_type: &str, bytes: &Bytes) -> Value {
    if bytes.is_empty() {
        return Value::Null;
    }
    let looks_like = bytes.trim_ascii_start().first().is_some_and(|first| matches!(first, b'{' | b'['));
    if (looks_like || media_type.contains("json"))
        && let Ok(value) = parse(bytes)
    {
        return value;
    }
    String::from_utf8_lossy(bytes).into_owned().into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn url(endpoint: &str, arguments: &Value) -> Result<String, Failure> {
        let tool = ToolDefinition {
            endpoint: endpoint.to_owned(),
            path_parameters_keys: vec!["id".to_owned()],
            query_parameters_keys: vec!["q".to_owned(), "o".to_owned()],
            ..ToolDefinition::default()
        };
        let server = Url::parse("https://shop.example/v2/?k=1").expect("a URL");
        address(&server, &tool, arguments.as_object().expect("an object")).map(String::from)
    }

    #[test]
    fn an_argument_is_one_segment_or_one_value_whatever_it_holds() {
        assert_eq!(
            url("/orders/${id}", &json!({"id": "a/1"})),
            Ok("https://shop.example/v2/orders/a%2F1?k=1".to_owned())
        );
        for (hostile, segment) in [
            ("../admin", "..%2Fadmin"),
            ("a?x=1#f", "a%3Fx%3D1%23f"),
            ("%2e%2e", "%252e%252e"),
            ("..\\..", "..%5C.."),
            ("a\tb\nc", "a%09b%0Ac"),
            ("ä@:", "%C3%A4%40%3A"),
            ("//evil.example", "%2F%2Fevil.example"),
        ] {
            let expected = format!("https://shop.example/v2/o/{segment}/x?k=1");
            assert_eq!(url("o/${id}/x", &json!({"id": hostile})), Ok(expected), "{hostile}");
        }
        for refused in [json!({}), json!({"id": ""}), json!({"id": "."}), json!({"id": ".."}), json!({"id": null})] {
            assert_eq!(url("/o/${id}", &refused).expect_err("refused").code, "INVALID_ARGUMENTS", "{refused}");
        }
        let queried = url("/o", &json!({"q": ["a&b", 1, true], "o": {"n": "ü"}}));
        assert_eq!(
            queried,
            Ok("https://shop.example/v2/o?k=1&q=a%26b&q=1&q=true&o=%7B%22n%22%3A%22%C3%BC%22%7D".to_owned())
        );
        assert_eq!(url("https://shop.example/abs", &json!({})), Ok("https://shop.example/abs".to_owned()));
        assert_eq!(url("https://evil.example/abs", &json!({})).expect_err("refused").code, "URL_NOT_ALLOWED");
    }
}
