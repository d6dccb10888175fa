//! A tool that gets another name stays what it is: what operators, grants and users say of it goes with it.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::model::{PlatformTool, ProfileSettings, ToolOverride, fit};

/// How a change of a profile renames its tools.
pub(crate) struct Renames {
    /// Names without an alias that are others now.
    base_names: HashMap<String, String>,
    /// Slugs that are others now, or nobody's: what is said of tools there goes with them.
    slugs: HashMap<String, Option<String>>,
    /// Aliases as they were, by name, and the names that had them.
    aliases: HashMap<String, String>,
    aliased: HashMap<String, String>,
}

impl Renames {
    /// `names`: what servers call their tools.
    pub fn new(before: &ProfileSettings, after: &ProfileSettings, names: &HashMap<String, HashSet<String>>) -> Self {
        let (mut slugs, mut base_names) = (HashMap::new(), HashMap::new());
        let slug_of = |settings: &ProfileSettings, id: &str| {
            settings.servers.iter().find(|of| of.tool_server_id == id).and_then(|of| of.slug.clone())
        };
        let taken: HashSet<&str> = after.servers.iter().filter_map(|of| of.slug.as_deref()).collect();
        for was in &before.servers {
            let Some(slug) = &was.slug else { continue };
            match slug_of(after, &was.tool_server_id) {
                Some(now) if now == *slug => {}
                Some(now) => {
                    for name in names.get(&was.tool_server_id).into_iter().flatten() {
                        base_names.insert(fit(&format!("{slug}__{name}")), fit(&format!("{now}__{name}")));
                    }
                    slugs.insert(slug.clone(), Some(now));
                }
                // What is said of a server that is gone waits for it, unless another has its slug.
                None if taken.contains(slug.as_str()) => drop(slugs.insert(slug.clone(), None)),
                None => {}
            }
        }
        base_names.extend(renamed_targets(&before.platform_tools, &after.platform_tools));
        let pairs = || before.tool_overrides.iter().filter_map(|of| Some((of.alias.clone()?, of.name.clone())));
        Self {
            base_names,
            slugs,
            aliases: pairs().map(|(alias, name)| (name, alias)).collect(),
            aliased: pairs().collect(),
        }
    }

    /// Servers whose tools have other names now, by their slugs before.
    pub fn moved<'a>(before: &'a ProfileSettings, after: &ProfileSettings) -> Vec<&'a str> {
        let stays = |id: &str, slug: &Option<String>| {
            after.servers.iter().all(|of| of.tool_server_id != id || of.slug == *slug)
        };
        let moved = before.servers.iter().filter(|of| !stays(&of.tool_server_id, &of.slug));
        moved.map(|of| of.tool_server_id.as_str()).collect()
    }

    /// Whether a tool may be called otherwise than before.
    pub fn is_any(&self, after: &[ToolOverride]) -> bool {
        let aliases = after.iter().filter_map(|of| Some((of.name.clone(), of.alias.clone()?)));
        !self.base_names.is_empty() || !self.slugs.is_empty() || aliases.collect::<HashMap<_, _>>() != self.aliases
    }

    /// The name of a tool without an alias; `None` when what had it is gone, and another has its slug.
    fn base_name(&self, was: &str) -> Option<String> {
        if let Some(now) = self.base_names.get(was) {
            return Some(now.clone());
        }
        match was.split_once("__").and_then(|(slug, name)| Some((self.slugs.get(slug)?, name))) {
            None => Some(was.to_owned()),
            Some((now, name)) => now.as_ref().map(|now| fit(&format!("{now}__{name}"))),
        }
    }

    /// Has what operators say of tools say it of the same ones; `is_given`: with the change, where names that are good
    /// now are meant so.
    pub fn overrides(&self, after: &mut Vec<ToolOverride>, is_given: bool) {
        let is_now = |name: &str| {
            let slug = name.split_once("__").map_or("", |(slug, _)| slug);
            let of_slug = self.slugs.values().flatten().any(|now| now == slug);
            of_slug || self.base_names.values().any(|now| now == name)
        };
        // What was renamed stands before what had that name for nobody.
        let mut kept: BTreeMap<String, (bool, usize, ToolOverride)> = BTreeMap::new();
        for (at, of) in after.drain(..).enumerate() {
            let now = if is_given && is_now(&of.name) { Some(of.name.clone()) } else { self.base_name(&of.name) };
            let Some(now) = now else { continue };
            let is_renamed = now != of.name;
            if kept.get(&now).is_none_or(|(was_renamed, ..)| is_renamed && !was_renamed) {
                kept.insert(now.clone(), (is_renamed, at, ToolOverride { name: now, ..of }));
            }
        }
        let mut kept: Vec<(usize, ToolOverride)> = kept.into_values().map(|(_, at, of)| (at, of)).collect();
        kept.sort_by_key(|(at, _)| *at);
        after.extend(kept.into_iter().map(|(_, of)| of));
    }

    /// What a tool is called now that was called so, with its alias or without.
    pub fn name(&self, was: &str, after: &[ToolOverride]) -> String {
        let of_alias = self.aliased.get(was);
        let base = of_alias.map_or(was, String::as_str);
        let Some(now) = self.base_name(base) else { return was.to_owned() };
        // By the name that no client saw it is called as before.
        if of_alias.is_none() && self.aliases.contains_key(was) {
            return now;
        }
        let alias = after.iter().find(|of| of.name == now).and_then(|of| of.alias.clone());
        alias.unwrap_or(now)
    }
}

/// Tools of assistants and agents that have another name; of a target that has several it is not known which is which.
fn renamed_targets(before: &[PlatformTool], after: &[PlatformTool]) -> Vec<(String, String)> {
    let is_same = |one: &PlatformTool, other: &PlatformTool| {
        one.target_type == other.target_type && one.target_id == other.target_id
    };
    let only = |of: &[PlatformTool], other: &PlatformTool| of.iter().filter(|one| is_same(one, other)).count() == 1;
    let renamed = before.iter().filter_map(|was| {
        let now = after.iter().find(|now| is_same(was, now))?;
        let names = (was.exposed_name(), now.exposed_name());
        (only(before, was) && only(after, was) && names.0 != names.1).then_some(names)
    });
    renamed.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;

    fn settings(given: Value) -> ProfileSettings {
        from_value(given).expect("settings")
    }

    fn renamed(before: &Value, after: &Value, is_given: bool) -> (Value, impl Fn(&str) -> String + use<>) {
        let (before, mut after) = (settings(before.clone()), settings(after.clone()));
        let long = "delete_".to_owned() + &"x".repeat(60);
        let names = HashMap::from([("A".to_owned(), HashSet::from([long])), ("B".to_owned(), HashSet::new())]);
        let renames = Renames::new(&before, &after, &names);
        renames.overrides(&mut after.tool_overrides, is_given);
        let overrides = serde_json::to_value(&after.tool_overrides).expect("JSON");
        (overrides, move |name: &str| renames.name(name, &after.tool_overrides))
    }

    #[test]
    fn what_is_said_of_tools_goes_with_them_when_slugs_are_swapped_taken_over_or_given_anew() {
        let servers = |slugs: &[(&str, &str)]| {
            slugs.iter().map(|(id, slug)| json!({"toolServerId": id, "slug": slug})).collect::<Vec<_>>()
        };
        let off = |name: &str| json!({"name": name, "enabled": false});
        let before = json!({"name": "P", "servers": servers(&[("A", "a"), ("B", "b")]),
            "toolOverrides": [{"name": "a__wipe", "alias": "wipe", "enabled": false}, off("b__wipe")]});
        let with = |slugs: &[(&str, &str)], overrides: &Value| json!({"name": "P", "servers": servers(slugs), "toolOverrides": overrides});
        let own = &before["toolOverrides"];
        let (swapped, name) = renamed(&before, &with(&[("A", "b"), ("B", "a")], own), false);
        assert_eq!(swapped, json!([{"name": "b__wipe", "alias": "wipe", "enabled": false}, off("a__wipe")]));
        assert_eq!([name("wipe"), name("b__wipe"), name("other")], ["wipe", "a__wipe", "other"]);
        let long = fit(&format!("a__delete_{}", "x".repeat(60)));
        assert_eq!(name(&long), fit(&format!("b__delete_{}", "x".repeat(60))), "a name that was cut");
        let (taken, _) = renamed(&before, &with(&[("B", "a")], own), false);
        assert_eq!(taken, json!([off("a__wipe")]), "nothing of the server that is gone");
        let (gone, _) = renamed(&before, &with(&[("B", "b")], own), false);
        assert_eq!(gone, *own, "it may come back");
        let (given, _) = renamed(&before, &with(&[("A", "b"), ("B", "c")], &json!([off("b__wipe")])), true);
        assert_eq!(given, json!([off("b__wipe")]), "the names that are good now are meant");
        let (read, _) = renamed(&before, &with(&[("A", "n"), ("B", "b")], own), true);
        assert_eq!(read[0]["name"], "n__wipe", "a record that is sent back as it was read");

        let ask = |name: &str| json!({"targetType": "assistant", "targetId": "x", "name": name});
        let of = |tools: Vec<Value>, overrides: Value| json!({"name": "P", "platformTools": tools, "toolOverrides": overrides});
        let two = of(vec![ask("one"), ask("two")], json!([off("one")]));
        let (same, name) = renamed(&two, &two, false);
        assert_eq!((same, name("one")), (json!([off("one")]), "one".to_owned()));
        let (now, name) =
            renamed(&of(vec![ask("one")], json!([off("one")])), &of(vec![ask("two")], json!([off("one")])), false);
        assert_eq!((now, name("one")), (json!([off("two")]), "two".to_owned()));
    }
}
