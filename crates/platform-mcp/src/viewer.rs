//! Who asks: as grants and switches name them, and what they reach.

use std::sync::Arc;

use platform_access::{Access, Demand, allowed};
use platform_core::{Caller, Credential, Result};
use platform_toolservers::TOOL_SERVER;

use crate::{
    model::{ProfileSettings, SubjectType, TargetType, Visibility},
    surface::Granted,
};

/// Somebody who is shown tools.
pub struct Viewer {
    pub(crate) caller: Caller,
    /// As the audit and switches name them.
    pub(crate) name: String,
    /// As grants may.
    names: Vec<(SubjectType, String)>,
    access: Arc<Access>,
}

impl Viewer {
    /// `claims`: what the token of the caller says, name and value.
    pub fn new(caller: Caller, claims: &[(String, String)], access: Arc<Access>) -> Self {
        let (name, names) = match &caller.credential {
            Credential::FullKey(id) | Credential::RestrictedKey(id) => {
                (format!("key:{id}"), vec![(SubjectType::Key, id.clone())])
            }
            Credential::Token { user, .. } => {
                // What stands before the first `=` of a grant's subject is the name.
                let claims = claims.iter().filter(|(name, _)| !name.contains('='));
                let claims = claims.map(|(name, value)| (SubjectType::Claim, format!("{name}={value}")));
                (format!("user:{user}"), [(SubjectType::User, user.clone())].into_iter().chain(claims).collect())
            }
            Credential::Session(session) => {
                let tenant = session.tenant_id.clone();
                match &session.subtenant_id {
                    Some(subtenant) => {
                        let end_user = format!("{tenant}/{subtenant}");
                        let name = format!("subtenant:{end_user}");
                        (name, vec![(SubjectType::Tenant, tenant), (SubjectType::Subtenant, end_user)])
                    }
                    None => (format!("tenant:{tenant}"), vec![(SubjectType::Tenant, tenant)]),
                }
            }
        };
        Self { caller, name, names, access }
    }

    /// Those of the grants of a profile that name it.
    pub(crate) fn granted(&self, grants: &[Arc<Granted>]) -> Vec<Arc<Granted>> {
        grants.iter().filter(|grant| grant.is_of(&self.names)).cloned().collect()
    }

    /// Whether it sees a profile without a grant.
    pub(crate) fn sees(&self, settings: &ProfileSettings) -> bool {
        let is_whole_key = matches!(self.caller.credential, Credential::FullKey(_)) && self.caller.is_admin();
        match settings.visibility {
            _ if is_whole_key => true,
            Visibility::Public => true,
            Visibility::Account => self.caller.session().is_none(),
            Visibility::Private => false,
        }
    }

    /// Whether it may use an assistant or agent.
    pub(crate) async fn may_use(&self, target: TargetType, id: &str) -> Result<bool> {
        let named = [(target.kind(), id.to_owned())];
        allowed(self.access.check(&self.caller, Demand { named: &named, ..Demand::default() }).await)
    }

    /// Whether it may decide that tools of a server are called.
    pub(crate) async fn may_approve(&self, server: &str) -> Result<bool> {
        allowed(self.access.check_approval(&self.caller, &[(TOOL_SERVER, server.to_owned())]).await)
    }
}
