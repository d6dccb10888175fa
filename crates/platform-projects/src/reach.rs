use std::{collections::HashMap, sync::Arc};

use platform_core::{Caller, Code, Credential, Error, Result, Session};

use crate::model::{ProjectRole, Visibility};

/// What of an account's projects has to do with access.
#[derive(Debug, Default)]
pub(crate) struct Known {
    pub projects: HashMap<String, KnownProject>,
    /// User → project → role.
    pub members: HashMap<String, HashMap<String, ProjectRole>>,
}

#[derive(Debug)]
pub(crate) struct KnownProject {
    pub visibility: Visibility,
    pub archived: bool,
}

/// What a caller reaches of the projects of its account (contract 01 §2).
#[derive(Debug, Clone)]
pub struct Reach<'a> {
    known: Arc<Known>,
    by: By<'a>,
}

/// From what it follows.
#[derive(Debug, Clone)]
enum By<'a> {
    /// All projects alike.
    All(ProjectRole),
    /// The projects that a key is bound to.
    Key(&'a [String]),
    /// Memberships of a user.
    User(&'a str),
}

impl<'a> Reach<'a> {
    pub(crate) fn new(known: Arc<Known>, caller: &'a Caller) -> Self {
        let by = match (&caller.credential, &caller.projects) {
            (
                Credential::Token { is_admin: false, user, .. }
                | Credential::Session(Session { minted_for: Some(user), .. }),
                _,
            ) => By::User(user),
            (Credential::Token { .. }, _) | (Credential::FullKey(_), None) => By::All(ProjectRole::Owner),
            (_, Some(bound)) => By::Key(bound),
            (Credential::RestrictedKey(_) | Credential::Session(_), None) => By::All(ProjectRole::Editor),
        };
        Self { known, by }
    }

    /// What it may do in a project; `None` when it has no part in it.
    fn role(&self, id: &str) -> Option<ProjectRole> {
        let own = match &self.by {
            By::All(role) => Some(*role),
            By::Key(bound) => bound.iter().any(|listed| listed == id).then_some(ProjectRole::Editor),
            By::User(user) => self.known.members.get(*user).and_then(|roles| roles.get(id)).copied(),
        };
        let is_public = self.known.projects.get(id).is_some_and(|project| project.visibility == Visibility::Public);
        own.or(is_public.then_some(ProjectRole::Viewer))
    }

    /// It reaches every project.
    pub fn is_whole(&self) -> bool {
        matches!(self.by, By::All(_))
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
                Err(Error::new(Code::Forbidden, message).with("projectId", id).with("requiredRole", least))
            }
            None => {
                let message = "This belongs to a private project of which this credential is no member.";
                Err(Error::new(Code::ProjectForbidden, message).with("projectId", id))
            }
        }
    }

    /// Whether something may be put into a project: `PROJECT_NOT_FOUND`, what [`Reach::check`] says of an editor,
    /// or `PROJECT_ARCHIVED`.
    pub fn admits(&self, id: &str) -> Result<()> {
        let project = self.known.projects.get(id);
        let project = project.ok_or_else(|| Error::not_found(Code::ProjectNotFound, "project", id))?;
        self.check(id, ProjectRole::Editor)?;
        if project.archived {
            let message = "This project is archived, so nothing can be added to it; bring it back first.";
            return Err(Error::new(Code::ProjectArchived, message).with("projectId", id));
        }
        Ok(())
    }

    /// Projects that a key may be bound to which this caller makes; `None` = to none.
    pub fn editable(&self) -> Option<Vec<String>> {
        let editable = |id: &&String| self.role(id) >= Some(ProjectRole::Editor);
        match &self.by {
            By::All(_) => None,
            By::Key(bound) => Some(bound.to_vec()),
            By::User(_) => Some(self.known.projects.keys().filter(editable).cloned().collect()),
        }
    }

    /// Projects whose objects it sees beside those that are in none; `None` = all.
    pub fn readable(&self) -> Option<Vec<String>> {
        let readable = |id: &&String| self.role(id).is_some();
        (!self.is_whole()).then(|| self.known.projects.keys().filter(readable).cloned().collect())
    }
}
