use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use futures_util::future::try_join_all;
use moka::sync::Cache;
use platform_access::allowed;
use platform_agents::{AgentService, ThreadService};
use platform_chat::{AssistantService, ChatService};
use platform_core::{
    AccountId, Checks, Clock, Code, Error, FairSemaphore, Id, Page, Precondition, Result, Timestamp, heap_bytes,
    run_blocking,
};
use platform_db::{Bus, Capacity, Conn, Db, InvalidatedCache};
use platform_integrations::PgIntegrations;
use platform_runtime::Budget;
use platform_toolservers::{McpAuthMode, OfferedServer, PgToolServerService, ServerType, ToolServer};
use platform_vault::Vault;

use crate::{
    audit::Audit,
    code,
    model::{
        AuditFilter, AuditPage, GatewayServer, GatewayServerPage, Grant, Preview, ProfileServer, ProfileSettings,
        Switches, TargetType, check_names,
    },
    repository::{self, Seen},
    surface::{Granted, Surface, View, is_unseen_before, platform_tools, tools_of},
    viewer::Viewer,
};

pub(crate) const TOPIC: &str = "mcp-gateway";
pub(crate) const SWITCHES: &str = "mcp-switches";
/// Bytes of what is remembered at once: of profiles with their grants, of switches, and of tools as they are listed.
const MAX_CONFIGURED: u64 = 32 << 20;
const MAX_SWITCHES: u64 = 16 << 20;
const MAX_SURFACES: u64 = 96 << 20;
/// Surfaces that are made at once, in all and of one account.
const MADE_AT_ONCE: (usize, usize) = (4, 2);
/// Log-ins to servers that were begun.
const MAX_LOG_INS: u64 = 5_000;
/// Tools of a server that does not answer are shown so long.
const STALE: Duration = Duration::from_mins(10);
/// A log-in that was begun is gone on with for so long.
const LOG_IN: Duration = Duration::from_mins(2);
/// Servers that were asked for their tools with a caller's header, and how long each is left alone then.
const MAX_ASKED: u64 = 10_000;
const ASK_AGAIN: Duration = Duration::from_secs(10);
/// Bytes of memory that a grant takes, and the name of a tool, beside their texts.
const GRANT_BYTES: usize = 512;
const NAME_BYTES: usize = 64;
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
    pub assistants: Arc<dyn AssistantService>,
    /// What they are asked in.
    pub chat: Arc<dyn ChatService>,
    /// Agents that are tools.
    pub agents: Arc<dyn AgentService>,
    /// What they work in.
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
    assistants: Arc<dyn AssistantService>,
    pub(crate) chat: Arc<dyn ChatService>,
    agents: Arc<dyn AgentService>,
    pub(crate) threads: Arc<dyn ThreadService>,
    pub(crate) budget: Arc<dyn Budget>,
    pub(crate) audit: Audit,
    /// Account → its profiles and grants.
    known: Arc<InvalidatedCache<String, Configured>>,
    /// Account and subject → what it switched off, by profile.
    pub(crate) switches: Arc<InvalidatedCache<String, HashMap<String, Vec<String>>>>,
    surfaces: Cache<(AccountId, String), Arc<Cached>>,
    /// Surfaces that are being made.
    making: FairSemaphore,
    /// Where somebody is asked to log in to a server, by account, server and subject.
    pub(crate) log_ins: Cache<(AccountId, String, String), String>,
    /// Servers that were asked for their tools with a caller's header a moment ago, by account, server and its hash.
    pub(crate) asked: Cache<(AccountId, String, String), ()>,
}

/// Profiles and grants of an account.
#[derive(Default)]
struct Configured {
    /// Newest first.
    profiles: Vec<Arc<Loaded>>,
    /// By profile.
    grants: HashMap<String, Vec<Arc<Granted>>>,
    /// Of memory.
    bytes: usize,
}

/// A profile as it was read.
pub(crate) struct Loaded {
    pub id: String,
    pub settings: ProfileSettings,
    pub seen: Seen,
}

/// A surface, and what it was made of.
struct Cached {
    profile: Arc<Loaded>,
    servers: Vec<Shown>,
    surface: Arc<Surface>,
}

/// A server as its tools are shown.
#[derive(PartialEq)]
struct Shown {
    id: String,
    version: i64,
    /// It does not answer.
    is_stale: bool,
}

impl Shown {
    fn of(server: &OfferedServer, is_stale: bool) -> Self {
        Self { id: server.id().to_owned(), version: server.record().version, is_stale }
    }
}

impl Cached {
    /// Bytes of memory.
    fn weight(_: &(AccountId, String), cached: &Arc<Self>) -> u32 {
        u32::try_from(cached.surface.bytes()).unwrap_or(u32::MAX)
    }
}

/// Bytes of memory that the switches of a subject take.
fn switches_bytes(switches: &HashMap<String, Vec<String>>) -> usize {
    switches.values().flatten().map(|name| NAME_BYTES + name.len()).sum()
}

impl PgMcpGateway {
    /// The gateway.
    pub fn new(needs: McpNeeds) -> Arc<Self> {
        let McpNeeds { db, bus, clock, vault, tool_servers, integrations, .. } = needs;
        let McpNeeds { assistants, chat, agents, threads, budget, .. } = needs;
        Arc::new(Self {
            audit: Audit::new(&db),
            known: InvalidatedCache::by_id(
                &bus,
                TOPIC,
                Capacity::Bytes(MAX_CONFIGURED, |known: &Configured| known.bytes),
            ),
            switches: InvalidatedCache::by_id(&bus, SWITCHES, Capacity::Bytes(MAX_SWITCHES, switches_bytes)),
            surfaces: Cache::builder().max_capacity(MAX_SURFACES).weigher(Cached::weight).build(),
            making: FairSemaphore::new(MADE_AT_ONCE.0, MADE_AT_ONCE.1),
            log_ins: Cache::builder().max_capacity(MAX_LOG_INS).time_to_live(LOG_IN).build(),
            asked: Cache::builder().max_capacity(MAX_ASKED).time_to_live(ASK_AGAIN).build(),
            db,
            bus,
            clock,
            vault,
            tool_servers,
            integrations,
            assistants,
            chat,
            agents,
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
                configured.bytes += 2 * (heap_bytes(&row.settings) + heap_bytes(&row.seen));
                let loaded = Loaded { id: row.id.clone(), settings: row.settings()?, seen: row.seen()? };
                configured.profiles.push(Arc::new(loaded));
            }
            for grant in grants {
                configured.bytes += GRANT_BYTES + grant.tools.iter().map(|tool| NAME_BYTES + tool.len()).sum::<usize>();
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

    /// A server of a profile as it is now, and whether it does not answer; `None` when it is not shown.
    async fn shown(&self, account: &AccountId, entry: &ProfileServer) -> Result<Option<(OfferedServer, bool)>> {
        let Some(server) = self.tool_servers.offered(account, &entry.tool_server_id).await? else { return Ok(None) };
        if !server.is_exposed() {
            return Ok(None);
        }
        let Some(since) = server.record().down_since_ms else { return Ok(Some((server, false))) };
        let is_shown = self.clock.now().since(Timestamp(since)) <= STALE;
        Ok(is_shown.then_some((server, true)))
    }

    /// The tools of a profile, made once for all who see it.
    pub(crate) async fn surface(&self, account: &AccountId, profile: &Arc<Loaded>) -> Result<Arc<Surface>> {
        let key = (account.clone(), profile.id.clone());
        let mut servers = Vec::new();
        for entry in profile.settings.servers.iter().filter(|entry| entry.enabled) {
            let shown = self.shown(account, entry).await?;
            servers.extend(shown.map(|(server, is_stale)| Shown::of(&server, is_stale)));
        }
        let is_same = |cached: &Arc<Cached>| Arc::ptr_eq(&cached.profile, profile) && cached.servers == servers;
        if let Some(cached) = self.surfaces.get(&key).filter(is_same) {
            return Ok(Arc::clone(&cached.surface));
        }
        // Profiles that are too large to be remembered are not all made at once.
        let _place = self.making.acquire(account).await;
        if let Some(cached) = self.surfaces.get(&key).filter(is_same) {
            return Ok(Arc::clone(&cached.surface));
        }
        let (mut servers, mut surface, mut is_unseen) = (Vec::new(), Surface::default(), false);
        for (at, entry) in profile.settings.servers.iter().enumerate().filter(|(_, entry)| entry.enabled) {
            let Some((server, is_stale)) = self.shown(account, entry).await? else { continue };
            is_unseen |= is_unseen_before(&server)
                && !server.tools().is_empty()
                && profile.seen.get(server.id()).is_none_or(HashMap::is_empty);
            servers.push(Shown::of(&server, is_stale));
            let of = Arc::clone(profile);
            let made = move || tools_of(&of.settings, &of.seen, &of.settings.servers[at], &server, is_stale);
            surface.add(run_blocking(made).await?);
        }
        if is_unseen {
            // From now on a tool that changes is another one.
            self.change(account, &profile.id, &Precondition::None, false, |_, _| Ok(())).await?;
        }
        surface.add(platform_tools(&profile.settings)?);
        let enabled = profile.settings.servers.iter().filter(|entry| entry.enabled);
        surface.servers = enabled.map(|entry| entry.tool_server_id.clone()).collect();
        let surface = Arc::new(surface.finish());
        let cached = Cached { profile: Arc::clone(profile), servers, surface: Arc::clone(&surface) };
        self.surfaces.insert(key, Arc::new(cached));
        self.surfaces.run_pending_tasks();
        Ok(surface)
    }

    /// What somebody sees of a profile, or of the one that is theirs, without what they may not use. `PROFILE_NOT_FOUND`.
    pub(crate) async fn view(&self, viewer: &Viewer, slug: Option<&str>) -> Result<View> {
        self.usable(viewer, self.whole_view(viewer, slug).await?).await
    }

    /// The same of a view that has all assistants and agents.
    pub(crate) async fn usable(&self, viewer: &Viewer, view: View) -> Result<View> {
        let judged = view.targets().map(|(tool, target, id)| async move {
            Ok::<_, Error>((!self.is_usable(viewer, target, id).await?).then(|| tool.to_owned()))
        });
        let hidden = try_join_all(judged).await?.into_iter().flatten().collect();
        Ok(view.without(hidden))
    }

    /// Whether there is an assistant or agent, and somebody may use it.
    pub(crate) async fn is_usable(&self, viewer: &Viewer, target: TargetType, id: &str) -> Result<bool> {
        let account = &viewer.caller.account;
        let found = match target {
            TargetType::Assistant => self.assistants.get(account, id).await.map(drop),
            TargetType::Agent => self.agents.get(account, &Id::named(id)).await.map(drop),
        };
        Ok(allowed(found)? && viewer.may_use(target, id).await?)
    }

    /// What somebody sees of a profile, with all assistants and agents that are tools. `PROFILE_NOT_FOUND`.
    pub(crate) async fn whole_view(&self, viewer: &Viewer, slug: Option<&str>) -> Result<View> {
        let account = &viewer.caller.account;
        let configured = self.configured(account).await?;
        let none = Vec::new();
        let grants = |profile: &Loaded| viewer.granted(configured.grants.get(&profile.id).unwrap_or(&none));
        let visible = |profile: &&Arc<Loaded>| !grants(profile).is_empty() || viewer.sees(&profile.settings);
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
        let surface = self.surface(account, profile).await?;
        let off = self.switched_off(account, &viewer.name).await?;
        let disabled = off.get(&profile.id).map(Vec::as_slice).unwrap_or_default();
        Ok(View::new((&profile.id, &profile.settings), surface, granted, disabled))
    }

    pub(crate) async fn profile(&self, account: &AccountId, id: &str) -> Result<Arc<Loaded>> {
        let configured = self.configured(account).await?;
        configured.profiles.iter().find(|of| of.id == id).cloned().ok_or_else(|| not_found(id))
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
    pub async fn refresh(&self, account: &AccountId, id: &Id<ToolServer>) -> Result<GatewayServer> {
        let missing = || Error::not_found(code::TOOL_SERVER_NOT_FOUND, "tool server", id);
        let server = self.tool_servers.offered(account, id).await?.ok_or_else(missing)?;
        if server.kind() == ServerType::Mcp {
            self.tool_servers.reread(account, id).await?;
        }
        Ok(shown(&self.tool_servers.offered(account, id).await?.ok_or_else(missing)?))
    }

    /// Waits until the calls that were made are written down, two seconds at most.
    pub async fn drain(&self) {
        self.audit.written().await;
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

    /// What somebody is shown of a profile. `PROFILE_NOT_FOUND`.
    pub async fn preview(&self, viewer: &Viewer, profile: &str) -> Result<Preview> {
        let view = self.view(viewer, Some(profile)).await?;
        Ok(Preview { profile: profile.to_owned(), tools: crate::endpoint::listed(&view)? })
    }

    /// Tools that a caller does without, and has. `PROFILE_NOT_FOUND`.
    pub async fn switches(&self, viewer: &Viewer, slug: Option<&str>) -> Result<Switches> {
        let view = self.view(viewer, slug).await?;
        let off = self.switched_off(&viewer.caller.account, &viewer.name).await?;
        let available = view.available().map(|tool| tool.name.clone()).collect();
        Ok(Switches { disabled: off.get(&view.profile_id).cloned().unwrap_or_default(), available })
    }

    /// Has a caller do without tools. `PROFILE_NOT_FOUND`.
    pub async fn set_switches(&self, viewer: &Viewer, slug: Option<&str>, disabled: Vec<String>) -> Result<Switches> {
        let account = &viewer.caller.account;
        let mut checks = Checks::default();
        check_names(&mut checks, "disabled", &disabled);
        checks.finish()?;
        let view = self.view(viewer, slug).await?;
        let before = self.switched_off(account, &viewer.name).await?;
        let before = before.get(&view.profile_id).map(Vec::as_slice).unwrap_or_default();
        let known: HashSet<&str> =
            view.available().map(|tool| tool.name.as_str()).chain(before.iter().map(String::as_str)).collect();
        let disabled: Vec<String> = disabled.into_iter().filter(|name| known.contains(name.as_str())).collect();
        let mut conn = self.db.conn().await?;
        repository::set_switches(&mut conn, account, &view.profile_id, &viewer.name, &disabled).await?;
        drop(conn);
        self.switches.changed(&switch_key(account, &viewer.name)).await?;
        self.switches(viewer, slug).await
    }

    pub(crate) async fn changed(&self, account: &AccountId) -> Result<()> {
        self.known.changed(account.as_str()).await
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

pub(crate) fn not_found(id: &str) -> Error {
    Error::not_found(code::PROFILE_NOT_FOUND, "MCP profile", id)
}
