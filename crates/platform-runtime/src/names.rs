use std::collections::HashMap;

use aws_lc_rs::digest::{SHA256, digest};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};

use crate::{NamePrefix, SourceTool, is_function_name};

const LONGEST: usize = 64;
const HASH: usize = 8;

/// Names by which a model calls tools (contract 04 §6): bare where nothing clashes.
pub(crate) fn exposed(tools: &[SourceTool]) -> Vec<String> {
    let mut bare: HashMap<&str, usize> = HashMap::new();
    for tool in tools.iter().filter(|tool| !matches!(tool.prefix, NamePrefix::Always(_))) {
        *bare.entry(&tool.tool.name).or_default() += 1;
    }
    let name = |SourceTool { tool, prefix, .. }: &SourceTool| match prefix {
        NamePrefix::Always(prefix) => fit(&format!("{prefix}__{}", tool.name)),
        NamePrefix::OnClash(prefix) if bare[tool.name.as_str()] > 1 => fit(&format!("{prefix}__{}", tool.name)),
        NamePrefix::OnClash(_) | NamePrefix::Never => fit(&tool.name),
    };
    tools.iter().map(name).collect()
}

/// A name that providers take: what does not fit is cut and told apart by a hash.
fn fit(name: &str) -> String {
    if is_function_name(name) {
        return name.to_owned();
    }
    let good = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-') { c } else { '_' };
    let start: String = name.chars().map(good).take(LONGEST - HASH - 1).collect();
    let hash = URL_SAFE_NO_PAD.encode(&digest(&SHA256, name.as_bytes()).as_ref()[..HASH * 3 / 4]);
    format!("{start}_{hash}")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use async_trait::async_trait;
    use platform_core::Object;
    use serde_json::json;

    use super::*;
    use crate::{Action, Approval, Tool, ToolResult};

    #[test]
    fn only_names_that_clash_get_a_prefix_and_long_ones_a_hash() {
        struct Nothing;
        #[async_trait]
        impl Action for Nothing {
            async fn call(&self, _: &str, _: Object) -> ToolResult {
                ToolResult::of(&json!(null))
            }
        }
        let tool = |name: &str, prefix| SourceTool {
            tool: Tool { name: name.to_owned(), description: String::new(), parameters: Arc::default() },
            prefix,
            approval: Approval::No,
            is_repeatable: true,
            action: Arc::new(Nothing),
        };
        let http = |identifier: &str, bare| tool(bare, NamePrefix::OnClash(identifier.to_owned()));
        let mcp = |identifier: &str, bare| tool(bare, NamePrefix::Always(identifier.to_owned()));
        let built_in = tool("current_time", NamePrefix::Never);
        let long = "x".repeat(64);
        let tools = [
            built_in,
            http("a", "get"),
            http("b", "get"),
            http("a", "list"),
            http("a", "current_time"),
            mcp("m", "get"),
            mcp("m", "dotted.name"),
            mcp("m", &long),
        ];
        let names = exposed(&tools);
        assert_eq!(names[..6], ["current_time", "a__get", "b__get", "list", "a__current_time", "m__get"]);
        assert!(names[6].starts_with("m__dotted_name_") && names[7].len() == 64, "{names:?}");
        assert!(names.iter().all(|name| is_function_name(name)));
        assert_ne!(fit(&format!("{long}a")), fit(&format!("{long}b")));
    }
}
