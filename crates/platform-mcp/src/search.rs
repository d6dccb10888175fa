//! Three tools in place of many: find, describe, call (contract 12 §2).

use std::sync::Arc;

use platform_core::{Error, Object, Result, run_blocking};
use serde_json::{
    Value, json,
    value::{RawValue, to_raw_value},
};

use crate::{
    protocol::{error_text, text_result},
    surface::{Tool, View},
};

const MAX_FOUND: usize = 20;
/// Words of a query that count.
const MAX_WORDS: usize = 16;

/// What one of the three means.
pub(crate) enum Found {
    /// An answer.
    Result(Value),
    /// A call of this tool.
    Call(String, Object),
    /// It is none of them.
    Nothing,
}

/// The three, as MCP lists them.
pub(crate) fn tools() -> Result<Vec<Arc<RawValue>>> {
    let tool = |name: &str, description: &str, properties: Value, required: &[&str]| {
        json!({"name": name, "description": description,
            "inputSchema": {"type": "object", "properties": properties, "required": required}})
    };
    let name = json!({"type": "string", "description": "Name of a tool, as find_tools gives it"});
    let tools = [
        tool(
            "find_tools",
            "Finds tools by what they do.",
            json!({"query": {"type": "string", "description": "What is to be done, in a few words"}}),
            &["query"],
        ),
        tool("describe_tool", "Gives a tool's description and arguments.", json!({"name": name}), &["name"]),
        tool(
            "call_tool",
            "Calls a tool.",
            json!({"name": name, "arguments": {"type": "object", "description": "As describe_tool says"}}),
            &["name"],
        ),
    ];
    tools.iter().map(|tool| Ok(to_raw_value(tool).map_err(Error::internal)?.into())).collect()
}

/// Answers a call of one of the three.
pub(crate) async fn answer(view: &Arc<View>, name: &str, arguments: &Object) -> Result<Found> {
    let text = |name: &str| arguments.get(name).and_then(Value::as_str).unwrap_or_default();
    Ok(match name {
        "find_tools" => {
            let (view, query) = (Arc::clone(view), text("query").to_lowercase());
            Found::Result(run_blocking(move || Ok(found(&view, &query))).await?)
        }
        "describe_tool" => Found::Result(match view.tool(text("name")) {
            Some(tool) => {
                let listed = tool.listed.get();
                text_result(listed, &serde_json::from_str(listed).map_err(Error::internal)?)
            }
            None => error_text("TOOL_NOT_FOUND", "There is no such tool; find one with find_tools."),
        }),
        "call_tool" => {
            let given = match arguments.get("arguments") {
                None | Some(Value::Null) => Object::default(),
                Some(Value::Object(given)) => given.clone(),
                Some(_) => {
                    let message = "arguments must be an object, as describe_tool says.";
                    return Ok(Found::Result(error_text("INVALID_ARGUMENTS", message)));
                }
            };
            Found::Call(text("name").to_owned(), given)
        }
        _ => Found::Nothing,
    })
}

/// Tools in whose name or description words of a query stand, the most of them first.
fn found(view: &View, query: &str) -> Value {
    let words: Vec<&str> =
        query.split(|c: char| !c.is_alphanumeric()).filter(|word| word.len() > 1).take(MAX_WORDS).collect();
    let score = |tool: &Tool| {
        let (name, description) = (tool.name.to_lowercase(), tool.description.to_lowercase());
        let of = |word: &&str| 2 * usize::from(name.contains(*word)) + usize::from(description.contains(*word));
        words.iter().map(of).sum::<usize>()
    };
    let mut scored: Vec<(usize, &Tool)> = view.tools().map(|tool| (score(tool), tool)).collect();
    scored.retain(|(score, _)| *score > 0 || words.is_empty());
    scored.sort_by(|(one, _), (other, _)| other.cmp(one));
    let shown = |(_, tool): &(usize, &Tool)| json!({"name": tool.name, "description": tool.description});
    let tools: Vec<Value> = scored.iter().take(MAX_FOUND).map(shown).collect();
    let structured = json!({"tools": tools, "total": scored.len()});
    text_result(&structured.to_string(), &structured)
}
