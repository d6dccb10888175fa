use diesel::{dsl::sql, prelude::*, sql_types::BigInt};
use diesel_async::RunQueryDsl;
use platform_core::{AccountId, Error, Page, Result, Timestamp};
use platform_db::Conn;
use serde_json::Value;

use crate::{
    rule::{NewTier, Tier},
    schema::{subtenants, tenants, tiers},
};

#[derive(Queryable, Selectable)]
#[diesel(table_name = tiers)]
struct TierRow {
    tier_id: String,
    name: String,
    description: String,
    rules: Value,
    excluded_assistants: Vec<String>,
    excluded_agents: Vec<String>,
    is_default: bool,
    version: i64,
    created_ms: i64,
    edited_ms: i64,
}

impl TierRow {
    fn into_tier(self) -> Result<Tier> {
        Ok(Tier {
            rules: serde_json::from_value(self.rules).map_err(Error::internal)?,
            tier_id: self.tier_id,
            name: self.name,
            description: self.description,
            excluded_assistants: self.excluded_assistants,
            excluded_agents: self.excluded_agents,
            is_default: self.is_default,
            creation_timestamp_ms: Timestamp(self.created_ms),
            last_edit_timestamp_ms: Timestamp(self.edited_ms),
            version: self.version,
        })
    }
}

/// Tiers, the newest first, as many as a list holds; and how many there are.
pub(super) async fn list(conn: &Conn, account: &AccountId) -> Result<(Vec<Tier>, usize)> {
    let mut conn = conn;
    let of = tiers::table.filter(tiers::account_id.eq(account.as_str()));
    let of = of.order((tiers::created_ms.desc(), tiers::tier_id));
    let sizes = sql::<BigInt>("octet_length(tiers::text)::bigint");
    let sizes: Vec<i64> = of.select(sizes).load(&mut conn).await?;
    let page = Page { limit: i64::MAX, offset: 0 }.fitting(&sizes);
    let rows: Vec<TierRow> = of.limit(page.limit).select(TierRow::as_select()).load(&mut conn).await?;
    Ok((rows.into_iter().map(TierRow::into_tier).collect::<Result<_>>()?, sizes.len()))
}

pub(super) async fn lock(conn: &mut Conn, account: &AccountId, tier: &str) -> Result<Option<Tier>> {
    let tier = tiers::table.filter(tiers::account_id.eq(account.as_str()).and(tiers::tier_id.eq(tier)));
    let row: Option<TierRow> = tier.for_no_key_update().select(TierRow::as_select()).first(conn).await.optional()?;
    row.map(TierRow::into_tier).transpose()
}

/// One at a time decides which tier is the default; taken before any tier.
pub(super) async fn lock_default(conn: &mut Conn, account: &AccountId) -> Result<()> {
    diesel::sql_query("SELECT pg_advisory_xact_lock(hashtextextended('default tier of ' || $1, 0))")
        .bind::<diesel::sql_types::Text, _>(account.as_str())
        .execute(conn)
        .await?;
    Ok(())
}

/// The mark of the default goes from whichever tier has it.
async fn take_default(conn: &mut Conn, account: &AccountId, tier: &NewTier) -> Result<()> {
    if tier.is_default {
        let others =
            tiers::account_id.eq(account.as_str()).and(tiers::is_default).and(tiers::tier_id.ne(&tier.tier_id));
        diesel::update(tiers::table.filter(others)).set(tiers::is_default.eq(false)).execute(conn).await?;
    }
    Ok(())
}

/// `false` when there is one of that name.
pub(super) async fn insert(conn: &mut Conn, account: &AccountId, new: &NewTier, now: Timestamp) -> Result<bool> {
    take_default(conn, account, new).await?;
    let inserted = diesel::insert_into(tiers::table)
        .values((
            tiers::account_id.eq(account.as_str()),
            tiers::tier_id.eq(&new.tier_id),
            tiers::name.eq(&new.name),
            tiers::description.eq(&new.description),
            tiers::rules.eq(serde_json::to_value(&new.rules).map_err(Error::internal)?),
            tiers::excluded_assistants.eq(&new.excluded_assistants),
            tiers::excluded_agents.eq(&new.excluded_agents),
            tiers::is_default.eq(new.is_default),
            tiers::version.eq(1_i64),
            tiers::created_ms.eq(now.0),
            tiers::edited_ms.eq(now.0),
        ))
        .on_conflict_do_nothing()
        .execute(conn)
        .await?;
    Ok(inserted == 1)
}

pub(super) async fn replace(conn: &mut Conn, account: &AccountId, new: &NewTier, now: Timestamp) -> Result<()> {
    take_default(conn, account, new).await?;
    let tier = tiers::account_id.eq(account.as_str()).and(tiers::tier_id.eq(&new.tier_id));
    diesel::update(tiers::table.filter(tier))
        .set((
            tiers::name.eq(&new.name),
            tiers::description.eq(&new.description),
            tiers::rules.eq(serde_json::to_value(&new.rules).map_err(Error::internal)?),
            tiers::excluded_assistants.eq(&new.excluded_assistants),
            tiers::excluded_agents.eq(&new.excluded_agents),
            tiers::is_default.eq(new.is_default),
            tiers::version.eq(tiers::version + 1),
            tiers::edited_ms.eq(now.0),
        ))
        .execute(conn)
        .await?;
    Ok(())
}

/// Whether a tenant or an end user has it.
pub(super) async fn is_assigned(conn: &mut Conn, account: &AccountId, tier: &str) -> Result<bool> {
    let tenants = tenants::table.filter(tenants::account_id.eq(account.as_str()).and(tenants::tier_id.eq(tier)));
    let users = subtenants::table.filter(subtenants::account_id.eq(account.as_str()).and(subtenants::tier_id.eq(tier)));
    let by_tenant: bool = diesel::select(diesel::dsl::exists(tenants)).get_result(conn).await?;
    let by_user: bool = diesel::select(diesel::dsl::exists(users)).get_result(conn).await?;
    Ok(by_tenant || by_user)
}

pub(super) async fn delete(conn: &mut Conn, account: &AccountId, tier: &str) -> Result<()> {
    let tier = tiers::account_id.eq(account.as_str()).and(tiers::tier_id.eq(tier));
    diesel::delete(tiers::table.filter(tier)).execute(conn).await?;
    Ok(())
}

/// Gives a tenant, or one of its end users, a tier.
pub(super) async fn assign(
    conn: &mut Conn,
    account: &AccountId,
    tenant: &str,
    subtenant: Option<&str>,
    tier: Option<&str>,
) -> Result<()> {
    match subtenant {
        None => {
            let of = tenants::account_id.eq(account.as_str()).and(tenants::tenant_id.eq(tenant));
            diesel::update(tenants::table.filter(of)).set(tenants::tier_id.eq(tier)).execute(conn).await?;
        }
        Some(subtenant) => {
            let of = subtenants::account_id.eq(account.as_str()).and(subtenants::tenant_id.eq(tenant));
            let of = of.and(subtenants::subtenant_id.eq(subtenant));
            diesel::update(subtenants::table.filter(of)).set(subtenants::tier_id.eq(tier)).execute(conn).await?;
        }
    }
    Ok(())
}

/// The tier that a tenant has now, and for an end user theirs; `None` when there is no such tenant or user.
pub(super) async fn assigned(
    conn: &mut Conn,
    account: &AccountId,
    tenant: &str,
    subtenant: Option<&str>,
) -> Result<Option<Option<String>>> {
    let tier = match subtenant {
        None => {
            let of = tenants::account_id.eq(account.as_str()).and(tenants::tenant_id.eq(tenant));
            tenants::table.filter(of).for_no_key_update().select(tenants::tier_id).first(conn).await.optional()?
        }
        Some(subtenant) => {
            let of = subtenants::account_id.eq(account.as_str()).and(subtenants::tenant_id.eq(tenant));
            let of = of.and(subtenants::subtenant_id.eq(subtenant));
            subtenants::table.filter(of).for_no_key_update().select(subtenants::tier_id).first(conn).await.optional()?
        }
    };
    Ok(tier)
}

/// Replaces the rules of a tenant alone.
pub(super) async fn set_rules(conn: &mut Conn, account: &AccountId, tenant: &str, rules: Value) -> Result<()> {
    let of = tenants::account_id.eq(account.as_str()).and(tenants::tenant_id.eq(tenant));
    diesel::update(tenants::table.filter(of)).set(tenants::rules.eq(rules)).execute(conn).await?;
    Ok(())
}

/// The tier that holds for a tenant: its own, else the default one.
pub(super) async fn holding(conn: &Conn, account: &AccountId, own: Option<String>) -> Result<Option<Tier>> {
    let mut conn = conn;
    let mut tier = tiers::table.filter(tiers::account_id.eq(account.as_str())).into_boxed();
    tier = match own {
        Some(own) => tier.filter(tiers::tier_id.eq(own)),
        None => tier.filter(tiers::is_default),
    };
    let row: Option<TierRow> = tier.select(TierRow::as_select()).first(&mut conn).await.optional()?;
    row.map(TierRow::into_tier).transpose()
}
