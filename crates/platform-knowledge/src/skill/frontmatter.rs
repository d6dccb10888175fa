//! Who a skill is: `name` and `description` of the YAML at the very top of its text, each shown as one line.

use std::borrow::Cow;

/// So many bytes of a text are looked at.
pub(super) const HEAD_BYTES: usize = 4096;
const MAX_NAME: usize = 200;
const MAX_DESCRIPTION: usize = 1024;

/// Name and description that a text gives itself.
pub(super) fn identity(text: &str) -> (Option<String>, Option<String>) {
    let text = text.trim_start_matches('\u{feff}');
    let Some(rest) = text.strip_prefix("---\n").or_else(|| text.strip_prefix("---\r\n")) else { return (None, None) };
    let (mut fields, mut is_closed) = (Vec::<(&str, String)>::new(), false);
    for line in rest.lines() {
        match line.split_once(':') {
            _ if line.trim_end() == "---" => {
                is_closed = true;
                break;
            }
            // A value may go on over lines that stand further in.
            _ if line.starts_with([' ', '\t']) => {
                fields.last_mut().into_iter().for_each(|(_, value)| value.extend([" ", line.trim()]));
            }
            Some((key, value)) => fields.push((key, value.trim().to_owned())),
            None => {}
        }
    }
    // It may end behind what is looked at; what ends nowhere is no frontmatter.
    if !is_closed && text.len() < HEAD_BYTES {
        return (None, None);
    }
    let of = |name: &str, most: usize| {
        let value = fields.iter().rev().find(|(key, _)| *key == name)?.1.trim();
        // Block scalars (`>-`, `|`) say first how they are folded.
        let block = value.strip_prefix(['>', '|']).map(|value| value.trim_start_matches(['+', '-']).trim_start());
        let value = block.map_or_else(|| unquoted(value), Cow::Borrowed);
        let in_line = |c: char| if c.is_control() { ' ' } else { c };
        (!value.is_empty()).then(|| value.chars().map(in_line).take(most).collect())
    };
    (of("name", MAX_NAME), of("description", MAX_DESCRIPTION))
}

/// What stands in quotes, without a comment behind them.
fn without_comment(value: &str) -> &str {
    let comment = value.rfind(" #").filter(|at| value[..*at].trim_end().ends_with(['"', '\'']));
    let is_quoted = value.starts_with(['"', '\'']) && !value.ends_with(['"', '\'']);
    comment.filter(|_| is_quoted).map_or(value, |at| value[..at].trim_end())
}

/// A YAML scalar of one line without its quotes.
fn unquoted(value: &str) -> Cow<'_, str> {
    let value = without_comment(value);
    let within = |quote: char| value.strip_prefix(quote).and_then(|value| value.strip_suffix(quote));
    if let Some(bare) = within('"') {
        return serde_json::from_str(value).map_or(bare.into(), Cow::Owned);
    }
    within('\'').map_or(value.into(), |bare| bare.replace("''", "'").into())
}

/// A text as a YAML scalar of one line.
fn scalar(text: &str) -> String {
    let text = text.replace(['\r', '\n'], " ");
    let is_plain = text.starts_with(char::is_alphabetic)
        && text.chars().all(|c| c.is_alphanumeric() || " -_.,()/'".contains(c))
        && !["true", "false", "null", "yes", "no", "on", "off"].contains(&text.to_lowercase().as_str());
    if is_plain { text } else { serde_json::Value::from(text).to_string() }
}

/// A description as it is shown.
pub(super) fn shortened(text: &str) -> String {
    text.chars().take(MAX_DESCRIPTION).collect()
}

/// The text of a new skill.
pub(super) fn stub(name: &str, description: &str) -> String {
    format!(
        "---\nname: {}\ndescription: {}\n---\n\n# {}\n\nSay here what to do, step by step.\n",
        scalar(name),
        scalar(description),
        name.replace(['\r', '\n'], " ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skill_is_who_its_first_lines_say() {
        let text = "---\nname: \"review\"\nlicense: MIT\ndescription: Reads: changes\nmetadata:\n  name: inner\n---\n# Title\nname: not this";
        assert_eq!(identity(text), (Some("review".to_owned()), Some("Reads: changes".to_owned())));
        assert_eq!(identity("# Title\n---\nname: x\n---"), (None, None));
        assert_eq!(identity("---\nname: open\n# Title"), (None, None), "what ends nowhere is no frontmatter");
        let long = format!("---\nname: long\n{}", "key: value\n".repeat(400));
        assert_eq!(identity(&long[..HEAD_BYTES]).0.as_deref(), Some("long"), "it may end behind what is looked at");
        let quoted = "---\nname: 'it''s'\ndescription: \"say \\\"so\\\"\"\n---\n";
        assert_eq!(identity(quoted), (Some("it's".to_owned()), Some("say \"so\"".to_owned())));
        let noted = "---\nname: \"a # b\" # it's a name\ndescription: 'it''s # good: yes' # comment\n---\n";
        assert_eq!(identity(noted), (Some("a # b".to_owned()), Some("it's # good: yes".to_owned())));
        let escaped = "---\nname: \"a\\u0000b\\r\\nc\"\n---\n";
        assert_eq!(identity(escaped).0.as_deref(), Some("a b  c"), "in one line, whatever is escaped");
        for folded in [
            "description: >-\n  Reads\n  changes",
            "description: |\n  Reads\n  changes\n",
            "description: Reads\n  changes",
            "description:\n  \"Reads\n  changes\"",
        ] {
            let text = format!("---\n{folded}\nname: review\n---\n");
            let expected = (Some("review".to_owned()), Some("Reads changes".to_owned()));
            assert_eq!(identity(&text), expected, "{folded}");
        }
        for name in ["a\nb", "\"quoted\"", "# note: 'x'", "true", "über: alles", "a'"] {
            let stub = stub(name, "c");
            assert_eq!(identity(&stub), (Some(name.replace('\n', " ")), Some("c".to_owned())), "{stub}");
        }
    }
}
