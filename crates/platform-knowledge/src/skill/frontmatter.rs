//! Who a skill is: `name` and `description` of the YAML at the very top of its text, each on one line.

/// So many bytes of a text are looked at.
pub(super) const HEAD_BYTES: usize = 4096;
const MOST_NAME: usize = 200;
const MOST_DESCRIPTION: usize = 1024;

/// Name and description that a text gives itself.
pub(super) fn identity(text: &str) -> (Option<String>, Option<String>) {
    let text = text.trim_start_matches('\u{feff}');
    let Some(rest) = text.strip_prefix("---\n").or_else(|| text.strip_prefix("---\r\n")) else { return (None, None) };
    let (mut name, mut description) = (None, None);
    for line in rest.lines() {
        if line.trim_end() == "---" {
            break;
        }
        let Some((key, value)) = line.split_once(':') else { continue };
        let value = value.trim();
        let bare = ['"', '\''].iter().find_map(|quote| value.strip_prefix(*quote)?.strip_suffix(*quote));
        let value = bare.unwrap_or(value);
        let cut = |most: usize| (!value.is_empty()).then(|| value.chars().take(most).collect::<String>());
        match key {
            "name" => name = cut(MOST_NAME),
            "description" => description = cut(MOST_DESCRIPTION),
            _ => {}
        }
    }
    (name, description)
}

/// A description as it is shown.
pub(super) fn shortened(text: &str) -> String {
    text.chars().take(MOST_DESCRIPTION).collect()
}

/// The text of a new skill.
pub(super) fn stub(name: &str, description: &str) -> String {
    let line = |text: &str| text.replace(['\r', '\n'], " ");
    format!(
        "---\nname: {}\ndescription: {}\n---\n\n# {}\n\nSay here what to do, step by step.\n",
        line(name),
        line(description),
        line(name)
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
        assert_eq!(identity(&stub("a\nb", "c")), (Some("a b".to_owned()), Some("c".to_owned())));
    }
}
