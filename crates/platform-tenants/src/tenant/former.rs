//! What an administrator had set for tenants and end users that were deleted (contract 10 §1).

use diesel::{
    dsl::sql,
    prelude::*,
    sql_types::{Bool, Nullable, Text},
};
use diesel_async::RunQueryDsl;
use platform_core::{AccountId, Error, Result, Timestamp};
use platform_db::Conn;
use serde_json::Value;

use crate::{rule::Rule, schema::former_tenants};

/// Keeps the tiers and rules of a tenant and all its end users, or of one of these alone, until their windows end.
pub(super) async fn remember(
    conn: &mut Conn,
    account: &AccountId,
    tenant: &str,
    subtenant: Option<&str>,
    now: Timestamp,
) -> Result<()> {
    let these = former_tenants::account_id.eq(account.as_str()).and(former_tenants::tenant_id.eq(tenant));
    let these = these.and(former_tenants::subtenant_id.eq(subtenant.unwrap_or_default()));
    diesel::delete(former_tenants::table.filter(these.or(former_tenants::until_ms.le(now.0)))).execute(conn).await?;
    diesel::sql_query(
        "WITH set AS (
            SELECT account_id, tenant_id, '' AS subtenant_id, tier_id, rules FROM tenants WHERE $3 IS NULL
            UNION ALL
            SELECT account_id, tenant_id, subtenant_id, tier_id, '[]' FROM subtenants
            WHERE tier_id IS NOT NULL AND ($3 IS NULL OR subtenant_id = $3)
        )
        INSERT INTO former_tenants (account_id, tenant_id, subtenant_id, tier_id, rules, until_ms)
        SELECT account_id, tenant_id, set.subtenant_id, tier_id, set.rules,
            max(usage_start(unit, every, usage_window(unit, every, usage_clock()) + 1))
        FROM set LEFT JOIN tiers USING (account_id, tier_id),
            LATERAL jsonb_array_elements(set.rules || coalesce(tiers.rules, '[]')) AS rule,
            LATERAL (SELECT rule ->> 'windowUnit' AS unit, (rule ->> 'windowEvery')::integer AS every) AS counted
        WHERE account_id = $1 AND tenant_id = $2
        GROUP BY account_id, tenant_id, set.subtenant_id, tier_id, set.rules
        ON CONFLICT (account_id, tenant_id, subtenant_id) DO UPDATE
            SET tier_id = excluded.tier_id, rules = excluded.rules, until_ms = excluded.until_ms",
    )
    .bind::<Text, _>(account.as_str())
    .bind::<Text, _>(tenant)
    .bind::<Nullable<Text>, _>(subtenant)
    .execute(conn)
    .await?;
    Ok(())
}

/// Tier and rules that hold for a tenant, or an end user, that is not there now.
pub(super) async fn find(
    conn: &Conn,
    account: &AccountId,
    tenant: &str,
    subtenant: Option<&str>,
) -> Result<(Option<String>, Vec<Rule>)> {
    let mut conn = conn;
    let of = (account.as_str(), tenant, subtenant.unwrap_or_default());
    let former = former_tenants::table
        .find(of)
        .filter(sql::<Bool>("until_ms > extract(epoch FROM usage_clock()) * 1000"))
        .select((former_tenants::tier_id, former_tenants::rules));
    let former: Option<(Option<String>, Value)> = former.first(&mut conn).await.optional()?;
    let Some((tier, rules)) = former else { return Ok((None, Vec::new())) };
    Ok((tier, serde_json::from_value(rules).map_err(Error::internal)?))
}

/// Gives a tenant that was made anew what it had; a tier that it was given now stays when `keeps_tier`.
pub(super) async fn restore(conn: &mut Conn, account: &AccountId, tenant: &str, keeps_tier: bool) -> Result<()> {
    diesel::sql_query(
        "UPDATE tenants t SET rules = f.rules, tier_id = CASE WHEN $3 THEN t.tier_id ELSE coalesce(
            (SELECT tier_id FROM tiers WHERE account_id = f.account_id AND tier_id = f.tier_id), t.tier_id) END
        FROM former_tenants f WHERE t.account_id = $1 AND t.tenant_id = $2 AND f.account_id = $1 AND f.tenant_id = $2
            AND f.subtenant_id = '' AND f.until_ms > extract(epoch FROM usage_clock()) * 1000",
    )
    .bind::<Text, _>(account.as_str())
    .bind::<Text, _>(tenant)
    .bind::<Bool, _>(keeps_tier)
    .execute(conn)
    .await?;
    Ok(())
}
