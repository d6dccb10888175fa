use std::{collections::HashMap, sync::Arc};

use async_trait::async_trait;
use diesel_async::AsyncConnection;
use platform_access::{Place, ProjectRole, RecordRef, Referrers, Resources};
use platform_conversation::{ENVIRONMENT, Environments, InheritedParts, Refers};
use platform_core::{
    AccountId, Checks, Clock, Code, Error, FieldLimits, Id, Object, Page, Precondition, Result, overlay,
};
use platform_db::{Bus, Capacity, Conn, Db, Idempotency, InvalidatedCache};
use platform_egress::Egress;
use platform_files::Store;
use platform_knowledge::SkillRef;
use platform_runtime::{ChatStates, ThreadStates, TurnSkill};
use platform_sandbox::{Cli, SandboxBackend};
use platform_vault::{Secret, SecretLocation, Vault};
use serde_json::Value;

use super::{
    model::{
        ConnectedAgent, ConnectedAssistant, Connection, ConnectionVariables, Connections, EntityKind, Environment,
        EnvironmentFilter, EnvironmentList, EnvironmentSettings, SandboxSettings, Variables, check_variables, reveal,
    },
    repository::{self, EnvironmentRow},
};
use crate::{
    code,
    session::repository as sessions,
    session::{Machines, ProxyPlaces, probe},
    snapshot,
};

const TOPIC: &str = "environments";
const MAX_KNOWN: u64 = 10_000;
/// Groups of tools that are no records.
const BUILT_IN: &str = "builtin-";

/// Environments of an account. `ENVIRONMENT_NOT_FOUND` comes from all that name one.
#[async_trait]
pub trait EnvironmentService: Send + Sync {
    /// Makes an environment. The codes of what it refers to.
    async fn create(
        &self,
        account: &AccountId,
        settings: EnvironmentSettings,
        once: Option<&Idempotency>,
    ) -> Result<Environment>;
    /// Those that the filter keeps, newest first.
    async fn list(&self, account: &AccountId, filter: &EnvironmentFilter, page: Page) -> Result<EnvironmentList>;
    /// The environment of this id. `ENVIRONMENT_NOT_FOUND`.
    async fn get(&self, account: &AccountId, id: &Id<Environment>) -> Result<Environment>;
    /// Changes the given fields; `merges`: variables and machine key by key.
    async fn update(
        &self,
        account: &AccountId,
        id: &Id<Environment>,
        patch: Object,
        merges: bool,
        expected: &Precondition,
    ) -> Result<Environment>;
    /// Deletes one; `SESSION_ACTIVE` when its machine runs, unless `force`.
    async fn delete(
        &self,
        account: &AccountId,
        id: &Id<Environment>,
        force: bool,
        expected: &Precondition,
    ) -> Result<()>;
    /// Who is connected to it.
    async fn connections(&self, account: &AccountId, id: &Id<Environment>) -> Result<Connections>;
    /// Connects somebody, who leaves their former environment.
    async fn connect(
        &self,
        account: &AccountId,
        id: &Id<Environment>,
        entity: (EntityKind, &str),
        variables: ConnectionVariables,
    ) -> Result<Connection>;
    /// Disconnects somebody.
    async fn disconnect(&self, account: &AccountId, id: &Id<Environment>, entity: (EntityKind, &str)) -> Result<()>;
    /// The programs of its machine.
    async fn clis(&self, account: &AccountId, id: &Id<Environment>) -> Result<Vec<Cli>>;
}

/// What environments need of others.
pub struct EnvironmentNeeds {
    /// Where they are kept.
    pub db: Db,
    /// Whom changes are told.
    pub bus: Bus,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Seals variables.
    pub vault: Arc<Vault>,
    /// Where what is on machines is kept.
    pub store: Store,
    /// Fetches files for machines.
    pub egress: Egress,
    /// Who makes machines.
    pub backend: Arc<dyn SandboxBackend>,
    /// Which threads are over.
    pub threads: Arc<dyn ThreadStates>,
    /// Which chats are at work.
    pub chats: Arc<dyn ChatStates>,
    /// Who refers to them.
    pub referrers: Referrers,
    /// Sizes of fields.
    pub limits: FieldLimits,
    /// What machines may be.
    pub settings: SandboxSettings,
}

/// Environments on PostgreSQL.
pub struct PgEnvironments {
    pub(crate) db: Db,
    pub(crate) bus: Bus,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) vault: Arc<Vault>,
    pub(crate) store: Store,
    pub(crate) egress: Egress,
    pub(crate) backend: Arc<dyn SandboxBackend>,
    pub(crate) threads: Arc<dyn ThreadStates>,
    pub(crate) chats: Arc<dyn ChatStates>,
    pub(crate) settings: SandboxSettings,
    pub(crate) machines: Machines,
    pub(crate) proxied: ProxyPlaces,
    referrers: Referrers,
    limits: FieldLimits,
    known: Arc<InvalidatedCache<String, InheritedParts>>,
    /// What each runtime has.
    clis: tokio::sync::Mutex<HashMap<String, Vec<Cli>>>,
}
pub(crate) fn not_found(id: &str) -> Error {
    Error::not_found(Code::ENVIRONMENT_NOT_FOUND, "environment", id)
}

/// The variables of an environment, as they are sealed: its own, and those of its machine.
type Sealed = (Vec<(String, String)>, Vec<(String, String)>);

fn place<'a>(account: &'a AccountId, id: &'a str) -> SecretLocation<'a> {
    SecretLocation { account, table: "environments", column: "secrets", row: id }
}

fn plain(variables: &Variables) -> Vec<(String, String)> {
    variables.iter().map(|(name, value)| (name.clone(), value.expose().to_owned())).collect()
}

fn secret(variables: Vec<(String, String)>) -> Variables {
    variables.into_iter().map(|(name, value)| (name, Secret::from(value))).collect()
}

impl PgEnvironments {
    /// No machine is made before somebody wants one.
    pub fn new(needs: EnvironmentNeeds) -> Arc<Self> {
        let EnvironmentNeeds {
            db,
            bus,
            clock,
            vault,
            store,
            egress,
            backend,
            threads,
            chats,
            referrers,
            limits,
            settings,
        } = needs;
        let (known, machines) =
            (InvalidatedCache::by_id(&bus, TOPIC, Capacity::Entries(MAX_KNOWN)), Machines::new(settings.most));
        Arc::new(Self {
            db,
            bus,
            clock,
            vault,
            store,
            egress,
            backend,
            threads,
            chats,
            settings,
            machines,
            proxied: ProxyPlaces::default(),
            referrers,
            limits,
            known,
            clis: tokio::sync::Mutex::default(),
        })
    }

    pub(crate) async fn require(&self, account: &AccountId, id: &str) -> Result<EnvironmentRow> {
        repository::find(self.db.read().await?.get(), account, id).await?.ok_or_else(|| not_found(id))
    }

    /// What was set, with the variables as they are.
    pub(crate) fn open(&self, account: &AccountId, row: &EnvironmentRow) -> Result<EnvironmentSettings> {
        let opened = self.vault.open(&place(account, &row.id), &row.secrets)?;
        let (own, machine): Sealed = serde_json::from_str(opened.expose()).map_err(Error::internal)?;
        let mut settings = row.settings()?;
        settings.env_vars = secret(own);
        settings.sandbox_config.env_vars = secret(machine);
        Ok(settings)
    }

    /// Puts settings into a row; their variables are sealed, and masked everywhere else.
    fn put(&self, account: &AccountId, row: &mut EnvironmentRow, settings: &EnvironmentSettings) -> Result<()> {
        let sealed: Sealed = (plain(&settings.env_vars), plain(&settings.sandbox_config.env_vars));
        let sealed = serde_json::to_string(&sealed).map_err(Error::internal)?;
        row.secrets = self.vault.seal(&place(account, &row.id), &sealed);
        row.settings = serde_json::to_value(settings).map_err(Error::internal)?;
        row.project_id.clone_from(&settings.project_id);
        Ok(())
    }

    /// The variables of a connection.
    pub(crate) async fn connection_variables(
        &self,
        account: &AccountId,
        id: &str,
        entity: (&str, &str),
    ) -> Result<Variables> {
        let sealed = repository::variables(&mut *self.db.conn().await?, account, id, entity).await?;
        let Some(sealed) = sealed else { return Ok(Variables::new()) };
        let opened = self.vault.open(&connection_place(account, entity.1), &sealed)?;
        Ok(secret(serde_json::from_str(opened.expose()).map_err(Error::internal)?))
    }

    /// The variables of all connections, each by itself.
    pub(crate) async fn all_connection_variables(&self, account: &AccountId, id: &str) -> Result<Vec<Variables>> {
        let sealed = repository::all_variables(&mut *self.db.conn().await?, account, id).await?;
        let open = |(entity, sealed): (String, String)| {
            let opened = self.vault.open(&connection_place(account, &entity), &sealed)?;
            Ok(secret(serde_json::from_str(opened.expose()).map_err(Error::internal)?))
        };
        sealed.into_iter().map(open).collect()
    }

    /// Stores what an environment refers to; an error when that is not there.
    async fn refer_in(&self, conn: &mut Conn, account: &AccountId, id: &str, to: &EnvironmentSettings) -> Result<()> {
        let servers = to.available_tools_groups_uids.iter().filter(|uid| !uid.starts_with(BUILT_IN));
        let servers: Vec<String> = servers.cloned().collect();
        platform_toolservers::use_in(conn, account, (ENVIRONMENT, id), &servers).await?;
        let skills = to.knowledge_skills.iter();
        let skills: Vec<SkillRef> =
            skills.map(|skill| SkillRef { id: skill.id.clone(), r#type: skill.r#type.clone() }).collect();
        let (documents, folders) = (&to.knowledge_document_ids, &to.knowledge_folder_ids);
        platform_knowledge::use_in(conn, account, (ENVIRONMENT, id), documents, folders, &skills).await
    }

    async fn shown(&self, account: &AccountId, rows: Vec<EnvironmentRow>) -> Result<Vec<Environment>> {
        let ids: Vec<String> = rows.iter().map(|row| row.id.clone()).collect();
        let mut conn = self.db.conn().await?;
        let states = sessions::states(&mut conn, account, &ids).await?;
        let mut snapshots = snapshot::currents(&mut conn, account, &ids).await?;
        drop(conn);
        let shown = rows.into_iter().map(|row| {
            let state = match states.get(&row.id) {
                Some(true) => "saving",
                Some(false) => "active",
                None => "idle",
            };
            let snapshot_id = snapshots.remove(&row.id);
            let mut shown = row.shown(state, self.settings.public.as_ref())?;
            shown.settings.sandbox_config.snapshot_id = snapshot_id;
            Ok(shown)
        });
        shown.collect()
    }

    async fn one(&self, account: &AccountId, row: EnvironmentRow) -> Result<Environment> {
        self.shown(account, vec![row]).await?.pop().ok_or_else(|| Error::internal("one row is one environment"))
    }

    /// Says, after the commit, that those who are connected read anew what they are.
    async fn tell_connected(&self, users: &[(String, String)]) -> Result<()> {
        for (kind, user) in users {
            self.bus.tell(&format!("{kind}s"), user).await?;
        }
        Ok(())
    }
}

fn connection_place<'a>(account: &'a AccountId, entity: &'a str) -> SecretLocation<'a> {
    SecretLocation { account, table: "environment_variables", column: "secrets", row: entity }
}

/// What a patch means where it is merged key by key: `null` deletes.
fn merged(current: &EnvironmentSettings, mut patch: Object) -> Result<Object> {
    let current = serde_json::to_value(current).map_err(Error::internal)?;
    for name in ["envVars", "sandboxConfig"] {
        if let Some(Value::Object(given)) = patch.get_mut(name) {
            let mut whole = current[name].as_object().cloned().unwrap_or_default();
            for (key, value) in std::mem::take(given) {
                if value.is_null() {
                    whole.remove(&key);
                } else {
                    whole.insert(key, value);
                }
            }
            *given = whole;
        }
    }
    Ok(patch)
}

#[async_trait]
impl Resources for PgEnvironments {
    async fn place(&self, account: &AccountId, id: &str) -> Result<Option<Place>> {
        let row = repository::find(self.db.read().await?.get(), account, id).await?;
        Ok(row.map(|row| Place { project: row.project_id, ..Place::default() }))
    }

    /// What refers to an environment works in it, with its secrets.
    fn referred_by(&self) -> ProjectRole {
        ProjectRole::Editor
    }
}

#[async_trait]
impl Environments for PgEnvironments {
    async fn inherited(&self, account: &AccountId, id: &str) -> Result<Option<Arc<InheritedParts>>> {
        let load = async {
            let row = repository::find(self.db.read().await?.get(), account, id).await?;
            let Some(row) = row else { return Ok(None) };
            let settings = row.settings()?;
            let skills = settings.knowledge_skills.into_iter().filter(|skill| skill.enabled);
            Ok(Some(InheritedParts {
                groups: settings.available_tools_groups_uids,
                documents: settings.knowledge_document_ids,
                folders: settings.knowledge_folder_ids,
                skills: skills.map(|skill| TurnSkill { id: skill.id, preload: skill.preload_content }).collect(),
            }))
        };
        self.known.get_or_load(&platform_core::joined([account.as_str(), id]), load).await
    }

    async fn hold_in(&self, conn: &mut Conn, account: &AccountId, ids: &[String]) -> Result<Vec<String>> {
        if ids.is_empty() { Ok(Vec::new()) } else { repository::hold(conn, account, ids).await }
    }

    async fn sandboxes(&self, account: &AccountId, threads: &[String]) -> Result<HashMap<String, String>> {
        if threads.is_empty() {
            return Ok(HashMap::new());
        }
        sessions::last_of(self.db.read().await?.get(), account, threads).await
    }
}

#[async_trait]
impl EnvironmentService for PgEnvironments {
    async fn create(
        &self,
        account: &AccountId,
        mut settings: EnvironmentSettings,
        once: Option<&Idempotency>,
    ) -> Result<Environment> {
        settings.check(&self.limits, &self.settings)?;
        reveal("envVars", &mut settings.env_vars, &Variables::new())?;
        reveal("sandboxConfig.envVars", &mut settings.sandbox_config.env_vars, &Variables::new())?;
        let now = self.clock.now();
        let mut row = EnvironmentRow {
            account_id: account.as_str().to_owned(),
            id: Id::<Environment>::generate().into(),
            project_id: None,
            settings: Value::Null,
            secrets: String::new(),
            version: 1,
            created_ms: now.0,
            edited_ms: now.0,
        };
        self.put(account, &mut row, &settings)?;
        let environment = row.clone().shown("idle", self.settings.public.as_ref())?;
        let mut conn = self.db.conn().await?;
        let making = conn.transaction::<_, Error, _>(async |conn| {
            repository::insert(conn, &row).await?;
            self.refer_in(conn, account, &row.id, &settings).await?;
            Idempotency::store_if(once, conn, 201, &environment).await?;
            Ok(())
        });
        making.await?;
        Ok(environment)
    }

    async fn list(&self, account: &AccountId, filter: &EnvironmentFilter, page: Page) -> Result<EnvironmentList> {
        let conn = self.db.fair_conn(account).await?;
        let (rows, total) = repository::list(&conn, account, filter, page).await?;
        drop(conn);
        let environments = self.shown(account, rows).await?;
        Ok(EnvironmentList { environments, total, offset: page.offset, limit: page.limit })
    }

    async fn get(&self, account: &AccountId, id: &Id<Environment>) -> Result<Environment> {
        let row = self.require(account, id).await?;
        self.one(account, row).await
    }

    async fn update(
        &self,
        account: &AccountId,
        id: &Id<Environment>,
        patch: Object,
        merges: bool,
        expected: &Precondition,
    ) -> Result<Environment> {
        // Fields are judged before it matters what they are applied to.
        let named = EnvironmentSettings { name: "named".to_owned(), ..EnvironmentSettings::default() };
        let given = if merges { merged(&named, patch.clone())? } else { patch.clone() };
        overlay(&named, given)?.check(&self.limits, &self.settings)?;
        let now = self.clock.now();
        let mut conn = self.db.conn().await?;
        let changing = conn.transaction::<_, Error, _>(async |conn| {
            let found = repository::find(conn, account, id).await?.ok_or_else(|| not_found(id))?;
            // Before its own row, as whoever deletes what it refers to, and is to refer to, does.
            let current = self.open(account, &found)?;
            let refers = Refers {
                tools: current.available_tools_groups_uids,
                documents: current.knowledge_document_ids,
                folders: current.knowledge_folder_ids,
                skills: current.knowledge_skills.into_iter().map(|skill| (skill.id, skill.r#type)).collect(),
                ..Refers::default()
            };
            let all = refers.and(&Refers::of_patch(&patch).unwrap_or_default());
            let [documents, folders] = all.knowledge();
            platform_knowledge::hold_in(conn, account, &documents, &folders).await?;
            platform_toolservers::hold_in(conn, account, &all.tools).await?;
            let mut row = repository::lock(conn, account, &found.id).await?.ok_or_else(|| not_found(id))?;
            expected.check(row.version)?;
            let current = self.open(account, &row)?;
            let patch = if merges { merged(&current, patch)? } else { patch };
            let mut settings: EnvironmentSettings = overlay(&current, patch)?;
            settings.check(&self.limits, &self.settings)?;
            reveal("envVars", &mut settings.env_vars, &current.env_vars)?;
            reveal("sandboxConfig.envVars", &mut settings.sandbox_config.env_vars, &current.sandbox_config.env_vars)?;
            self.put(account, &mut row, &settings)?;
            (row.version, row.edited_ms) = (row.version + 1, now.0);
            repository::update(conn, account, &row).await?;
            self.refer_in(conn, account, id, &settings).await?;
            Ok(row)
        });
        let row = changing.await?;
        drop(conn);
        self.known.changed("").await?;
        self.one(account, row).await
    }

    async fn delete(
        &self,
        account: &AccountId,
        id: &Id<Environment>,
        force: bool,
        expected: &Precondition,
    ) -> Result<()> {
        expected.check(self.require(account, id).await?.version)?;
        if force {
            self.stop_all(account, id).await?;
        }
        let mut conn = self.db.conn().await?;
        let users = conn.transaction::<_, Error, _>(async |conn| {
            snapshot::lock_pieces(conn, account).await?;
            let row = repository::lock(conn, account, id).await?.ok_or_else(|| not_found(id))?;
            expected.check(row.version)?;
            if let Some(live) = sessions::live_of(conn, account, id).await?.into_iter().next() {
                let message = "The machine of this environment runs; stop it first, or delete with force=true.";
                return Err(Error::new(code::SESSION_ACTIVE, message).with("sandboxId", live.sandbox_id));
            }
            let users = self.referrers.forget_in(conn, account, &[ENVIRONMENT], &[id.to_string()]).await?;
            for kind in [
                platform_toolservers::TOOL_SERVER,
                platform_knowledge::DOCUMENT,
                platform_knowledge::FOLDER,
                platform_knowledge::SKILL,
            ] {
                platform_access::use_in(conn, account, (ENVIRONMENT, id), kind, &[]).await?;
            }
            repository::delete(conn, account, id).await?;
            Ok(users)
        });
        let users = users.await?;
        drop(conn);
        self.known.changed("").await?;
        self.tell_connected(&users).await
    }

    async fn connections(&self, account: &AccountId, id: &Id<Environment>) -> Result<Connections> {
        self.require(account, id).await?;
        let mut conn = self.db.conn().await?;
        let mut found = Connections::default();
        for row in repository::connections(&mut conn, account, id).await? {
            let user = (row.user_kind.as_str(), row.user_id.as_str());
            let Some((identifier, name)) = self.referrers.describe_in(&mut conn, account, user).await? else {
                continue;
            };
            let (id, connected_at_ms, env_var_keys) = (row.user_id, row.created_ms, row.names.unwrap_or_default());
            if row.user_kind == EntityKind::Agent.as_str() {
                found.agents.push(ConnectedAgent { id, name, connected_at_ms, env_var_keys });
            } else {
                found.assistants.push(ConnectedAssistant { id, identifier, name, connected_at_ms, env_var_keys });
            }
        }
        Ok(found)
    }

    async fn connect(
        &self,
        account: &AccountId,
        id: &Id<Environment>,
        (kind, name): (EntityKind, &str),
        variables: ConnectionVariables,
    ) -> Result<Connection> {
        let mut variables = variables.env_vars;
        let mut checks = Checks::default();
        check_variables(&mut checks, "envVars", &variables);
        checks.finish()?;
        let target: RecordRef<'_> = (ENVIRONMENT, id);
        let mut conn = self.db.conn().await?;
        let connecting = conn.transaction::<_, Error, _>(async |conn| {
            repository::lock(conn, account, id).await?.ok_or_else(|| not_found(id))?;
            let user = self.referrers.lock_in(conn, account, (kind.as_str(), name)).await?;
            let entity = (kind.as_str(), user.as_str());
            let former = repository::environment_of(conn, account, entity).await?;
            if let Some(former) = former.as_deref().filter(|former| *former != id.as_str()) {
                self.referrers.set_in(conn, account, entity, (ENVIRONMENT, former), false).await?;
            }
            let known = match repository::variables(conn, account, id, entity).await? {
                Some(sealed) => {
                    let opened = self.vault.open(&connection_place(account, &user), &sealed)?;
                    secret(serde_json::from_str(opened.expose()).map_err(Error::internal)?)
                }
                None => Variables::new(),
            };
            reveal("envVars", &mut variables, &known)?;
            self.referrers.set_in(conn, account, entity, target, true).await?;
            let sealed = serde_json::to_string(&plain(&variables)).map_err(Error::internal)?;
            let sealed = self.vault.seal(&connection_place(account, &user), &sealed);
            let names = variables.keys().cloned().collect();
            repository::set_variables(conn, account, id, entity, names, &sealed).await?;
            let rows = repository::connections(conn, account, id).await?;
            let row = rows.into_iter().find(|row| row.user_kind == entity.0 && row.user_id == user);
            Ok((user, row.map_or(0, |row| row.created_ms)))
        });
        let (user, connected_at_ms) = connecting.await?;
        drop(conn);
        self.tell_connected(&[(kind.as_str().to_owned(), user.clone())]).await?;
        Ok(Connection {
            entity_type: kind.as_str(),
            entity_id: user,
            environment_id: id.to_string(),
            connected_at_ms,
            env_vars: variables,
        })
    }

    async fn disconnect(
        &self,
        account: &AccountId,
        id: &Id<Environment>,
        (kind, name): (EntityKind, &str),
    ) -> Result<()> {
        let mut conn = self.db.conn().await?;
        let disconnecting = conn.transaction::<_, Error, _>(async |conn| {
            repository::lock(conn, account, id).await?.ok_or_else(|| not_found(id))?;
            let user = self.referrers.lock_in(conn, account, (kind.as_str(), name)).await?;
            let entity = (kind.as_str(), user.as_str());
            if repository::environment_of(conn, account, entity).await?.as_deref() == Some(id) {
                self.referrers.set_in(conn, account, entity, (ENVIRONMENT, id), false).await?;
            }
            Ok(user)
        });
        let user = disconnecting.await?;
        drop(conn);
        self.tell_connected(&[(kind.as_str().to_owned(), user)]).await
    }

    async fn clis(&self, account: &AccountId, id: &Id<Environment>) -> Result<Vec<Cli>> {
        let row = self.require(account, id).await?;
        let stored = repository::clis(self.db.read().await?.get(), account, id).await?;
        if let Some(stored) = stored {
            return serde_json::from_value(stored).map_err(Error::internal);
        }
        let config = row.settings()?.sandbox_config;
        self.check_backend(&config).await?;
        let runtime = config.runtime;
        let mut known = self.clis.lock().await;
        if let Some(clis) = known.get(&runtime) {
            return Ok(clis.clone());
        }
        let clis = probe(&self.backend, &runtime).await?;
        known.insert(runtime, clis.clone());
        Ok(clis)
    }
}
