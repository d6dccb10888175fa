use std::sync::Arc;

use async_trait::async_trait;
use diesel_async::AsyncConnection;
use platform_access::{KnownProjects, PROJECT_TOPIC, ProjectRole, Projects, Reach, code};
use platform_auth::{User, UserService};
use platform_core::{
    AccountId, Caller, Checks, Clock, Code, Credential, Error, Id, Object, Page, Result, Timestamp, overlay,
};
use platform_db::{Bus, Capacity, Conn, Db, Idempotency, InvalidatedCache};

use crate::{
    model::{Member, NewMember, NewProject, Project, ProjectFilter, ProjectPage, ProjectPatch},
    repository::{self, ProjectRow},
};

/// Accounts whose projects are remembered at once.
const MAX_REMEMBERED: u64 = 10_000;

/// Projects of an account and their members. A project is named by its id or identifier; `PROJECT_NOT_FOUND`,
/// `PROJECT_FORBIDDEN` and `FORBIDDEN` as [`Reach::check`] gives it come from all that name one.
#[async_trait]
pub trait ProjectService: Send + Sync {
    /// Makes a project; a user who does becomes its owner. `IDENTIFIER_TAKEN` when there is one of that identifier.
    async fn create(&self, caller: &Caller, new: NewProject, once: Option<&Idempotency>) -> Result<Project>;
    /// Those the caller reaches, newest first.
    async fn list(&self, caller: &Caller, filter: &ProjectFilter, page: Page) -> Result<ProjectPage>;
    /// One project.
    async fn get(&self, caller: &Caller, name: &Id<Project>) -> Result<Project>;
    /// Changes the given fields; takes an owner.
    async fn update(&self, caller: &Caller, name: &Id<Project>, patch: Object) -> Result<Project>;
    /// Who belongs to it, in the order they came.
    async fn members(&self, caller: &Caller, name: &Id<Project>) -> Result<Vec<Member>>;
    /// Adds a user or changes their role; `true` when they are new. Takes an owner; `CONFLICT` when none would be left.
    async fn set_member(
        &self,
        caller: &Caller,
        name: &Id<Project>,
        new: NewMember,
        once: Option<&Idempotency>,
    ) -> Result<(bool, Member)>;
    /// Takes a user out; takes an owner, and leaves one.
    async fn remove_member(&self, caller: &Caller, name: &Id<Project>, user: &Id<User>) -> Result<()>;
    /// A user was deleted, and what they were a member of with them.
    async fn user_deleted(&self, user: &Id<User>) -> Result<()>;
}

/// Projects on PostgreSQL.
pub struct PgProjectService {
    db: Db,
    clock: Arc<dyn Clock>,
    users: Arc<dyn UserService>,
    known: Arc<InvalidatedCache<AccountId, KnownProjects>>,
}

impl PgProjectService {
    /// Tells other processes of changes over the bus.
    pub fn new(db: &Db, bus: &Bus, clock: Arc<dyn Clock>, users: Arc<dyn UserService>) -> Self {
        Self {
            db: db.clone(),
            clock,
            users,
            known: InvalidatedCache::new(bus, PROJECT_TOPIC, Capacity::Entries(MAX_REMEMBERED)),
        }
    }

    /// The project, when the caller may do so much there.
    async fn find(&self, caller: &Caller, name: &str, least: ProjectRole) -> Result<ProjectRow> {
        let row = repository::find(self.db.read().await?.get(), &caller.account, name).await?;
        let row = row.ok_or_else(|| not_found(name))?;
        self.reach(caller).await?.check(&row.id, least)?;
        Ok(row)
    }
}

#[async_trait]
impl Projects for PgProjectService {
    async fn reach<'a>(&self, caller: &'a Caller) -> Result<Reach<'a>> {
        let load = async { repository::known(self.db.read().await?.get(), &caller.account).await.map(Some) };
        let known = self.known.get_or_load(&caller.account, load).await?;
        Ok(Reach::new(known.unwrap_or_default(), caller))
    }
}

#[async_trait]
impl ProjectService for PgProjectService {
    async fn create(&self, caller: &Caller, new: NewProject, once: Option<&Idempotency>) -> Result<Project> {
        new.check()?;
        let now = self.clock.now();
        let row = ProjectRow {
            id: Id::<Project>::generate_hex().into(),
            account_id: caller.account.as_str().to_owned(),
            identifier: new.identifier,
            name: new.name,
            description: new.description,
            image_url: new.image_url,
            visibility: new.visibility.as_str().to_owned(),
            archived: false,
            created_by: caller.user_uid.clone(),
            created_ms: now.0,
            edited_ms: now.0,
        };
        let mut conn = self.db.conn().await?;
        let creating = conn.transaction::<_, Error, _>(async |conn| {
            if !repository::insert(conn, &row).await? {
                let message = format!("There is a project `{}` already; choose another identifier.", row.identifier);
                return Err(Error::new(Code::IDENTIFIER_TAKEN, message));
            }
            if let Credential::Token { user, .. } = &caller.credential {
                repository::set_member(conn, &caller.account, &row.id, user, ProjectRole::Owner, now).await?;
            }
            let project = Project::from(row);
            Idempotency::store_if(once, conn, 201, &project).await?;
            Ok(project)
        });
        let project = creating.await?;
        drop(conn);
        self.known.changed(caller.account.as_str()).await?;
        Ok(project)
    }

    async fn list(&self, caller: &Caller, filter: &ProjectFilter, page: Page) -> Result<ProjectPage> {
        let (archived, readable) = (filter.archived == Some(true), self.reach(caller).await?.readable());
        let conn = self.db.fair_conn(&caller.account).await?;
        let (rows, total) = repository::list(&conn, &caller.account, archived, readable.as_deref(), page).await?;
        let projects = rows.into_iter().map(Project::from).collect();
        Ok(ProjectPage { projects, total, offset: page.offset, limit: page.limit })
    }

    async fn get(&self, caller: &Caller, name: &Id<Project>) -> Result<Project> {
        Ok(self.find(caller, name, ProjectRole::Viewer).await?.into())
    }

    async fn update(&self, caller: &Caller, name: &Id<Project>, mut patch: Object) -> Result<Project> {
        // Fields are judged before it matters what they are applied to.
        let named = ProjectPatch { name: "named".to_owned(), ..ProjectPatch::default() };
        overlay(&named, patch.clone())?.check(Checks::default())?;
        let found = self.find(caller, name, ProjectRole::Owner).await?;
        if patch.remove("identifier").is_some_and(|given| given != found.identifier.as_str()) {
            return Err(Error::invalid("identifier", "conflict", "identifier never changes; leave it out"));
        }
        let now = self.clock.now();
        let mut conn = self.db.conn().await?;
        let updating = conn.transaction::<_, Error, _>(async |conn| {
            let row = repository::lock(conn, &caller.account, &found.id).await?.ok_or_else(|| not_found(name))?;
            let changed = overlay(&row.patchable(), patch)?;
            changed.check(Checks::default())?;
            repository::update(conn, &caller.account, &found.id, &changed, now).await
        });
        let project = updating.await?;
        drop(conn);
        self.known.changed(caller.account.as_str()).await?;
        Ok(project.into())
    }

    async fn members(&self, caller: &Caller, name: &Id<Project>) -> Result<Vec<Member>> {
        let project = self.find(caller, name, ProjectRole::Viewer).await?;
        let members = repository::members(self.db.read().await?.get(), &caller.account, &project.id).await?;
        let ids: Vec<&str> = members.iter().map(|(user, ..)| user.as_str()).collect();
        let mut emails = self.users.emails(&caller.account, &ids).await?;
        let member = |(user_uid, role, added): (String, ProjectRole, Timestamp)| {
            let email = emails.remove(&user_uid);
            Member { user_uid, email, role, added_timestamp_ms: added }
        };
        Ok(members.into_iter().map(member).collect())
    }

    async fn set_member(
        &self,
        caller: &Caller,
        name: &Id<Project>,
        new: NewMember,
        once: Option<&Idempotency>,
    ) -> Result<(bool, Member)> {
        let project = self.find(caller, name, ProjectRole::Owner).await?;
        let user = self.users.get_user(&caller.account, &Id::named(&new.user_uid)).await?;
        let now = self.clock.now();
        let mut conn = self.db.conn().await?;
        let setting = conn.transaction::<_, Error, _>(async |conn| {
            let is_new = !changes_member(conn, &caller.account, &project.id, &user.id, Some(new.role)).await?;
            let added = repository::set_member(conn, &caller.account, &project.id, &user.id, new.role, now).await?;
            let member = Member { user_uid: user.id, email: user.email, role: new.role, added_timestamp_ms: added };
            if let Some(once) = once {
                once.store(conn, if is_new { 201 } else { 200 }, &member).await?;
            }
            Ok((is_new, member))
        });
        let set = setting.await?;
        drop(conn);
        self.known.changed(caller.account.as_str()).await?;
        Ok(set)
    }

    async fn remove_member(&self, caller: &Caller, name: &Id<Project>, user: &Id<User>) -> Result<()> {
        let project = self.find(caller, name, ProjectRole::Owner).await?;
        let mut conn = self.db.conn().await?;
        let removing = conn.transaction::<_, Error, _>(async |conn| {
            if !changes_member(conn, &caller.account, &project.id, user, None).await? {
                return Err(Error::not_found(Code::NOT_FOUND, "member", user));
            }
            repository::remove_member(conn, &caller.account, &project.id, user).await
        });
        removing.await?;
        drop(conn);
        self.known.changed(caller.account.as_str()).await
    }

    async fn user_deleted(&self, _: &Id<User>) -> Result<()> {
        self.known.changed("").await
    }
}

/// Locks the members of a project before one of them gets a role, or none: whether they belong to it. `CONFLICT`
/// when they are the only owner and are not to be one.
async fn changes_member(
    conn: &mut Conn,
    account: &AccountId,
    project: &str,
    user: &str,
    role: Option<ProjectRole>,
) -> Result<bool> {
    repository::lock(conn, account, project).await?.ok_or_else(|| not_found(project))?;
    let members = repository::members(&*conn, account, project).await?;
    let mut owners = members.iter().filter(|(_, role, _)| *role == ProjectRole::Owner);
    let is_only_owner = owners.next().is_some_and(|(owner, ..)| owner == user) && owners.next().is_none();
    if is_only_owner && role != Some(ProjectRole::Owner) {
        let message = "This is the last owner of the project; make somebody else an owner first.";
        return Err(Error::new(Code::CONFLICT, message).with("userUID", user));
    }
    Ok(members.iter().any(|(member, ..)| member == user))
}

fn not_found(name: &str) -> Error {
    Error::not_found(code::PROJECT_NOT_FOUND, "project", name)
}
