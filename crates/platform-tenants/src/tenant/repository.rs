use diesel::{
    dsl::sql,
    prelude::*,
    sql_types::{Array, BigInt, Bool, Text},
};
use diesel_async::RunQueryDsl;
use platform_core::{AccountId, Error, Id, Object, Page, Result, Timestamp};
use platform_db::{Conn, containing};
use serde_json::Value;

use super::{
    former,
    model::{Facts, Subtenant, Tenant, TenantInfo, domain_of},
};
use crate::{
    quota::Standing,
    rule::{Rule, effective},
    schema::{subtenants, tenants, tiers},
};

/// What a tenant is called where changes are told and ids are made.
pub(crate) const TENANT: &str = "tenant";
pub(crate) const SUBTENANT: &str = "subtenant";

#[derive(Queryable, Selectable, Clone)]
#[diesel(table_name = tenants)]
pub(crate) struct TenantRow {
    pub tenant_id: String,
    id: String,
    pub display_name: String,
    pub email: String,
    pub image_url: String,
    pub domain: String,
    pub pinned: Vec<String>,
    source: String,
    pub tier_id: Option<String>,
    rules: Value,
    metadata: Value,
    first_seen_ms: i64,
    last_seen_ms: i64,
}

impl TenantRow {
    pub fn rules(&self) -> Result<Vec<Rule>> {
        serde_json::from_value(self.rules.clone()).map_err(Error::internal)
    }

    pub fn metadata(&self) -> Object {
        self.metadata.as_object().cloned().unwrap_or_default()
    }

    pub fn into_tenant(self, subtenants_count: i64, blocked: bool) -> Tenant {
        let metadata = self.metadata();
        Tenant {
            image_source: source_of(&self.pinned, "imageUrl"),
            domain_source: source_of(&self.pinned, "domain"),
            id: self.id,
            tenant_id: self.tenant_id,
            display_name: self.display_name,
            email: self.email,
            image_url: self.image_url,
            domain: self.domain,
            source: self.source,
            tier_id: self.tier_id,
            subtenants_count,
            first_seen_at: Timestamp(self.first_seen_ms).to_iso(),
            last_seen_at: Timestamp(self.last_seen_ms).to_iso(),
            metadata,
            blocked,
        }
    }
}

fn source_of(pinned: &[String], field: &str) -> &'static str {
    if pinned.iter().any(|name| name == field) { "manual" } else { "auto" }
}

#[derive(Queryable, Selectable, Clone)]
#[diesel(table_name = subtenants)]
pub(crate) struct SubtenantRow {
    tenant_id: String,
    subtenant_id: String,
    id: String,
    pub display_name: String,
    pub email: String,
    pub image_url: String,
    pub pinned: Vec<String>,
    source: String,
    pub tier_id: Option<String>,
    first_seen_ms: i64,
    last_seen_ms: i64,
}

impl From<SubtenantRow> for Subtenant {
    fn from(row: SubtenantRow) -> Self {
        Self {
            display_name_source: source_of(&row.pinned, "displayName"),
            image_source: source_of(&row.pinned, "imageUrl"),
            email_domain: domain_of(&row.email),
            id: row.id,
            tenant_id: row.tenant_id,
            subtenant_id: row.subtenant_id,
            display_name: row.display_name,
            email: row.email,
            image_url: row.image_url,
            tier_id: row.tier_id,
            source: row.source,
            first_seen_at: Timestamp(row.first_seen_ms).to_iso(),
            last_seen_at: Timestamp(row.last_seen_ms).to_iso(),
        }
    }
}

#[diesel::dsl::auto_type(no_type_alias)]
fn by_id<'a>(account: &'a str, tenant: &'a str) -> _ {
    tenants::table.filter(tenants::account_id.eq(account).and(tenants::tenant_id.eq(tenant)))
}

#[diesel::dsl::auto_type(no_type_alias)]
fn user_by_id<'a>(account: &'a str, tenant: &'a str, subtenant: &'a str) -> _ {
    subtenants::table.filter(
        subtenants::account_id
            .eq(account)
            .and(subtenants::tenant_id.eq(tenant))
            .and(subtenants::subtenant_id.eq(subtenant)),
    )
}

/// Notes that a tenant and its end user were seen: fills what is empty of the tenant, refreshes the end user.
pub(crate) async fn register_in(conn: &mut Conn, account: &AccountId, info: &TenantInfo, now: Timestamp) -> Result<()> {
    let Facts { name, email, image_url } = &info.tenant;
    let pinned: &[&str] = if image_url.is_empty() { &[] } else { &["imageUrl"] };
    diesel::sql_query(
        "INSERT INTO tenants AS t (account_id, tenant_id, id, display_name, email, image_url, domain, pinned, source,
            first_seen_ms, last_seen_ms, tier_id, rules)
        SELECT $1, $2, $3, $4, $5, $6, $7, $8, 'auto', $9, $9, tiers.tier_id, coalesce(f.rules, '[]')
        FROM (SELECT 1) AS one
        LEFT JOIN former_tenants f ON f.account_id = $1 AND f.tenant_id = $2 AND f.subtenant_id = ''
            AND f.until_ms > extract(epoch FROM usage_clock()) * 1000
        LEFT JOIN tiers ON tiers.account_id = $1 AND tiers.tier_id = f.tier_id
        ON CONFLICT (account_id, tenant_id) DO UPDATE SET
            last_seen_ms = greatest(t.last_seen_ms, excluded.last_seen_ms),
            display_name = CASE WHEN t.display_name = '' AND 'displayName' <> ALL (t.pinned)
                THEN excluded.display_name ELSE t.display_name END,
            email = CASE WHEN t.email = '' AND 'email' <> ALL (t.pinned) THEN excluded.email ELSE t.email END,
            domain = CASE WHEN t.domain = '' AND t.email = '' AND 'domain' <> ALL (t.pinned)
                THEN excluded.domain ELSE t.domain END,
            pinned = CASE WHEN t.image_url = '' AND 'imageUrl' <> ALL (t.pinned)
                THEN t.pinned || excluded.pinned ELSE t.pinned END,
            image_url = CASE WHEN t.image_url = '' AND 'imageUrl' <> ALL (t.pinned)
                THEN excluded.image_url ELSE t.image_url END",
    )
    .bind::<Text, _>(account.as_str())
    .bind::<Text, _>(&info.tenant_id)
    .bind::<Text, _>(String::from(Id::<Tenant>::generate()))
    .bind::<Text, _>(name)
    .bind::<Text, _>(email)
    .bind::<Text, _>(image_url)
    .bind::<Text, _>(domain_of(email))
    .bind::<Array<Text>, _>(pinned)
    .bind::<BigInt, _>(now.0)
    .execute(conn)
    .await?;
    let Some(subtenant) = &info.subtenant_id else { return Ok(()) };
    let Facts { name, email, image_url } = &info.subtenant;
    diesel::sql_query(
        "INSERT INTO subtenants AS s (account_id, tenant_id, subtenant_id, id, display_name, email, image_url, source,
            first_seen_ms, last_seen_ms, tier_id)
        SELECT $1, $2, $3, $4, $5, $6, $7, 'auto', $8, $8, tiers.tier_id
        FROM (SELECT 1) AS one
        LEFT JOIN former_tenants f ON f.account_id = $1 AND f.tenant_id = $2 AND f.subtenant_id = $3
            AND f.until_ms > extract(epoch FROM usage_clock()) * 1000
        LEFT JOIN tiers ON tiers.account_id = $1 AND tiers.tier_id = f.tier_id
        ON CONFLICT (account_id, tenant_id, subtenant_id) DO UPDATE SET
            last_seen_ms = greatest(s.last_seen_ms, excluded.last_seen_ms),
            display_name = CASE WHEN excluded.display_name <> '' AND 'displayName' <> ALL (s.pinned)
                THEN excluded.display_name ELSE s.display_name END,
            email = CASE WHEN excluded.email <> '' AND 'email' <> ALL (s.pinned) THEN excluded.email ELSE s.email END,
            image_url = CASE WHEN excluded.image_url <> '' AND 'imageUrl' <> ALL (s.pinned)
                THEN excluded.image_url ELSE s.image_url END",
    )
    .bind::<Text, _>(account.as_str())
    .bind::<Text, _>(&info.tenant_id)
    .bind::<Text, _>(subtenant)
    .bind::<Text, _>(String::from(Id::<Subtenant>::generate()))
    .bind::<Text, _>(name)
    .bind::<Text, _>(email)
    .bind::<Text, _>(image_url)
    .bind::<BigInt, _>(now.0)
    .execute(conn)
    .await?;
    Ok(())
}

/// The rules that hold for a tenant, seen or not, or for one of its end users.
pub(crate) async fn standing(
    conn: &Conn,
    account: &AccountId,
    tenant: &str,
    subtenant: Option<&str>,
) -> Result<Standing> {
    let mut conn = conn;
    let found: Option<TenantRow> =
        by_id(account.as_str(), tenant).select(TenantRow::as_select()).first(&mut conn).await.optional()?;
    let own_tier: Option<String> = match subtenant {
        Some(subtenant) => {
            let tier = user_by_id(account.as_str(), tenant, subtenant).select(subtenants::tier_id);
            match tier.first::<Option<String>>(&mut conn).await.optional()? {
                Some(tier) => tier,
                None => former::find(conn, account, tenant, Some(subtenant)).await?.0,
            }
        }
        None => None,
    };
    let (tier, ad_hoc) = match found {
        Some(tenant) => (tenant.tier_id.clone(), tenant.rules()?),
        None => former::find(conn, account, tenant, None).await?,
    };
    type Row = (String, Value, Vec<String>, Vec<String>, bool);
    let wanted: Vec<String> = tier.iter().chain(&own_tier).cloned().collect();
    let rows: Vec<Row> = tiers::table
        .filter(tiers::account_id.eq(account.as_str()).and(tiers::tier_id.eq_any(wanted).or(tiers::is_default)))
        .select((tiers::tier_id, tiers::rules, tiers::excluded_assistants, tiers::excluded_agents, tiers::is_default))
        .load(&mut conn)
        .await?;
    let of_tenant = rows.iter().find(|row| match &tier {
        Some(tier) => row.0 == *tier,
        None => row.4,
    });
    let read = |row: &Row| {
        Ok::<_, Error>((row.0.clone(), serde_json::from_value::<Vec<Rule>>(row.1.clone()).map_err(Error::internal)?))
    };
    let rules = of_tenant.map(read).transpose()?;
    let own_rules = own_tier.and_then(|own| rows.iter().find(|row| row.0 == own)).map(read).transpose()?;
    let (excluded_assistants, excluded_agents) =
        of_tenant.map(|row| (row.2.clone(), row.3.clone())).unwrap_or_default();
    let rules = effective(rules.as_ref(), own_rules.as_ref(), &ad_hoc, subtenant);
    Ok(Standing::new(rules, excluded_assistants, excluded_agents))
}

pub(crate) async fn find(conn: &Conn, account: &AccountId, tenant: &str) -> Result<Option<TenantRow>> {
    let mut conn = conn;
    Ok(by_id(account.as_str(), tenant).select(TenantRow::as_select()).first(&mut conn).await.optional()?)
}

pub(crate) async fn exists(conn: &Conn, account: &AccountId, tenant: &str) -> Result<bool> {
    Ok(find(conn, account, tenant).await?.is_some())
}

pub(crate) async fn lock(conn: &mut Conn, account: &AccountId, tenant: &str) -> Result<Option<TenantRow>> {
    let tenant = by_id(account.as_str(), tenant).for_no_key_update().select(TenantRow::as_select());
    Ok(tenant.first(conn).await.optional()?)
}

/// `false` when there is one of that name.
pub(crate) async fn insert(
    conn: &mut Conn,
    account: &AccountId,
    new: &super::NewTenant,
    pinned: Vec<String>,
    now: Timestamp,
) -> Result<bool> {
    let email = new.email.clone().unwrap_or_default();
    let inserted = diesel::insert_into(tenants::table)
        .values((
            tenants::account_id.eq(account.as_str()),
            tenants::tenant_id.eq(&new.tenant_id),
            tenants::id.eq(String::from(Id::<Tenant>::generate())),
            tenants::display_name.eq(new.display_name.clone().unwrap_or_default()),
            tenants::domain.eq(new.domain.clone().unwrap_or_else(|| domain_of(&email))),
            tenants::email.eq(email),
            tenants::image_url.eq(new.image_url.clone().unwrap_or_default()),
            tenants::pinned.eq(pinned),
            tenants::source.eq("api"),
            tenants::tier_id.eq(&new.tier_id),
            tenants::metadata.eq(Value::Object(new.metadata.clone())),
            tenants::first_seen_ms.eq(now.0),
            tenants::last_seen_ms.eq(now.0),
        ))
        .on_conflict_do_nothing()
        .execute(conn)
        .await?;
    Ok(inserted == 1)
}

pub(crate) async fn update(conn: &mut Conn, account: &AccountId, row: &TenantRow, metadata: Object) -> Result<()> {
    diesel::update(by_id(account.as_str(), &row.tenant_id))
        .set((
            tenants::display_name.eq(&row.display_name),
            tenants::email.eq(&row.email),
            tenants::image_url.eq(&row.image_url),
            tenants::domain.eq(&row.domain),
            tenants::pinned.eq(&row.pinned),
            tenants::metadata.eq(Value::Object(metadata)),
        ))
        .execute(conn)
        .await?;
    Ok(())
}

/// Takes a tenant away; history and costs stay, and what holds for it in the windows of now.
pub(crate) async fn delete(conn: &mut Conn, account: &AccountId, tenant: &str, now: Timestamp) -> Result<bool> {
    former::remember(conn, account, tenant, None, now).await?;
    Ok(diesel::delete(by_id(account.as_str(), tenant)).execute(conn).await? == 1)
}

/// The same with an end user.
pub(crate) async fn delete_user(
    conn: &mut Conn,
    account: &AccountId,
    tenant: &str,
    subtenant: &str,
    now: Timestamp,
) -> Result<bool> {
    former::remember(conn, account, tenant, Some(subtenant), now).await?;
    Ok(diesel::delete(user_by_id(account.as_str(), tenant, subtenant)).execute(conn).await? == 1)
}

pub(crate) async fn list(
    conn: &Conn,
    account: &AccountId,
    search: Option<&str>,
    page: Page,
) -> Result<(Vec<TenantRow>, i64)> {
    let mut conn = conn;
    let found = || {
        let all = tenants::table.filter(tenants::account_id.eq(account.as_str())).into_boxed();
        match search {
            Some(search) => all.filter(
                sql::<Bool>("concat_ws(E'\\n', tenant_id, display_name, email, domain) ILIKE ")
                    .bind::<Text, _>(containing(search)),
            ),
            None => all,
        }
    };
    let total = found().count().get_result(&mut conn).await?;
    let rows = found()
        .order((tenants::first_seen_ms.desc(), tenants::id.desc()))
        .limit(page.limit)
        .offset(page.offset)
        .select(TenantRow::as_select())
        .load(&mut conn)
        .await?;
    Ok((rows, total))
}

/// How many end users these tenants have; those without any are left out.
pub(crate) async fn count_users(
    conn: &Conn,
    account: &AccountId,
    tenants: &[String],
) -> Result<std::collections::HashMap<String, i64>> {
    let mut conn = conn;
    let counts: Vec<(String, i64)> = subtenants::table
        .filter(subtenants::account_id.eq(account.as_str()).and(subtenants::tenant_id.eq_any(tenants)))
        .group_by(subtenants::tenant_id)
        .select((subtenants::tenant_id, diesel::dsl::count_star()))
        .load(&mut conn)
        .await?;
    Ok(counts.into_iter().collect())
}

pub(crate) async fn list_users(
    conn: &Conn,
    account: &AccountId,
    tenant: &str,
    search: Option<&str>,
    page: Page,
) -> Result<(Vec<SubtenantRow>, i64)> {
    let mut conn = conn;
    let found = || {
        let of = subtenants::account_id.eq(account.as_str()).and(subtenants::tenant_id.eq(tenant));
        let all = subtenants::table.filter(of).into_boxed();
        match search {
            Some(search) => all.filter(
                sql::<Bool>("concat_ws(E'\\n', subtenant_id, display_name, email) ILIKE ")
                    .bind::<Text, _>(containing(search)),
            ),
            None => all,
        }
    };
    let total = found().count().get_result(&mut conn).await?;
    let rows = found()
        .order((subtenants::first_seen_ms.desc(), subtenants::id.desc()))
        .limit(page.limit)
        .offset(page.offset)
        .select(SubtenantRow::as_select())
        .load(&mut conn)
        .await?;
    Ok((rows, total))
}

pub(crate) async fn find_user(
    conn: &Conn,
    account: &AccountId,
    tenant: &str,
    subtenant: &str,
) -> Result<Option<SubtenantRow>> {
    let mut conn = conn;
    let user = user_by_id(account.as_str(), tenant, subtenant).select(SubtenantRow::as_select());
    Ok(user.first(&mut conn).await.optional()?)
}

pub(crate) async fn lock_user(
    conn: &mut Conn,
    account: &AccountId,
    tenant: &str,
    subtenant: &str,
) -> Result<Option<SubtenantRow>> {
    let user = user_by_id(account.as_str(), tenant, subtenant);
    Ok(user.for_no_key_update().select(SubtenantRow::as_select()).first(conn).await.optional()?)
}

pub(crate) async fn update_user(conn: &mut Conn, account: &AccountId, row: &SubtenantRow) -> Result<()> {
    diesel::update(user_by_id(account.as_str(), &row.tenant_id, &row.subtenant_id))
        .set((
            subtenants::display_name.eq(&row.display_name),
            subtenants::email.eq(&row.email),
            subtenants::image_url.eq(&row.image_url),
            subtenants::pinned.eq(&row.pinned),
        ))
        .execute(conn)
        .await?;
    Ok(())
}
