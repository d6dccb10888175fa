use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use diesel_async::AsyncConnection;
use platform_access::{Place, References, Resources, references};
use platform_conversation::{
    AGENT, ASSISTANT, AssistantSettings, AssistantTemplates, Ports, Refers, SubAgents, check_environment,
    use_environments_in,
};
use platform_core::{
    AccountId, Caller, Code, Error, FieldLimits, Id, MAX_LISTED, Object, Page, Precondition, Result, Timestamp,
    heap_bytes, overlay, run_blocking,
};
use platform_db::{Bus, Capacity, Conn, Idempotency, InvalidatedCache};
use platform_jobs::{Jobs, When, enqueue_in};
use platform_knowledge::SkillRef;
use platform_toolservers::{TOOL_SERVER, hold_in, use_in};
use serde_json::{Value, json};

use super::{
    model::{Assistant, AssistantFilter, DEFAULT_ASSISTANT},
    references::ASSISTANT_REFERENCES,
    repository::{self, AssistantRow},
};
use crate::{chat, code, turn};

/// A run whose subject is an assistant that was deleted: what others keep of it goes, too.
pub const ASSISTANT_DELETED: &str = "assistant-deleted";
/// What the bus calls assistants that changed, by id and by identifier.
pub const ASSISTANT_TOPIC: &str = "assistants";
/// Whoever deletes an assistant takes away what others keep of it, and is cut off at times.
const FOLLOWERS_GO: Duration = Duration::from_mins(1);
/// Bytes of the assistants that are remembered at once.
const MAX_REMEMBERED: u64 = 64 << 20;

/// Assistants of an account.
#[async_trait]
pub trait AssistantService: Send + Sync {
    /// Keeps the one of this id from being deleted before this transaction ends. `ASSISTANT_NOT_FOUND`.
    async fn hold_in(&self, conn: &mut Conn, account: &AccountId, id: &str) -> Result<()>;
    /// Those the filter keeps and the caller may use, newest first, the built-in one last, and how many there are: those
    /// beyond what a list holds are left out.
    async fn list(&self, caller: &Caller, filter: &AssistantFilter) -> Result<(Vec<Assistant>, usize)>;
    /// Makes one; `IDENTIFIER_TAKEN` when there is or was one of that identifier.
    async fn create(
        &self,
        caller: &Caller,
        settings: AssistantSettings,
        once: Option<&Idempotency>,
    ) -> Result<Assistant>;
    /// By identifier or id.
    async fn get(&self, account: &AccountId, name: &str) -> Result<Arc<Assistant>>;
    /// Identifier of one that is or was there: its chats can still be read.
    async fn identifier(&self, account: &AccountId, name: &str) -> Result<String>;
    /// Changes the given fields of the version that is expected.
    async fn update(
        &self,
        account: &AccountId,
        name: &str,
        patch: Object,
        expected: &Precondition,
    ) -> Result<Assistant>;
    /// With what is not its own: the tools of its groups.
    async fn describe(&self, account: &AccountId, assistant: Assistant) -> Result<Assistant>;
    /// Takes it away, stops its runs, keeps its chats. Returns its id.
    async fn delete(&self, account: &AccountId, name: &str, expected: &Precondition) -> Result<String>;
}

/// The service on PostgreSQL.
pub struct PgAssistantService {
    ports: Ports,
    sub_agents: Arc<dyn SubAgents>,
    jobs: Arc<Jobs>,
    limits: FieldLimits,
    built_in: Arc<Assistant>,
    /// Account and name → the assistant, deleted ones too.
    known: Arc<InvalidatedCache<(AccountId, String), Known>>,
}

struct Known {
    assistant: Arc<Assistant>,
    deleted: bool,
    /// Of memory.
    bytes: usize,
}

impl PgAssistantService {
    /// Needs what turns work with to check against, and the bus that says when to forget.
    pub fn new(ports: &Ports, bus: &Bus, sub_agents: Arc<dyn SubAgents>, jobs: Arc<Jobs>, limits: FieldLimits) -> Self {
        let known =
            InvalidatedCache::new(bus, ASSISTANT_TOPIC, Capacity::Bytes(MAX_REMEMBERED, |known: &Known| known.bytes));
        let built_in = Arc::new(Assistant::built_in());
        Self { ports: ports.clone(), sub_agents, jobs, limits, built_in, known }
    }

    /// The settings, after every rule on them was looked at but those that take long ([`AssistantSettings::check_written`]);
    /// `former`: what they were, whose sub-agents may be gone since.
    async fn checked(
        &self,
        account: &AccountId,
        mut settings: AssistantSettings,
        former: Option<&AssistantSettings>,
    ) -> Result<AssistantSettings> {
        let known = former.map(|former| former.subagents_ids.as_slice()).unwrap_or_default();
        let ids: Vec<String> = settings.subagents_ids.iter().filter(|id| !known.contains(id)).cloned().collect();
        self.sub_agents.check(account, &ids).await?;
        check_environment(&*self.ports.environments, account, settings.environment_id.as_deref()).await?;
        let (model, limits) = (Arc::clone(&self.ports.catalog), self.limits);
        run_blocking(move || settings.check(&*model, &limits).map(|()| settings)).await
    }

    /// The assistant as it is then; `None` when somebody changed it meanwhile. The settings are judged before anything
    /// is locked.
    async fn try_update(
        &self,
        account: &AccountId,
        name: &str,
        mut patch: Object,
        expected: &Precondition,
        now: Timestamp,
    ) -> Result<Option<Assistant>> {
        let given = Refers::of_patch(&patch);
        let found = repository::find(&mut self.ports.db.read().await?.get(), account, name).await?;
        let found = found.filter(|row| !row.deleted).ok_or_else(|| not_found(name))?.into_assistant()?;
        expected.check(found.version)?;
        if patch.get("identifier").is_some_and(|given| given != found.identifier.as_str()) {
            return Err(Error::invalid("identifier", "conflict", "identifier never changes; leave it out"));
        }
        patch.remove("identifier");
        merge(&mut patch, "contextManagement", &found);
        let settings = self.checked(account, overlay(found.settings(), patch)?, Some(found.settings())).await?;
        let mut conn = self.ports.db.conn().await?;
        conn.transaction(async |conn| {
            if let Some(given) = &given {
                self.hold_references_in(conn, account, name, given).await?;
            }
            let row = repository::lock(conn, account, name).await?.ok_or_else(|| not_found(name))?;
            if row.version != found.version {
                return Ok(None);
            }
            let row = repository::update(conn, account, &found.identifier, &settings, now).await?;
            if Refers::of(&settings) != Refers::of(found.settings()) {
                self.refer_in(conn, account, &found.id, &Refers::of(&settings)).await?;
            }
            row.into_assistant().map(Some)
        })
        .await
    }

    /// Says, after the commit, that an assistant changed, by either name.
    async fn changed(&self, id: &str, identifier: &str) -> Result<()> {
        self.known.changed(id).await?;
        self.known.changed(identifier).await
    }

    /// Locks what an assistant refers to and is to refer to before it is locked itself, as whoever deletes that does.
    async fn hold_references_in(&self, conn: &mut Conn, account: &AccountId, name: &str, given: &Refers) -> Result<()> {
        let current = repository::find(&mut &*conn, account, name).await?;
        let current = current.map(AssistantRow::into_assistant).transpose()?;
        let all = current.map(|current| Refers::of(current.settings())).unwrap_or_default().and(given);
        hold_in(conn, account, &all.tools).await?;
        let [documents, folders] = all.knowledge();
        platform_knowledge::hold_in(conn, account, &documents, &folders).await?;
        self.ports.environments.hold_in(conn, account, &all.environments).await.map(drop)
    }

    /// Stores what an assistant refers to; an error when that is not there.
    async fn refer_in(&self, conn: &mut Conn, account: &AccountId, id: &str, to: &Refers) -> Result<()> {
        use_in(conn, account, (ASSISTANT, id), &self.ports.toolbox.records(&to.tools)).await?;
        let skill = |(id, r#type): &(String, String)| SkillRef { id: id.clone(), r#type: r#type.clone() };
        let skills: Vec<SkillRef> = to.skills.iter().map(skill).collect();
        platform_knowledge::use_in(conn, account, (ASSISTANT, id), &to.documents, &to.folders, &skills).await?;
        platform_access::use_in(conn, account, (ASSISTANT, id), AGENT, &to.agents).await?;
        use_environments_in(&*self.ports.environments, conn, account, (ASSISTANT, id), &to.environments).await
    }

    async fn find(&self, account: &AccountId, name: &str) -> Result<Option<Arc<Known>>> {
        let load = async {
            let conn = self.ports.db.read().await?;
            let Some(row) = repository::find(&mut conn.get(), account, name).await? else { return Ok(None) };
            let deleted = row.deleted;
            let (children, account) = (Arc::clone(&self.ports.children), account.clone());
            let load = move || {
                // As it is shown, as turns use it, and in what answers are held against.
                let bytes = 4 * heap_bytes(&row.settings);
                let assistant = Arc::new(row.into_assistant()?.ready(&children, &account));
                Ok(Known { assistant, deleted, bytes })
            };
            Ok(Some(run_blocking(load).await?))
        };
        self.known.get_or_load(&(account.clone(), name.to_owned()), load).await
    }
}

#[async_trait]
impl Resources for PgAssistantService {
    async fn place(&self, account: &AccountId, name: &str) -> Result<Option<Place>> {
        if name == DEFAULT_ASSISTANT {
            return Ok(None);
        }
        let known = self.find(account, name).await?;
        Ok(known.map(|known| Place { project: known.assistant.settings().project_id.clone(), ..Place::default() }))
    }

    async fn known_to(&self, caller: &Caller, name: &str) -> Result<()> {
        match self.find(&caller.account, name).await? {
            Some(known) if !known.assistant.is_known_to(caller) => Err(not_found(name)),
            _ => Ok(()),
        }
    }

    async fn open_to(&self, caller: &Caller, name: &str) -> Result<()> {
        let assistant = match name {
            DEFAULT_ASSISTANT => Some(Arc::clone(&self.built_in)),
            name => self.find(&caller.account, name).await?.map(|known| Arc::clone(&known.assistant)),
        };
        let assistant = assistant.filter(|assistant| assistant.is_known_to(caller)).ok_or_else(|| not_found(name))?;
        if assistant.is_open_to(caller) {
            return Ok(());
        }
        Err(Error::new(Code::FORBIDDEN, "This session is limited to other assistants."))
    }

    async fn references(&self, account: &AccountId, name: &str) -> Result<References> {
        let record = serde_json::to_value(self.get(account, name).await?.settings()).map_err(Error::internal)?;
        Ok(references(&ASSISTANT_REFERENCES, |field| record[field].clone()))
    }

    async fn tools(&self, account: &AccountId, name: &str) -> Result<References> {
        let known = self.find(account, name).await?;
        let groups = known.iter().flat_map(|known| &known.assistant.settings().available_tools_groups_uids);
        Ok(groups.map(|group| (TOOL_SERVER, group.clone())).collect())
    }
}

#[async_trait]
impl AssistantService for PgAssistantService {
    async fn hold_in(&self, conn: &mut Conn, account: &AccountId, id: &str) -> Result<()> {
        // The built-in one is always there.
        let is_held = id == DEFAULT_ASSISTANT || repository::share(conn, account, id).await?;
        if is_held { Ok(()) } else { Err(not_found(id)) }
    }

    async fn list(&self, caller: &Caller, filter: &AssistantFilter) -> Result<(Vec<Assistant>, usize)> {
        let conn = self.ports.db.fair_conn(&caller.account).await?;
        let sizes = repository::sizes(&mut &*conn, &caller.account, filter).await?;
        let is_listed = |assistant: &Assistant| {
            filter.keeps(assistant) && assistant.is_known_to(caller) && assistant.is_open_to(caller)
        };
        let (mut listed, mut bytes, mut total, mut read) = (Vec::new(), 0, 0, 0);
        // Page by page, so that little is in memory; those beyond what a list holds are only counted.
        while let Some(rest) = sizes.get(read..).filter(|rest| !rest.is_empty()) {
            let all = Page { limit: i64::MAX, offset: i64::try_from(read).unwrap_or(i64::MAX) };
            let page = all.fitting(rest);
            let rows = repository::list(&mut &*conn, &caller.account, filter, page).await?;
            read += usize::try_from(page.limit).unwrap_or(usize::MAX).min(rest.len());
            for (row, size) in rows.into_iter().zip(rest) {
                let assistant = row.into_assistant()?;
                if is_listed(&assistant) {
                    total += 1;
                    bytes += usize::try_from(*size).unwrap_or(usize::MAX);
                    if listed.len() + 1 == total && (total == 1 || bytes <= MAX_LISTED) {
                        listed.push(assistant);
                    }
                }
            }
        }
        if is_listed(&self.built_in) {
            if listed.len() == total {
                listed.push(Assistant::clone(&self.built_in));
            }
            total += 1;
        }
        Ok((listed, total))
    }

    async fn create(
        &self,
        caller: &Caller,
        settings: AssistantSettings,
        once: Option<&Idempotency>,
    ) -> Result<Assistant> {
        let settings = self.checked(&caller.account, settings, None).await?;
        settings.check_written(&self.ports.children, &caller.account).await?;
        let id = String::from(Id::<Assistant>::generate());
        let identifier = settings.identifier.clone().unwrap_or_else(|| id.clone());
        let now = self.ports.clock.now();
        let taken =
            || Error::new(Code::IDENTIFIER_TAKEN, format!("The identifier `{identifier}` is taken; choose another."));
        if identifier == DEFAULT_ASSISTANT {
            return Err(taken());
        }
        let assistant = Assistant::new(id.clone(), identifier.clone(), settings.clone(), 1, now, now)?;
        let assistant = self
            .ports
            .db
            .conn()
            .await?
            .transaction::<_, Error, _>(async |conn| {
                if !repository::insert(conn, &caller.account, &id, &identifier, &settings, now).await? {
                    return Err(taken());
                }
                self.refer_in(conn, &caller.account, &id, &Refers::of(&settings)).await?;
                let assistant = self.describe(&caller.account, assistant).await?;
                Idempotency::store_if(once, conn, 201, &assistant).await?;
                Ok(assistant)
            })
            .await?;
        self.changed(&assistant.id, &assistant.identifier).await?;
        Ok(assistant)
    }

    async fn describe(&self, account: &AccountId, mut assistant: Assistant) -> Result<Assistant> {
        let uids = &assistant.settings().available_tools_groups_uids;
        assistant.available_tools_groups = self.ports.toolbox.groups(account, uids).await?;
        let known = self.ports.recall.documents(account, &assistant.settings().knowledge_document_ids).await?;
        assistant.memory_documents = known.into_iter().map(|(id, name)| json!({"id": id, "name": name})).collect();
        Ok(assistant)
    }

    async fn get(&self, account: &AccountId, name: &str) -> Result<Arc<Assistant>> {
        if name == DEFAULT_ASSISTANT {
            return Ok(Arc::clone(&self.built_in));
        }
        let known = self.find(account, name).await?.filter(|known| !known.deleted);
        Ok(Arc::clone(&known.ok_or_else(|| not_found(name))?.assistant))
    }

    async fn identifier(&self, account: &AccountId, name: &str) -> Result<String> {
        if name == DEFAULT_ASSISTANT {
            return Ok(name.to_owned());
        }
        Ok(self.find(account, name).await?.ok_or_else(|| not_found(name))?.assistant.identifier.clone())
    }

    async fn update(
        &self,
        account: &AccountId,
        name: &str,
        mut patch: Object,
        expected: &Precondition,
    ) -> Result<Assistant> {
        if name == DEFAULT_ASSISTANT {
            return Err(built_in());
        }
        // The alias counts as the field it stands for.
        if let Some(llm) = patch.remove("llm") {
            patch.entry("model").or_insert(llm);
        }
        // What is wrong in any case is said before the assistant is looked for.
        let given = overlay(&AssistantSettings::named("tried"), patch.clone())?;
        let tried = self.checked(account, given.clone(), Some(&given)).await?;
        tried.check_written(&self.ports.children, account).await?;
        let now = self.ports.clock.now();
        let updated = loop {
            if let Some(updated) = self.try_update(account, name, patch.clone(), expected, now).await? {
                break updated;
            }
        };
        self.changed(&updated.id, &updated.identifier).await?;
        self.describe(account, updated).await
    }

    async fn delete(&self, account: &AccountId, name: &str, expected: &Precondition) -> Result<String> {
        if name == DEFAULT_ASSISTANT {
            return Err(built_in());
        }
        let now = self.ports.clock.now();
        let mut conn = self.ports.db.conn().await?;
        let (id, identifier) = conn
            .transaction::<_, Error, _>(async |conn| {
                self.hold_references_in(conn, account, name, &Refers::default()).await?;
                let row = repository::lock(conn, account, name).await?.ok_or_else(|| not_found(name))?;
                let current = row.into_assistant()?;
                expected.check(current.version)?;
                repository::delete(conn, account, &current.identifier, now).await?;
                self.refer_in(conn, account, &current.id, &Refers::default()).await?;
                let later = When::After(FOLLOWERS_GO);
                enqueue_in(conn, account, ASSISTANT_DELETED, &current.id, Value::Null, later).await?;
                Ok((current.id, current.identifier))
            })
            .await?;
        self.changed(&id, &identifier).await?;
        let at_work = chat::repository::at_work(&mut conn, account, &identifier).await?;
        // Each stop takes a connection of its own.
        drop(conn);
        for chat in at_work {
            match turn::stop(&self.ports.db, account, &chat, now).await {
                Ok(Some(turn::StopOutcome { run: Some(run), .. })) => self.jobs.stopped(&run).await?,
                Ok(_) => {}
                // It has ended by itself.
                Err(error) if error.code() == code::CHAT_NOT_PROCESSING => {}
                Err(error) => return Err(error),
            }
        }
        Ok(id)
    }
}

#[async_trait]
impl AssistantTemplates for PgAssistantService {
    async fn base(&self, account: &AccountId, identifier: &str) -> Result<Option<AssistantSettings>> {
        match self.get(account, identifier).await {
            Ok(assistant) => Ok(Some(assistant.settings().clone())),
            Err(error) if error.code() == code::ASSISTANT_NOT_FOUND => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Fields that the contract marks as merged keep what the patch does not name.
fn merge(patch: &mut Object, field: &str, current: &Assistant) {
    let Some(Value::Object(given)) = patch.get_mut(field) else { return };
    if let Some(Value::Object(stored)) = current.settings.get(field) {
        for (name, value) in stored {
            given.entry(name).or_insert_with(|| value.clone());
        }
    }
}

pub(super) fn not_found(name: &str) -> Error {
    Error::not_found(code::ASSISTANT_NOT_FOUND, "assistant", name)
}

pub(super) fn built_in() -> Error {
    Error::new(Code::FORBIDDEN, "The built-in assistant cannot be changed; make one of your own.")
}
