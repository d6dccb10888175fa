//! A tool that gets another name stays what it is: what operators, grants and users say of it goes with it.

use std::collections::HashMap;

use crate::{
    model::{PlatformTool, ProfileSettings, ToolOverride, fit},
    repository::Seen,
};

/// How a change of a profile renames its tools.
pub(crate) struct Renames<'a> {
    before: HashMap<&'a str, &'a ToolOverride>,
    /// Prefixes of names, `<slug>__`, and what they are now.
    prefixes: Vec<(String, String)>,
    /// Names without an alias, where more than the prefix differs.
    others: HashMap<String, String>,
}

impl<'a> Renames<'a> {
    /// `seen`: names that servers have for their tools.
    pub fn new(before: &'a ProfileSettings, after: &ProfileSettings, seen: &Seen) -> Self {
        let (mut prefixes, mut others) = (Vec::new(), HashMap::new());
        for now in &after.servers {
            let was = before.servers.iter().find(|was| was.tool_server_id == now.tool_server_id);
            let slugs = was.and_then(|was| was.slug.as_ref()).zip(now.slug.as_ref());
            let Some((was, now_is)) = slugs.filter(|(was, now)| was != now) else { continue };
            for name in seen.get(&now.tool_server_id).into_iter().flat_map(HashMap::keys) {
                others.insert(fit(&format!("{was}__{name}")), fit(&format!("{now_is}__{name}")));
            }
            prefixes.push((format!("{was}__"), format!("{now_is}__")));
        }
        for now in &after.platform_tools {
            let is_same = |was: &&PlatformTool| was.target_type == now.target_type && was.target_id == now.target_id;
            if let Some(was) = before.platform_tools.iter().find(is_same) {
                others.insert(was.exposed_name(), now.exposed_name());
            }
        }
        let before = before.tool_overrides.iter().map(|of| (of.name.as_str(), of)).collect();
        Self { before, prefixes, others }
    }

    /// The name of a tool without an alias.
    fn base_name(&self, was: &str) -> String {
        let by_prefix = || {
            let renamed =
                |(from, to): &(String, String)| was.strip_prefix(from.as_str()).map(|rest| format!("{to}{rest}"));
            self.prefixes.iter().find_map(renamed).map(|name| fit(&name))
        };
        self.others.get(was).cloned().or_else(by_prefix).unwrap_or_else(|| was.to_owned())
    }

    /// Has what operators say of tools say it of the same ones.
    pub fn overrides(&self, after: &mut Vec<ToolOverride>) {
        let names: Vec<String> = after.iter().map(|of| self.base_name(&of.name)).collect();
        let is_said_anew = |name: &String| after.iter().any(|of| of.name == *name);
        let kept: Vec<ToolOverride> = after
            .iter()
            .zip(&names)
            .filter(|(of, name)| of.name == **name || !is_said_anew(name))
            .map(|(of, name)| ToolOverride { name: name.clone(), ..of.clone() })
            .collect();
        *after = kept;
    }

    /// What a tool is called now that was called so, with its alias or without.
    pub fn name(&self, was: &str, after: &[ToolOverride]) -> String {
        let of_alias = self.before.values().find(|of| of.alias.as_deref() == Some(was));
        let base = of_alias.map_or(was, |of| of.name.as_str());
        let now = self.base_name(base);
        // By the name that no client saw it is called as before.
        if of_alias.is_none() && self.before.get(was).is_some_and(|of| of.alias.is_some()) {
            return now;
        }
        let alias = after.iter().find(|of| of.name == now).and_then(|of| of.alias.clone());
        alias.unwrap_or(now)
    }
}
