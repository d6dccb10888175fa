//! Profiles: which servers take part in an address, and which of their tools.

use std::collections::{HashMap, HashSet};

use async_trait::async_trait;
use diesel_async::AsyncConnection;
use platform_access::{Kind, RecordRef, Referrer, use_in};
use platform_core::{
    AccountId, Checks, Code, Error, Id, Object, Page, Precondition, Result, Timestamp, overlay, run_blocking,
};
use platform_db::{Conn, Idempotency};
use platform_toolservers::{TOOL_SERVER, ToolDefinition, hold_in, numbered, slug};
use serde_json::Value;

use crate::{
    code,
    model::{MAX_NAMES, Profile, ProfilePage, ProfileSettings, ProfileTool, ToolOverride, ToolSwitch},
    rename::Renames,
    repository::{self, ProfileRow, Seen},
    service::{PgMcpGateway, not_found},
    surface::{digest, is_unseen_before},
};

/// Profiles of the gateway.
pub const MCP_PROFILE: Kind = Kind::of_account("profile");
/// Of an account.
const MAX_PROFILES: i64 = 200;
/// Tools of a server that are known as seen, those that are gone with them.
const MAX_SEEN: usize = 5_000;
/// Slugs that are tried when the one made of the name is taken.
const TRIES: i64 = 100;

impl PgMcpGateway {
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
                let named = |tool: &ToolDefinition| (tool.function.name.clone(), digest(tool));
                *of_server = run_blocking(move || Ok(server.tools().iter().map(named).collect())).await?;
            } else if of_server.len() > MAX_SEEN {
                // What is gone since is new when it comes back.
                let now: HashSet<&str> = server.tools().iter().map(|tool| tool.function.name.as_str()).collect();
                of_server.retain(|name, _| now.contains(name.as_str()));
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
            if repository::count_profiles(conn, account).await? >= MAX_PROFILES {
                return Err(Error::new(Code::CONFLICT, format!("An account has at most {MAX_PROFILES} profiles.")));
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
    pub async fn get(&self, account: &AccountId, id: &Id<Profile>) -> Result<Profile> {
        let row = repository::find_profile(self.db.read().await?.get(), account, id).await?;
        row.ok_or_else(|| not_found(id))?.shown()
    }

    /// Changes the given fields. `PROFILE_NOT_FOUND`, `IDENTIFIER_TAKEN`, `TOOL_SERVER_NOT_FOUND`.
    pub async fn update(
        &self,
        account: &AccountId,
        id: &Id<Profile>,
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
        self.change(account, id, expected, patch.contains_key("toolOverrides"), change).await
    }

    /// Changes a profile: what takes a look at servers is done before it is locked, and again when somebody was faster.
    pub(crate) async fn change(
        &self,
        account: &AccountId,
        id: &str,
        expected: &Precondition,
        gives_overrides: bool,
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
            let was = before.settings()?;
            let mut names = HashMap::new();
            for id in Renames::moved(&was, &settings) {
                let mut of_server: HashSet<String> =
                    seen.get(id).into_iter().flat_map(HashMap::keys).cloned().collect();
                if let Some(server) = self.tool_servers.offered(account, id).await? {
                    of_server.extend(server.tools().iter().map(|tool| tool.function.name.clone()));
                }
                names.insert(id.to_owned(), of_server);
            }
            let renames = Renames::new(&was, &settings, &names);
            renames.overrides(&mut settings.tool_overrides, gives_overrides);
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
                    return Ok(None);
                }
                if repository::slug_is_taken(conn, account, &row.slug, id).await? {
                    return Err(taken(&row.slug));
                }
                use_in(conn, account, (MCP_PROFILE, id), TOOL_SERVER, &servers_of(&settings)).await?;
                repository::update_profile(conn, account, &row).await?;
                if !renames.is_any(&settings.tool_overrides) {
                    return Ok(Some(false));
                }
                let rename = |name: &str| renames.name(name, &settings.tool_overrides);
                repository::rename_tools(conn, account, id, rename).await.map(Some)
            });
            let has_renamed = storing.await?;
            drop(conn);
            if let Some(has_renamed) = has_renamed {
                if has_renamed {
                    self.switches.changed("").await?;
                }
                self.changed(account).await?;
                return row.shown();
            }
        }
        Err(Error::new(Code::CONFLICT, "The profile is changed all the time; try again."))
    }

    /// Takes a profile away, with its grants and switches. `PROFILE_NOT_FOUND`.
    pub async fn delete(&self, account: &AccountId, id: &Id<Profile>, expected: &Precondition) -> Result<()> {
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
    pub async fn tools(&self, account: &AccountId, id: &Id<Profile>) -> Result<Vec<ProfileTool>> {
        let profile = self.profile(account, id).await?;
        Ok(self.surface(account, &profile).await?.shown())
    }

    /// Changes tools of a profile, and gives its version; one that is switched on is let in as it is now. `TOOL_NOT_FOUND`.
    pub async fn set_tools(
        &self,
        account: &AccountId,
        id: &Id<Profile>,
        given: Vec<ToolSwitch>,
        expected: &Precondition,
    ) -> Result<(Vec<ProfileTool>, Timestamp)> {
        let mut checks = Checks::default();
        checks.count("tools", given.len(), MAX_NAMES);
        checks.finish()?;
        let profile = self.profile(account, id).await?;
        let surface = self.surface(account, &profile).await?;
        let change = |settings: &mut ProfileSettings, seen: &mut Seen| {
            for of in &given {
                let by_name = surface.tools.iter().find(|tool| tool.base_name == of.name);
                let tool = by_name.or_else(|| surface.tools.iter().find(|tool| tool.alias.as_ref() == Some(&of.name)));
                let tool = tool.ok_or_else(|| Error::not_found(code::TOOL_NOT_FOUND, "tool", &of.name))?;
                let overrides = &mut settings.tool_overrides;
                let at = overrides.iter().position(|known| known.name == tool.base_name).unwrap_or_else(|| {
                    overrides.push(ToolOverride { name: tool.base_name.clone(), ..ToolOverride::default() });
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
                let (server, name) = tool.target.names();
                if let (Some(Some(true)), Some(server), Some(definition)) = (of.enabled, server, &tool.definition) {
                    seen.entry(server.to_owned()).or_default().insert(name.to_owned(), definition.clone());
                }
            }
            Ok(())
        };
        let changed = self.change(account, id, expected, false, change).await?;
        Ok((self.tools(account, id).await?, changed.last_edit_timestamp_ms))
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

fn taken(slug: &str) -> Error {
    Error::new(Code::IDENTIFIER_TAKEN, format!("There is a profile `{slug}` already; choose another slug."))
}
