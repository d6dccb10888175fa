use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use platform_core::{AccountId, Result};

use crate::{
    Tool, TurnScope,
    names::exposed,
    tools::{Action, Callbacks, ToolGroup, TurnTool},
};

/// Tools of one kind, in the groups that assistants and agents choose.
#[async_trait]
pub trait ToolSource: Send + Sync {
    /// The groups that are part of the platform: no record can be missing, and no account has others.
    fn built_in(&self) -> Vec<ToolGroup> {
        Vec::new()
    }

    /// A group by its id; `None` when this source has none of that id.
    async fn group(&self, account: &AccountId, uid: &str) -> Result<Option<ToolGroup>>;

    /// The tools of a group as they are now; `None` when this source has none of that id.
    async fn tools(&self, account: &AccountId, uid: &str, turn: &ToolTurn<'_>) -> Result<Option<Vec<SourceTool>>>;
}

/// The turn that tools are for.
#[derive(Clone, Copy)]
pub struct ToolTurn<'a> {
    /// For whom it runs, and what it sees.
    pub scope: &'a Arc<TurnScope>,
    /// Longest call.
    pub timeout: Duration,
    /// Where results may come that calls do not give at once; `None` = the turn cannot wait for any.
    pub callbacks: Option<&'a Arc<dyn Callbacks>>,
}

/// A tool as its source offers it.
#[derive(Clone)]
pub struct SourceTool {
    /// What the model is told; its name is bare.
    pub tool: Tool,
    /// What may stand before the name.
    pub prefix: NamePrefix,
    /// Whether calls wait for approval.
    pub approval: Approval,
    /// A call may be made again when its result was lost.
    pub is_repeatable: bool,
    /// Carries out calls within the longest time of the turn.
    pub action: Arc<dyn Action>,
}

/// What stands before the name of a tool (contract 04 §6).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NamePrefix {
    /// Nothing: the name is the platform's.
    Never,
    /// This where another tool has the same name.
    OnClash(String),
    /// This in any case.
    Always(String),
}

/// Whether calls of a tool wait for approval, whatever the assistant says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Approval {
    /// They do not.
    No,
    /// They do, unless the assistant names others that do.
    UnlessOthers,
    /// They do.
    Yes,
}

/// Which tools a turn may use.
#[derive(Clone, Default)]
pub struct ToolChoice<'a> {
    /// For whom it runs, and what it sees.
    pub scope: Arc<TurnScope>,
    /// Tool servers and built-in groups.
    pub groups: &'a [String],
    /// Names that are allowed, exposed or bare; a tool must be in each list that is there.
    pub enabled: [Option<&'a [String]>; 2],
    /// Names that need approval, exposed or bare; `*` = all.
    pub approval: &'a [String],
    /// Longest call.
    pub timeout: Duration,
    /// Where results may come that calls do not give at once; `None` = the turn cannot wait for any.
    pub callbacks: Option<&'a Arc<dyn Callbacks>>,
}

/// All tools there are: names, clashes, approvals and allow-lists are decided here, for every source alike.
pub struct Toolbox {
    sources: Vec<Arc<dyn ToolSource>>,
}

impl Toolbox {
    /// Asks these in this order.
    pub fn new(sources: Vec<Arc<dyn ToolSource>>) -> Self {
        Self { sources }
    }

    /// The groups that are part of the platform.
    pub fn built_in(&self) -> Vec<ToolGroup> {
        self.sources.iter().flat_map(|source| source.built_in()).collect()
    }

    /// Those of some groups that are records of somebody.
    pub fn records(&self, uids: &[String]) -> Vec<String> {
        let built_in = self.built_in();
        uids.iter().filter(|uid| built_in.iter().all(|group| group.uid != **uid)).cloned().collect()
    }

    /// Groups by their ids, in that order; one that is not there is left out.
    pub async fn groups(&self, account: &AccountId, uids: &[String]) -> Result<Vec<ToolGroup>> {
        let mut groups = Vec::with_capacity(uids.len());
        for uid in uids {
            for source in &self.sources {
                if let Some(group) = source.group(account, uid).await? {
                    groups.push(group);
                    break;
                }
            }
        }
        Ok(groups)
    }

    /// The tools of a turn as they are at its start, under the names the model calls them by.
    pub async fn tools(&self, account: &AccountId, choice: &ToolChoice<'_>) -> Result<Vec<TurnTool>> {
        let turn = ToolTurn { scope: &choice.scope, timeout: choice.timeout, callbacks: choice.callbacks };
        let mut offered = Vec::new();
        for uid in choice.groups {
            for source in &self.sources {
                if let Some(tools) = source.tools(account, uid, &turn).await? {
                    offered.extend(tools);
                    break;
                }
            }
        }
        let names = exposed(&offered);
        let mut tools: Vec<TurnTool> = Vec::new();
        for (of, name) in offered.into_iter().zip(names) {
            let is_in = |list: &[String]| list.iter().any(|given| *given == name || *given == of.tool.name);
            let enabled = choice.enabled.iter().flatten().all(|list| is_in(list));
            if !enabled || tools.iter().any(|tool| tool.tool.name == name) {
                continue;
            }
            let listed = is_in(choice.approval) || choice.approval.iter().any(|given| given == "*");
            let needs_approval = match of.approval {
                Approval::No => listed,
                Approval::UnlessOthers => listed || choice.approval.is_empty(),
                Approval::Yes => true,
            };
            tools.push(TurnTool {
                tool: Tool { name, ..of.tool },
                is_alias: false,
                needs_approval,
                is_repeatable: of.is_repeatable,
                action: Some(of.action),
            });
        }
        Ok(tools)
    }
}
