use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use async_trait::async_trait;
use platform_core::{AccountId, Caller, Error, ErrorKind, Result, Session};

use crate::{
    code,
    demand::{Demand, Right},
    kind::{Kind, Place, Reference, References, Resources},
    reach::{ProjectRole, Reach},
};

/// Whether a check let the caller through; that it could not be made is an error.
pub fn allowed(checked: Result<()>) -> Result<bool> {
    match checked {
        Ok(()) => Ok(true),
        Err(error) if error.is_refusal() => Ok(false),
        Err(error) => Err(error),
    }
}

/// What the bus calls projects and members that changed, by account; of none: of all.
pub const PROJECT_TOPIC: &str = "project";

/// The projects of accounts, as far as access is concerned.
#[async_trait]
pub trait Projects: Send + Sync {
    /// What a caller reaches now.
    async fn reach<'a>(&self, caller: &'a Caller) -> Result<Reach<'a>>;
}

/// There are no projects.
#[derive(Debug)]
pub struct NoProjects;

#[async_trait]
impl Projects for NoProjects {
    async fn reach<'a>(&self, caller: &'a Caller) -> Result<Reach<'a>> {
        Ok(Reach::new(Arc::default(), caller))
    }
}

/// Judges who reaches which record.
pub struct Access {
    projects: Arc<dyn Projects>,
    resources: BTreeMap<Kind, Arc<dyn Resources>>,
}

impl Access {
    /// `kinds`: those that will be named.
    ///
    /// # Errors
    /// The kinds whose records can be in a project and that nobody can say it of.
    pub fn new(
        projects: Arc<dyn Projects>,
        resources: impl IntoIterator<Item = (Kind, Arc<dyn Resources>)>,
        kinds: &[Kind],
    ) -> Result<Self, BTreeSet<Kind>> {
        let resources: BTreeMap<_, _> = resources.into_iter().collect();
        let unknown = kinds.iter().filter(|kind| kind.is_placed() && !resources.contains_key(kind));
        let unknown: BTreeSet<Kind> = unknown.copied().collect();
        if unknown.is_empty() { Ok(Self { projects, resources }) } else { Err(unknown) }
    }

    /// What a caller reaches of the projects of its account.
    pub async fn reach<'a>(&self, caller: &'a Caller) -> Result<Reach<'a>> {
        self.projects.reach(caller).await
    }

    /// Whether there is or was a record that the caller must not know of.
    pub async fn hides(&self, caller: &Caller, kind: Kind, id: &str) -> Result<bool> {
        match self.known_to(caller, kind, id).await {
            Ok(()) => Ok(false),
            Err(error) if error.code().kind() == ErrorKind::NotFound => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Whether a caller may know of a record, by the name of its kind; one of the whole account all know.
    pub async fn sees(&self, caller: &Caller, (kind, id): (&str, &str)) -> Result<bool> {
        let Some(kind) = self.resources.keys().find(|known| known.name() == kind) else { return Ok(true) };
        let named = [(*kind, id.to_owned())];
        allowed(self.check(caller, Demand { named: &named, reads: true, ..Demand::default() }).await)
    }

    /// Refuses a caller whose demand goes further than it reaches. What does not exist is left to whoever can say so.
    pub async fn check(&self, caller: &Caller, demand: Demand<'_>) -> Result<()> {
        self.check_own(caller, &demand).await?;
        self.check_projects(caller, &demand).await?;
        if demand.right == Right::Approve {
            self.check_approval(caller, demand.named).await?;
        }
        Ok(())
    }

    /// Refuses a caller who was let in before and reaches the named records no longer. It asks little, for it is asked
    /// again and again: whose a record is never changes, but where it is and to whom it is open.
    pub async fn check_still(&self, caller: &Caller, named: &[Reference]) -> Result<()> {
        self.check_open(caller, named).await?;
        let reach = self.reach(caller).await?;
        if reach.is_whole() {
            return Ok(());
        }
        for record in named {
            if let Some(project) = self.project(&caller.account, record).await? {
                return reach.check(&project, ProjectRole::Viewer);
            }
        }
        Ok(())
    }

    /// Refuses who may not have the tools called that the named records refer to: that takes an editor wherever those
    /// are.
    pub async fn check_approval(&self, caller: &Caller, named: &[Reference]) -> Result<()> {
        let reach = self.reach(caller).await?;
        if reach.is_whole() {
            return Ok(());
        }
        let mut concerned = named.to_vec();
        for (kind, id) in named {
            if let Some(resources) = self.resources.get(kind) {
                concerned.extend(resources.tools(&caller.account, id).await?);
            }
        }
        for record in &concerned {
            if let Some(project) = self.project(&caller.account, record).await? {
                reach.check(&project, ProjectRole::Editor)?;
            }
        }
        Ok(())
    }

    /// Refuses who may not put a copy of the named records into their projects.
    pub async fn check_copy(&self, caller: &Caller, named: &[Reference]) -> Result<()> {
        let reach = self.reach(caller).await?;
        for record in named {
            if let Some(project) = self.project(&caller.account, record).await? {
                reach.admits(&project)?;
            }
        }
        Ok(())
    }

    /// What is hidden from users and sessions.
    async fn check_open(&self, caller: &Caller, named: &[Reference]) -> Result<()> {
        if caller.role().is_none() && caller.session().is_none() {
            return Ok(());
        }
        for (kind, id) in named {
            if let Some(resources) = self.resources.get(kind) {
                resources.open_to(caller, id).await?;
            }
        }
        Ok(())
    }

    /// What is hidden from users and sessions, and what is of another tenant than a session.
    async fn check_own(&self, caller: &Caller, demand: &Demand<'_>) -> Result<()> {
        self.check_open(caller, demand.named).await?;
        let Some(session) = caller.session() else { return Ok(()) };
        for record in demand.named.iter().chain(&demand.references) {
            check_owner(session, self.place(&caller.account, record).await?.as_ref())?;
        }
        Ok(())
    }

    /// What is in projects: its members see it, editors change it and put something there.
    async fn check_projects(&self, caller: &Caller, demand: &Demand<'_>) -> Result<()> {
        let reach = self.reach(caller).await?;
        if reach.is_whole() && caller.role().is_none() && demand.joins.is_none() {
            return Ok(());
        }
        let mut places = Vec::with_capacity(demand.named.len());
        for record in demand.named {
            places.extend(self.place(&caller.account, record).await?);
        }
        let project = places.iter().find_map(|place| place.project.clone());
        if let Some(project) = &project {
            let is_own = |place: &Place| place.started_by.as_ref().is_none_or(|user| *user == caller.user_uid);
            let uses = demand.right == Right::Use && (demand.reads || places.iter().all(is_own));
            reach.check(project, if uses { ProjectRole::Viewer } else { ProjectRole::Editor })?;
        }
        if !reach.is_whole() || caller.role().is_some() {
            self.check_references(caller, &reach, demand).await?;
        }
        if let Some(joined) = demand.joins.as_ref().filter(|joined| project.as_ref() != Some(joined)) {
            reach.admits(joined)?;
        }
        Ok(())
    }

    /// What is referred to must be known to the caller, and in sight; what a record referred to before it may keep.
    async fn check_references(&self, caller: &Caller, reach: &Reach<'_>, demand: &Demand<'_>) -> Result<()> {
        let mut refused = Vec::new();
        for record in &demand.references {
            if let Err(error) = self.check_reference(caller, reach, record).await {
                refused.push((record, error));
            }
        }
        if refused.is_empty() {
            return Ok(());
        }
        let held = self.held(&caller.account, demand.named).await?;
        refused.retain(|(record, _)| !held.contains(*record));
        let hidden = refused.iter().filter(|(_, error)| error.code() == code::PROJECT_FORBIDDEN);
        let hidden: Vec<String> = hidden.map(|((kind, id), _)| format!("{} `{id}`", kind.name())).collect();
        match refused.into_iter().next() {
            Some((_, error)) if error.code() == code::PROJECT_FORBIDDEN => {
                let message =
                    format!("In a private project of which this credential is no member: {}.", hidden.join(", "));
                Err(error.saying(message))
            }
            Some((_, error)) => Err(error),
            None => Ok(()),
        }
    }

    async fn check_reference(&self, caller: &Caller, reach: &Reach<'_>, record: &Reference) -> Result<()> {
        self.known_to(caller, record.0, &record.1).await?;
        let Some(resources) = self.resources.get(&record.0) else { return Ok(()) };
        match self.project(&caller.account, record).await? {
            Some(project) => reach.check(&project, resources.referred_by()),
            None => Ok(()),
        }
    }

    /// What the named records refer to already.
    async fn held(&self, account: &AccountId, named: &[Reference]) -> Result<References> {
        let mut held = References::new();
        for (kind, id) in named {
            if let Some(resources) = self.resources.get(kind) {
                held.extend(resources.references(account, id).await?);
            }
        }
        Ok(held)
    }

    async fn known_to(&self, caller: &Caller, kind: Kind, id: &str) -> Result<()> {
        match self.resources.get(&kind) {
            Some(resources) => resources.known_to(caller, id).await,
            None => Ok(()),
        }
    }

    async fn place(&self, account: &AccountId, (kind, id): &Reference) -> Result<Option<Place>> {
        match self.resources.get(kind) {
            Some(resources) => resources.place(account, id).await,
            None => Ok(None),
        }
    }

    async fn project(&self, account: &AccountId, record: &Reference) -> Result<Option<String>> {
        Ok(self.place(account, record).await?.and_then(|place| place.project))
    }
}

/// `NOT_OWNER` when a record belongs to somebody else than a session's tenant and end user.
pub fn check_owner(session: &Session, place: Option<&Place>) -> Result<()> {
    match place.and_then(|place| place.owner.as_ref()) {
        Some(owner) if !session.owns(owner) => {
            Err(Error::new(code::NOT_OWNER, "This belongs to another tenant or subtenant."))
        }
        _ => Ok(()),
    }
}
