use std::{collections::HashMap, sync::Arc};

use platform_core::{Caller, Code, Credential, Error, Result};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::code;

/// Who may read what is in a project.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Visibility {
    /// Its members.
    #[default]
    Private,
    /// Every user of the account, who may also use it.
    Public,
}

impl Visibility {
    /// As it is stored.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Private => "private",
            Self::Public => "public",
        }
    }

    /// Of what is stored.
    pub fn of(name: &str) -> Self {
        if name == "public" { Self::Public } else { Self::Private }
    }
}

/// What a member may do; each includes what the ones before it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ProjectRole {
    /// Read and use what is in the project.
    Viewer,
    /// Change it.
    Editor,
    /// Change the project and its members.
    Owner,
}

impl ProjectRole {
    /// As it is stored.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Editor => "editor",
            Self::Owner => "owner",
        }
    }

    /// Of what is stored.
    pub fn of(name: &str) -> Self {
        match name {
            "owner" => Self::Owner,
            "editor" => Self::Editor,
            _ => Self::Viewer,
        }
    }
}

/// What of an account's projects has to do with access.
#[derive(Debug, Default)]
pub struct KnownProjects {
    /// By id.
    pub projects: HashMap<String, KnownProject>,
    /// User → project → role.
    pub members: HashMap<String, HashMap<String, ProjectRole>>,
}

/// What of a project has to do with access.
#[derive(Debug)]
pub struct KnownProject {
    /// Its other name.
    pub identifier: String,
    /// Who may read it.
    pub visibility: Visibility,
    /// Nothing can be added.
    pub archived: bool,
}

/// What a caller reaches of the projects of its account (contract 01 §2).
#[derive(Debug, Clone)]
pub struct Reach<'a> {
    known: Arc<KnownProjects>,
    /// No more than this in any project.
    most: ProjectRole,
    /// The projects that its key is bound to; `None` = to none.
    bound: Option<&'a [String]>,
    /// The user behind it, whose memberships bound it; `None` = nobody's do.
    member: Option<&'a str>,
}

impl<'a> Reach<'a> {
    /// `known`: the projects of the caller's account.
    pub fn new(known: Arc<KnownProjects>, caller: &'a Caller) -> Self {
        let most = match (&caller.credential, &caller.projects) {
            (Credential::Token { .. }, _) | (Credential::FullKey(_), None) => ProjectRole::Owner,
            _ => ProjectRole::Editor,
        };
        Self { known, most, bound: caller.projects.as_deref(), member: caller.member() }
    }

    /// What it may do in a project; `None` when it has no part in it.
    fn role(&self, id: &str) -> Option<ProjectRole> {
        let own = match self.member {
            Some(user) => self.known.members.get(user).and_then(|roles| roles.get(id)).copied(),
            None => Some(self.most),
        };
        let is_bound_elsewhere = self.bound.is_some_and(|bound| !bound.iter().any(|listed| listed == id));
        let own = own.filter(|_| !is_bound_elsewhere).map(|role| role.min(self.most));
        let is_public = self.known.projects.get(id).is_some_and(|project| project.visibility == Visibility::Public);
        own.or(is_public.then_some(ProjectRole::Viewer))
    }

    /// It reaches every project.
    pub fn is_whole(&self) -> bool {
        self.bound.is_none() && self.member.is_none()
    }

    /// `PROJECT_FORBIDDEN` when it has no part in a project, `FORBIDDEN` when it may do less there than `least`.
    pub fn check(&self, id: &str, least: ProjectRole) -> Result<()> {
        match self.role(id) {
            Some(role) if role >= least => Ok(()),
            Some(role) => {
                let message = format!(
                    "In this project that takes the role {}; this credential is {role}.",
                    least.as_str(),
                    role = role.as_str()
                );
                Err(Error::new(Code::FORBIDDEN, message).with("projectId", id).with("requiredRole", least))
            }
            None => {
                let message = "This belongs to a private project of which this credential is no member.";
                Err(Error::new(code::PROJECT_FORBIDDEN, message).with("projectId", id))
            }
        }
    }

    /// Whether something may be put into a project: `PROJECT_NOT_FOUND`, what [`Reach::check`] says of an editor,
    /// or `PROJECT_ARCHIVED`.
    pub fn admits(&self, id: &str) -> Result<()> {
        let project = self.known.projects.get(id);
        let project = project.ok_or_else(|| Error::not_found(code::PROJECT_NOT_FOUND, "project", id))?;
        self.check(id, ProjectRole::Editor)?;
        if project.archived {
            let message =
                format!("The project `{id}` is archived, so nothing can be added to it; bring it back first.");
            return Err(Error::new(code::PROJECT_ARCHIVED, message).with("projectId", id));
        }
        Ok(())
    }

    /// Projects in which it may change things: a key that it makes is bound to some of them; `None` = all.
    pub fn editable(&self) -> Option<Vec<String>> {
        let editable = |id: &&String| self.role(id) >= Some(ProjectRole::Editor);
        (!self.is_whole()).then(|| self.known.projects.keys().filter(editable).cloned().collect())
    }

    /// The id of a project that is named by its identifier.
    pub fn id_of(&self, name: &str) -> Option<&str> {
        if self.known.projects.contains_key(name) {
            return None;
        }
        self.known.projects.iter().find(|(_, project)| project.identifier == name).map(|(id, _)| id.as_str())
    }

    /// `PROJECT_NOT_FOUND` when one of these projects is none of the account's.
    pub fn require(&self, ids: &[String]) -> Result<()> {
        let missing = ids.iter().find(|id| !self.known.projects.contains_key(*id));
        missing.map_or(Ok(()), |id| Err(Error::not_found(code::PROJECT_NOT_FOUND, "project", id)))
    }

    /// Projects whose objects it sees beside those that are in none; `None` = all.
    pub fn readable(&self) -> Option<Vec<String>> {
        let readable = |id: &&String| self.role(id).is_some();
        (!self.is_whole()).then(|| self.known.projects.keys().filter(readable).cloned().collect())
    }
}
