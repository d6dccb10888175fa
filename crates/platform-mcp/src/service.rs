use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use diesel_async::AsyncConnection;
use moka::sync::Cache;
use platform_access::{Kind, RecordRef, Referrer, use_in};
use platform_agents::ThreadService;
use platform_chat::ChatService;
use platform_core::{
    AccountId, Checks, Clock, Code, Error, Id, Object, Page, Precondition, Result, Timestamp, overlay, run_blocking,
};
use platform_db::{Bus, Conn, Db, Idempotency, InvalidatedCache};
use platform_integrations::PgIntegrations;
use platform_runtime::Budget;
use platform_toolservers::{
    McpAuthMode, OfferedServer, PgToolServerService, ServerType, TOOL_SERVER, hold_in, numbered, slug,
};
use platform_vault::Vault;
use serde_json::Value;

use crate::{
    audit::Audit,
    code,
    model::{
        AuditFilter, AuditPage, GatewayServer, GatewayServerPage, Grant, GrantFilter, GrantPage, MOST_NAMES, NewGrant,
        Preview, PreviewOf, Profile, ProfilePage, ProfileSettings, ProfileTool, SubjectType, Switches, ToolOverride,
        ToolSwitch, check_names,
    },
    repository::{self, GrantRow, ProfileRow, Seen},
    surface::{Granted, Subject, Surface, View, digest, is_unseen_before},
};

/// Profiles of the gateway.
pub const MCP_PROFILE: Kind = Kind::of_account("profile");
/// Grants of them.
pub const MCP_GRANT: Kind = Kind::of_account("MCP grant");

pub(crate) const TOPIC: &str = "mcp-gateway";
pub(crate) const SWITCHES: &str = "mcp-switches";
const MOST_ACCOUNTS: u64 = 10_000;
const MOST_SURFACES: u64 = 5_000;
/// Of an account.
const MOST_PROFILES: i64 = 200;
const MOST_GRANTS: i64 = 10_000;
/// Names of tools in all grants of an account, which are kept in memory.
const MOST_GRANTED: i64 = 100_000;
/// Slugs that are tried when the one made of the name is taken.
const TRIES: usize = 100;
/// Tools of a server that does not answer are shown so long.
const STALE: Duration = Duration::from_mins(10);
/// An approval is good once, and for so long.
const MOST_APPROVALS: u64 = 100_000;
const APPROVAL: Duration = Duration::from_mins(10);
/// A log-in that was begun is gone on with for so long.
const LOG_IN: Duration = Duration::from_mins(2);
/// The profile of those who name none.
const DEFAULT: &str = "default";

/// What the gateway asks others for.
pub struct McpNeeds {
    /// The database.
    pub db: Db,
    /// Says when to forget.
    pub bus: Bus,
    /// What time it is.
    pub clock: Arc<dyn Clock>,
    /// Signs what comes back with an approval.
    pub vault: Arc<Vault>,
    /// The servers whose tools are shown.
    pub tool_servers: Arc<PgToolServerService>,
    /// Connections of users to servers.
    pub integrations: Arc<PgIntegrations>,
    /// Assistants that are tools.
    pub chat: Arc<dyn ChatService>,
    /// Agents that are tools.
    pub threads: Arc<dyn ThreadService>,
    /// Whose quotas count.
    pub budget: Arc<dyn Budget>,
}

/// The MCP gateway on PostgreSQL.
pub struct PgMcpGateway {
    pub(crate) db: Db,
    pub(crate) bus: Bus,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) vault: Arc<Vault>,
    pub(crate) tool_servers: Arc<PgToolServerService>,
    pub(crate) integrations: Arc<PgIntegrations>,
    pub(crate) chat: Arc<dyn ChatService>,
    pub(crate) threads: Arc<dyn ThreadService>,
    pub(crate) budget: Arc<dyn Budget>,
    pub(crate) audit: Audit,
    /// Account → its profiles and grants.
    known: Arc<InvalidatedCache<String, Configured>>,
    /// Account and subject → what it switched off, by profile.
    switches: Arc<InvalidatedCache<String, HashMap<String, Vec<String>>>>,
    surfaces: Cache<(AccountId, String), Arc<Cached>>,
    /// Approvals that were made use of, as long as they would be good.
    pub(crate) approvals: Cache<String, ()>,
    /// Where somebody is asked to log in to a server, by account, server and subject.
    pub(crate) log_ins: Cache<(AccountId, String, String), String>,
    /// Since when a server does not answer.
    down: Cache<(AccountId, String), Instant>,
}

/// Profiles and grants of an account.
#[derive(Default)]
struct Configured {
    /// Newest first.
    profiles: Vec<Arc<Loaded>>,
    /// By profile.
    grants: HashMap<String, Vec<Arc<Granted>>>,
}

struct Loaded {
    id: String,
    settings: ProfileSettings,
    seen: Seen,
}

/// A surface, and what it was made of.
struct Cached {
    profile: Arc<Loaded>,
    servers: Vec<OfferedServer>,
    stale: HashSet<String>,
    surface: Arc<Surface>,
}

impl PgMcpGateway {
    /// The gateway.
    pub fn new(needs: McpNeeds) -> Arc<Self> {
        let McpNeeds { db, bus, clock, vault, tool_servers, integrations, chat, threads, budget } = needs;
        Arc::new(Self {
            audit: Audit::new(&db),
            known: InvalidatedCache::by_id(&bus, TOPIC, MOST_ACCOUNTS),
            switches: InvalidatedCache::by_id(&bus, SWITCHES, MOST_ACCOUNTS),
            surfaces: Cache::new(MOST_SURFACES),
            approvals: Cache::builder().max_capacity(MOST_APPROVALS).time_to_live(APPROVAL).build(),
            log_ins: Cache::builder().max_capacity(MOST_SURFACES).time_to_live(LOG_IN).build(),
            down: Cache::new(MOST_SURFACES),
            db,
            bus,
            clock,
            vault,
            tool_servers,
            integrations,
            chat,
            threads,
            budget,
        })
    }

    async fn configured(&self, account: &AccountId) -> Result<Arc<Configured>> {
        let load = async {
            let conn = self.db.read().await?;
            let (rows, grants) = futures_util::try_join!(
                repository::profiles(conn.get(), account),
                repository::all_grants(conn.get(), account)
            )?;
            let mut configured = Configured::default();
            for row in rows {
                let loaded = Loaded { id: row.id.clone(), settings: row.settings()?, seen: row.seen()? };
                configured.profiles.push(Arc::new(loaded));
            }
            for grant in grants {
                configured
                    .grants
                    .entry(grant.profile_id.clone())
                    .or_default()
                    .push(Arc::new(Grant::from(grant).into()));
            }
            Ok(Some(configured))
        };
        let known = self.known.get_or_load(&account.as_str().to_owned(), load).await?;
        known.ok_or_else(|| Error::internal("an account always has a configuration"))
    }

    async fn switched_off(&self, account: &AccountId, subject: &str) -> Result<Arc<HashMap<String, Vec<String>>>> {
        let load = async {
            let conn = self.db.read().await?;
            repository::switches(conn.get(), account, subject).await.map(Some)
        };
        let known = self.switches.get_or_load(&switch_key(account, subject), load).await?;
        known.ok_or_else(|| Error::internal("a subject always has switches"))
    }

    /// The servers of a profile as they are now, and those among them that do not answer.
    async fn servers(
        &self,
        account: &AccountId,
        settings: &ProfileSettings,
    ) -> Result<(Vec<OfferedServer>, HashSet<String>)> {
        let (mut servers, mut stale) = (Vec::new(), HashSet::new());
        for entry in settings.servers.iter().filter(|entry| entry.enabled) {
            let Some(server) = self.tool_servers.offered(account, &entry.tool_server_id).await? else { continue };
            let key = (account.clone(), server.id().to_owned());
            if server.record().health.as_deref() == Some("down") {
                let since = self.down.get_with(key, Instant::now);
                if since.elapsed() > STALE {
                    continue;
                }
                stale.insert(server.id().to_owned());
            } else if self.down.contains_key(&key) {
                self.down.invalidate(&key);
            }
            servers.push(server);
        }
        Ok((servers, stale))
    }

    /// The tools of a profile, made once for all who see it.
    async fn surface(&self, account: &AccountId, profile: &Arc<Loaded>) -> Result<(Arc<Surface>, Vec<OfferedServer>)> {
        let (servers, stale) = self.servers(account, &profile.settings).await?;
        let key = (account.clone(), profile.id.clone());
        let is_same = |cached: &Arc<Cached>| {
            Arc::ptr_eq(&cached.profile, profile)
                && cached.stale == stale
                && cached.servers.len() == servers.len()
                && cached.servers.iter().zip(&servers).all(|(before, now)| before.is_same(now))
        };
        if let Some(cached) = self.surfaces.get(&key).filter(is_same) {
            return Ok((Arc::clone(&cached.surface), servers));
        }
        let unseen = |server: &OfferedServer| {
            is_unseen_before(server)
                && !server.tools().is_empty()
                && profile.seen.get(server.id()).is_none_or(HashMap::is_empty)
        };
        if servers.iter().any(unseen) {
            // From now on a tool that changes is another one.
            self.change(account, &profile.id, &Precondition::None, |_, _| Ok(())).await?;
        }
        let (of, with, without) = (Arc::clone(profile), servers.clone(), stale.clone());
        let made = move || Ok(Surface::new(&of.settings, &of.seen, &with, &without));
        let surface = Arc::new(run_blocking(made).await?);
        let cached =
            Cached { profile: Arc::clone(profile), servers: servers.clone(), stale, surface: Arc::clone(&surface) };
        self.surfaces.insert(key, Arc::new(cached));
        Ok((surface, servers))
    }

    /// What a subject sees of a profile, or of the one that is its own. `PROFILE_NOT_FOUND`.
    pub(crate) async fn view(&self, account: &AccountId, subject: &Subject, slug: Option<&str>) -> Result<View> {
        let configured = self.configured(account).await?;
        let none = Vec::new();
        let grants = |profile: &Loaded| subject.granted(configured.grants.get(&profile.id).unwrap_or(&none));
        let visible = |profile: &&Arc<Loaded>| !grants(profile).is_empty() || subject.sees(&profile.settings);
        let of_slug = |slug: &str| {
            configured.profiles.iter().find(|of| of.settings.slug.as_deref() == Some(slug)).filter(visible)
        };
        let profile = match slug {
            Some(slug) => of_slug(slug),
            None => {
                let mut granted = configured.profiles.iter().filter(|profile| !grants(profile).is_empty());
                match (granted.next(), granted.next()) {
                    (Some(only), None) => Some(only),
                    _ => of_slug(DEFAULT),
                }
            }
        };
        let profile = profile.ok_or_else(|| not_found(slug.unwrap_or(DEFAULT)))?;
        let granted = grants(profile);
        let (surface, servers) = self.surface(account, profile).await?;
        let off = self.switched_off(account, &subject.name).await?;
        let disabled = off.get(&profile.id).map(Vec::as_slice).unwrap_or_default();
        Ok(View::new((&profile.id, &profile.settings), surface, servers, granted, disabled))
    }

    async fn profile(&self, account: &AccountId, id: &str) -> Result<Arc<Loaded>> {
        let configured = self.configured(account).await?;
        configured.profiles.iter().find(|of| of.id == id).cloned().ok_or_else(|| not_found(id))
    }

    /// Refuses servers that are not there; gives the missing slugs, and the tools that there are as seen.
    async fn settle(&self, account: &AccountId, settings: &mut ProfileSettings, seen: &mut Seen) -> Result<()> {
        let mut slugs: HashSet<String> = settings.servers.iter().filter_map(|of| of.slug.clone()).collect();
        for entry in &mut settings.servers {
            let Some(server) = self.tool_servers.offered(account, &entry.tool_server_id).await? else {
                // One that was deleted since does not keep the rest from being changed.
                if seen.contains_key(&entry.tool_server_id) {
                    continue;
                }
                return Err(Error::not_found(code::TOOL_SERVER_NOT_FOUND, "tool server", &entry.tool_server_id));
            };
            if entry.slug.is_none() {
                let mut names = (1..).map(|n| numbered(server.identifier(), n));
                entry.slug = names.find(|name| slugs.insert(name.clone()));
            }
            // What a server has when it is put in is what its operator saw.
            let is_put_in = !seen.contains_key(&entry.tool_server_id);
            let of_server = seen.entry(entry.tool_server_id.clone()).or_default();
            if is_put_in || of_server.is_empty() && is_unseen_before(&server) {
                *of_server = server.tools().iter().map(|tool| (tool.function.name.clone(), digest(tool))).collect();
            }
        }
        seen.retain(|id, _| settings.servers.iter().any(|of| of.tool_server_id == *id));
        Ok(())
    }

    /// Makes a profile. `IDENTIFIER_TAKEN`, `TOOL_SERVER_NOT_FOUND`.
    pub async fn create(
        &self,
        account: &AccountId,
        mut new: ProfileSettings,
        once: Option<&Idempotency>,
    ) -> Result<Profile> {
        new.check()?;
        let mut seen = Seen::new();
        self.settle(account, &mut new, &mut seen).await?;
        let now = self.clock.now();
        let given = new.slug.take();
        let base = slug(&new.name);
        let mut row = ProfileRow {
            account_id: account.as_str().to_owned(),
            id: Id::<Profile>::generate().into(),
            slug: String::new(),
            settings: Value::Null,
            seen: serde_json::to_value(&seen).map_err(Error::internal)?,
            created_ms: now.0,
            edited_ms: now.0,
        };
        let mut conn = self.db.conn().await?;
        let creating = conn.transaction::<_, Error, _>(async |conn| {
            if repository::count_profiles(conn, account).await? >= MOST_PROFILES {
                return Err(Error::new(Code::CONFLICT, format!("An account has at most {MOST_PROFILES} profiles.")));
            }
            for n in 1..TRIES {
                row.slug = given.clone().unwrap_or_else(|| numbered(&base, n));
                new.slug = Some(row.slug.clone());
                row.settings = serde_json::to_value(&new).map_err(Error::internal)?;
                hold_in(conn, account, &servers_of(&new)).await?;
                if repository::insert_profile(conn, &row).await? {
                    use_in(conn, account, (MCP_PROFILE, &row.id), TOOL_SERVER, &servers_of(&new)).await?;
                    let made = row.shown()?;
                    Idempotency::store_if(once, conn, 201, &made).await?;
                    return Ok(made);
                }
                if given.is_some() {
                    break;
                }
            }
            Err(taken(&row.slug))
        });
        let made = creating.await?;
        drop(conn);
        self.changed(account).await?;
        Ok(made)
    }

    /// Profiles, newest first.
    pub async fn list(&self, account: &AccountId, page: Page) -> Result<ProfilePage> {
        let conn = self.db.read().await?;
        let rows = repository::profiles(conn.get(), account).await?;
        let total = i64::try_from(rows.len()).unwrap_or(i64::MAX);
        let (skip, take) = (usize::try_from(page.offset).unwrap_or(0), usize::try_from(page.limit).unwrap_or(0));
        let items = rows.iter().skip(skip).take(take).map(ProfileRow::shown).collect::<Result<_>>()?;
        Ok(ProfilePage { items, total, offset: page.offset, limit: page.limit })
    }

    /// One profile. `PROFILE_NOT_FOUND`.
    pub async fn get(&self, account: &AccountId, id: &str) -> Result<Profile> {
        let row = repository::find_profile(self.db.read().await?.get(), account, id).await?;
        row.ok_or_else(|| not_found(id))?.shown()
    }

    /// Changes the given fields. `PROFILE_NOT_FOUND`, `IDENTIFIER_TAKEN`, `TOOL_SERVER_NOT_FOUND`.
    pub async fn update(
        &self,
        account: &AccountId,
        id: &str,
        patch: Object,
        expected: &Precondition,
    ) -> Result<Profile> {
        // Fields are judged before it matters what they are applied to.
        let named = ProfileSettings { name: "named".to_owned(), ..ProfileSettings::default() };
        overlay(&named, patch.clone())?.check()?;
        let change = |settings: &mut ProfileSettings, _: &mut Seen| {
            *settings = overlay(settings, patch.clone())?;
            Ok(())
        };
        self.change(account, id, expected, change).await
    }

    /// Changes a profile: what takes a look at servers is done before it is locked, and again when somebody was faster.
    async fn change(
        &self,
        account: &AccountId,
        id: &str,
        expected: &Precondition,
        change: impl Fn(&mut ProfileSettings, &mut Seen) -> Result<()> + Send + Sync,
    ) -> Result<Profile> {
        for _ in 0..TRIES {
            let row = repository::find_profile(self.db.read().await?.get(), account, id).await?;
            let before = row.ok_or_else(|| not_found(id))?;
            expected.check(before.edited_ms)?;
            let (mut settings, mut seen) = (before.settings()?, before.seen()?);
            change(&mut settings, &mut seen)?;
            settings.check()?;
            settings.slug = Some(settings.slug.unwrap_or_else(|| before.slug.clone()));
            self.settle(account, &mut settings, &mut seen).await?;
            let row = ProfileRow {
                slug: settings.slug.clone().unwrap_or_default(),
                settings: serde_json::to_value(&settings).map_err(Error::internal)?,
                seen: serde_json::to_value(&seen).map_err(Error::internal)?,
                edited_ms: self.clock.now().0.max(before.edited_ms + 1),
                ..before.clone()
            };
            let mut conn = self.db.conn().await?;
            let storing = conn.transaction::<_, Error, _>(async |conn| {
                // As whoever deletes a server does: the servers first.
                hold_in(conn, account, &servers_of(&settings)).await?;
                let now = repository::lock_profile(conn, account, id).await?.ok_or_else(|| not_found(id))?;
                if now.edited_ms != before.edited_ms {
                    return Ok(false);
                }
                if repository::slug_is_taken(conn, account, &row.slug, id).await? {
                    return Err(taken(&row.slug));
                }
                use_in(conn, account, (MCP_PROFILE, id), TOOL_SERVER, &servers_of(&settings)).await?;
                repository::update_profile(conn, account, &row).await.map(|()| true)
            });
            let is_stored = storing.await?;
            drop(conn);
            if is_stored {
                self.changed(account).await?;
                return row.shown();
            }
        }
        Err(Error::new(Code::CONFLICT, "The profile is changed all the time; try again."))
    }

    /// Takes a profile away, with its grants and switches. `PROFILE_NOT_FOUND`.
    pub async fn delete(&self, account: &AccountId, id: &str, expected: &Precondition) -> Result<()> {
        let mut conn = self.db.conn().await?;
        let deleting = conn.transaction::<_, Error, _>(async |conn| {
            let row = repository::lock_profile(conn, account, id).await?.ok_or_else(|| not_found(id))?;
            expected.check(row.edited_ms)?;
            use_in(conn, account, (MCP_PROFILE, id), TOOL_SERVER, &[]).await?;
            repository::delete_profile(conn, account, id).await
        });
        deleting.await?;
        drop(conn);
        self.changed(account).await
    }

    /// The tools of a profile, as its operator sees them. `PROFILE_NOT_FOUND`.
    pub async fn tools(&self, account: &AccountId, id: &str) -> Result<Vec<ProfileTool>> {
        let profile = self.profile(account, id).await?;
        Ok(self.surface(account, &profile).await?.0.shown())
    }

    /// Changes tools of a profile; one that is switched on is let in as it is now. `TOOL_NOT_FOUND`.
    pub async fn set_tools(
        &self,
        account: &AccountId,
        id: &str,
        given: Vec<ToolSwitch>,
        expected: &Precondition,
    ) -> Result<Vec<ProfileTool>> {
        let mut checks = Checks::default();
        checks.count("tools", given.len(), MOST_NAMES);
        checks.finish()?;
        let profile = self.profile(account, id).await?;
        let known = self.surface(account, &profile).await?.0.shown();
        let servers = self.servers(account, &profile.settings).await?.0;
        let change = |settings: &mut ProfileSettings, seen: &mut Seen| {
            for of in &given {
                let by_name = known.iter().find(|tool| tool.name == of.name);
                let tool = by_name.or_else(|| known.iter().find(|tool| tool.alias.as_ref() == Some(&of.name)));
                let tool = tool.ok_or_else(|| Error::not_found(code::TOOL_NOT_FOUND, "tool", &of.name))?;
                let overrides = &mut settings.tool_overrides;
                let at = overrides.iter().position(|known| known.name == tool.name).unwrap_or_else(|| {
                    overrides.push(ToolOverride { name: tool.name.clone(), ..ToolOverride::default() });
                    overrides.len() - 1
                });
                let known = &mut overrides[at];
                if let Some(alias) = &of.alias {
                    known.alias = alias.clone().filter(|alias| !alias.is_empty());
                }
                if let Some(description) = &of.description {
                    known.description.clone_from(description);
                }
                known.enabled = of.enabled.unwrap_or(known.enabled);
                let server = servers.iter().find(|server| Some(server.id()) == tool.tool_server_id.as_deref());
                let definition = server.and_then(|server| server.tool(&tool.tool));
                if let (Some(Some(true)), Some(server), Some(definition)) = (of.enabled, server, definition) {
                    let of_server = seen.entry(server.id().to_owned()).or_default();
                    of_server.insert(tool.tool.clone(), digest(definition));
                }
            }
            Ok(())
        };
        self.change(account, id, expected, change).await?;
        self.tools(account, id).await
    }

    /// Makes a grant. `PROFILE_NOT_FOUND`.
    pub async fn grant(&self, account: &AccountId, new: NewGrant, once: Option<&Idempotency>) -> Result<Grant> {
        let mut checks = Checks::default();
        checks.length("subject", &new.subject, 1..=400);
        let is_pair = match new.subject_type {
            SubjectType::Subtenant => {
                new.subject.split_once('/').is_some_and(|(tenant, user)| is_tenant(tenant) && is_tenant(user))
            }
            SubjectType::Claim => new.subject.contains('='),
            SubjectType::Tenant => is_tenant(&new.subject),
            _ => true,
        };
        if !is_pair {
            let message =
                "subject of a tenant is its id, of a subtenant <tenantId>/<subtenantId>, of a claim name=value";
            checks.issue("subject", "format", message);
        }
        check_names(&mut checks, "tools", &new.tools);
        checks.finish()?;
        let row = GrantRow {
            account_id: account.as_str().to_owned(),
            id: Id::<Grant>::generate().into(),
            profile_id: new.profile_id,
            subject_type: new.subject_type.as_str().to_owned(),
            subject: new.subject,
            tool_policy: new.tool_policy.as_str().to_owned(),
            tools: new.tools,
            created_ms: self.clock.now().0,
        };
        let mut conn = self.db.conn().await?;
        let granting = conn.transaction::<_, Error, _>(async |conn| {
            let profile = repository::lock_profile(conn, account, &row.profile_id).await?;
            profile.ok_or_else(|| not_found(&row.profile_id))?;
            let (grants, named) = repository::count_grants(conn, account).await?;
            if grants >= MOST_GRANTS || named + i64::try_from(row.tools.len()).unwrap_or(i64::MAX) > MOST_GRANTED {
                let message =
                    format!("An account has at most {MOST_GRANTS} grants, which name at most {MOST_GRANTED} tools.");
                return Err(Error::new(Code::CONFLICT, message));
            }
            repository::insert_grant(conn, &row).await?;
            let made = Grant::from(row.clone());
            Idempotency::store_if(once, conn, 201, &made).await?;
            Ok(made)
        });
        let made = granting.await?;
        drop(conn);
        self.changed(account).await?;
        Ok(made)
    }

    /// Grants that the filter keeps, newest first.
    pub async fn grants(&self, account: &AccountId, filter: &GrantFilter, page: Page) -> Result<GrantPage> {
        let (items, total) = repository::grants(self.db.read().await?.get(), account, filter, page).await?;
        Ok(GrantPage { items, total, offset: page.offset, limit: page.limit })
    }

    /// Takes a grant back. `GRANT_NOT_FOUND`.
    pub async fn revoke(&self, account: &AccountId, id: &str) -> Result<()> {
        if !repository::delete_grant(&mut *self.db.conn().await?, account, id).await? {
            return Err(Error::not_found(code::GRANT_NOT_FOUND, "grant", id));
        }
        self.changed(account).await
    }

    /// The servers that take part, by name.
    pub async fn gateway_servers(&self, account: &AccountId, page: Page) -> Result<GatewayServerPage> {
        let mut all = Vec::new();
        for id in self.tool_servers.exposed(account).await? {
            let server = self.tool_servers.offered(account, &id).await?;
            all.extend(server.filter(OfferedServer::is_exposed).map(|server| shown(&server)));
        }
        let total = i64::try_from(all.len()).unwrap_or(i64::MAX);
        let (skip, take) = (usize::try_from(page.offset).unwrap_or(0), usize::try_from(page.limit).unwrap_or(0));
        let items = all.into_iter().skip(skip).take(take).collect();
        Ok(GatewayServerPage { items, total, offset: page.offset, limit: page.limit })
    }

    /// Reads the tools of a server again. `TOOL_SERVER_NOT_FOUND`, `UPSTREAM_ERROR`.
    pub async fn refresh(&self, account: &AccountId, id: &str) -> Result<GatewayServer> {
        let missing = || Error::not_found(code::TOOL_SERVER_NOT_FOUND, "tool server", id);
        let server = self.tool_servers.offered(account, id).await?.ok_or_else(missing)?;
        if server.kind() == ServerType::Mcp {
            self.tool_servers.reread(account, id).await?;
        }
        Ok(shown(&self.tool_servers.offered(account, id).await?.ok_or_else(missing)?))
    }

    /// Calls that were made, newest first.
    pub async fn audit(&self, account: &AccountId, filter: &AuditFilter, page: Page) -> Result<AuditPage> {
        if matches!((filter.from, filter.to), (Some(from), Some(to)) if from > to) {
            return Err(Error::new(Code::INVALID_TIME_RANGE, "from must not be after to."));
        }
        self.audit.written().await;
        let (items, total) = repository::calls(&*self.db.fair_conn(account).await?, account, filter, page).await?;
        Ok(AuditPage { items, total, offset: page.offset, limit: page.limit })
    }

    /// What a caller would be shown of a profile; `is_full`: of keys, whether it is one of the whole account.
    /// `PROFILE_NOT_FOUND`.
    pub async fn preview(&self, account: &AccountId, of: &PreviewOf, is_full: bool) -> Result<Preview> {
        let Some(profile) = of.profile.as_deref().filter(|slug| !slug.is_empty()) else {
            return Err(Error::invalid("profile", "required", "profile is required: the slug of a profile"));
        };
        let mut checks = Checks::default();
        checks.tenants(of.tenant_id.as_deref(), of.subtenant_id.as_deref());
        checks.finish()?;
        let subject = match (&of.user_uid, &of.key_id, &of.tenant_id) {
            (Some(user), None, None) => Subject::user(user),
            (None, Some(key), None) => Subject::key(key, is_full),
            (None, None, Some(tenant)) => Subject::tenant(tenant, of.subtenant_id.as_deref()),
            _ => {
                let message = "name one: userUID, keyId, or tenantId";
                return Err(Error::invalid("userUID", "conflict", message));
            }
        };
        let view = self.view(account, &subject, Some(profile)).await?;
        Ok(Preview { profile: profile.to_owned(), tools: crate::endpoint::listed(&view) })
    }

    /// Tools that a caller does without, and has. `PROFILE_NOT_FOUND`.
    pub(crate) async fn own(&self, account: &AccountId, subject: &Subject, slug: Option<&str>) -> Result<Switches> {
        let view = self.view(account, subject, slug).await?;
        let off = self.switched_off(account, &subject.name).await?;
        let available = view.available().map(|tool| tool.name.clone()).collect();
        Ok(Switches { disabled: off.get(&view.profile_id).cloned().unwrap_or_default(), available })
    }

    /// Has a caller do without tools. `PROFILE_NOT_FOUND`.
    pub(crate) async fn set_own(
        &self,
        account: &AccountId,
        subject: &Subject,
        slug: Option<&str>,
        disabled: Vec<String>,
    ) -> Result<Switches> {
        let mut checks = Checks::default();
        check_names(&mut checks, "disabled", &disabled);
        checks.finish()?;
        let view = self.view(account, subject, slug).await?;
        let before = self.switched_off(account, &subject.name).await?;
        let before = before.get(&view.profile_id).map(Vec::as_slice).unwrap_or_default();
        let known: HashSet<&str> =
            view.available().map(|tool| tool.name.as_str()).chain(before.iter().map(String::as_str)).collect();
        let disabled: Vec<String> = disabled.into_iter().filter(|name| known.contains(name.as_str())).collect();
        let mut conn = self.db.conn().await?;
        repository::set_switches(&mut conn, account, &view.profile_id, &subject.name, &disabled).await?;
        drop(conn);
        self.switches.changed(&switch_key(account, &subject.name)).await?;
        self.own(account, subject, slug).await
    }

    /// Forgets what was granted to somebody who is gone, and what they switched off; of a tenant its end users, too.
    pub async fn forget(&self, account: &AccountId, kind: SubjectType, subject: &str) -> Result<()> {
        let mut conn = self.db.conn().await?;
        let below = kind == SubjectType::Tenant;
        repository::forget_subjects(&mut conn, account, kind.as_str(), subject, below).await?;
        drop(conn);
        self.switches.changed("").await?;
        self.changed(account).await
    }

    async fn changed(&self, account: &AccountId) -> Result<()> {
        self.known.changed(account.as_str()).await
    }
}

fn servers_of(settings: &ProfileSettings) -> Vec<String> {
    settings.servers.iter().map(|of| of.tool_server_id.clone()).collect()
}

/// Profiles refer to tool servers.
pub struct McpReferrer;

#[async_trait]
impl Referrer for McpReferrer {
    fn kind(&self) -> Kind {
        MCP_PROFILE
    }

    async fn lock_in(&self, conn: &mut Conn, account: &AccountId, name: &str) -> Result<String> {
        Ok(repository::lock_profile(conn, account, name).await?.ok_or_else(|| not_found(name))?.id)
    }

    async fn refer_in(&self, _: &mut Conn, _: &AccountId, _: &str, _: RecordRef<'_>) -> Result<()> {
        Err(Error::invalid("targetType", "enum", "nothing can be attached to a profile"))
    }

    async fn describe_in(&self, conn: &mut Conn, account: &AccountId, id: &str) -> Result<Option<(String, String)>> {
        let row = repository::find_profile(conn, account, id).await?;
        row.map(|row| Ok((row.slug.clone(), row.settings()?.name))).transpose()
    }

    async fn forget_in(&self, conn: &mut Conn, account: &AccountId, id: &str, target: RecordRef<'_>) -> Result<()> {
        let Some(mut row) = repository::lock_profile(conn, account, id).await? else { return Ok(()) };
        let (mut settings, mut seen) = (row.settings()?, row.seen()?);
        settings.servers.retain(|of| of.tool_server_id != target.1);
        seen.remove(target.1);
        row.settings = serde_json::to_value(&settings).map_err(Error::internal)?;
        row.seen = serde_json::to_value(&seen).map_err(Error::internal)?;
        row.edited_ms += 1;
        repository::update_profile(conn, account, &row).await
    }
}

/// Forgets calls that were noted before a time.
pub async fn purge_audit(conn: &mut Conn, before: Timestamp) -> Result<()> {
    repository::purge_calls(conn, before).await
}

fn shown(server: &OfferedServer) -> GatewayServer {
    let record = server.record();
    let mode = match server.auth_mode() {
        McpAuthMode::Shared => "shared",
        McpAuthMode::PerUser => "per_user",
        McpAuthMode::Passthrough => "passthrough",
    };
    GatewayServer {
        tool_server_id: server.id().to_owned(),
        name: server.name().to_owned(),
        r#type: server.kind().as_str().to_owned(),
        mcp_auth_mode: mode.to_owned(),
        health: record.health.clone().unwrap_or_else(|| "ok".to_owned()),
        tool_count: server.tools().len(),
        last_refresh_ms: record.last_refresh_ms,
        last_error: record.last_error.clone(),
    }
}

fn switch_key(account: &AccountId, subject: &str) -> String {
    format!("{}/{subject}", account.as_str())
}

/// Whether this can be the id of a tenant or of an end user.
fn is_tenant(id: &str) -> bool {
    let mut checks = Checks::default();
    checks.tenants(None, Some(id));
    checks.finish().is_ok()
}

pub(crate) fn not_found(id: &str) -> Error {
    Error::not_found(code::PROFILE_NOT_FOUND, "MCP profile", id)
}

fn taken(slug: &str) -> Error {
    Error::new(Code::IDENTIFIER_TAKEN, format!("There is a profile `{slug}` already; choose another slug."))
}
