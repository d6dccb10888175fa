use diesel::{
    QueryableByName,
    sql_types::{BigInt, Bool, Text},
};
use diesel_async::RunQueryDsl;
use platform_core::{Error, Result};
use platform_db::{Conn, Db, JsonStatement};

#[derive(QueryableByName)]
struct Row {
    #[diesel(sql_type = Bool)]
    taken: bool,
    #[diesel(sql_type = BigInt)]
    used_until_us: i64,
    #[diesel(sql_type = BigInt)]
    now_us: i64,
}

/// Takes `wanted` microseconds from a bucket that holds `capacity`, if it has them; until when it is used
/// up then, and the database's clock.
const TAKE: &str = "WITH item AS (
        SELECT name, wanted, capacity, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now_us
        FROM jsonb_to_recordset($1::jsonb) AS x(name text, wanted bigint, capacity bigint)
    ), taken AS (
        INSERT INTO rate_buckets AS b (name, used_until_us) SELECT name, now_us + wanted FROM item
        ON CONFLICT (name) DO UPDATE SET used_until_us = greatest(b.used_until_us,
            excluded.used_until_us - (SELECT wanted FROM item)) + (SELECT wanted FROM item)
        WHERE greatest(b.used_until_us, excluded.used_until_us - (SELECT wanted FROM item))
            + (SELECT wanted - now_us FROM item) <= (SELECT capacity FROM item)
        RETURNING used_until_us
    )
    SELECT taken.used_until_us IS NOT NULL AS taken,
        coalesce(taken.used_until_us, b.used_until_us, item.now_us) AS used_until_us, item.now_us
    FROM item LEFT JOIN taken ON true LEFT JOIN rate_buckets b ON b.name = item.name";

pub(crate) async fn take(db: &Db, name: &str, wanted: i64, capacity: i64) -> Result<(bool, i64, i64)> {
    #[derive(serde::Serialize)]
    struct Item<'a> {
        name: &'a str,
        wanted: i64,
        capacity: i64,
    }
    let statement = JsonStatement::new(TAKE, &[Item { name, wanted, capacity }])?;
    let rows: Vec<Row> = statement.load(&mut *db.conn().await?).await?;
    let row = rows.into_iter().next().ok_or_else(|| Error::internal("a bucket gives one row"))?;
    Ok((row.taken, row.used_until_us, row.now_us))
}

/// Gives back microseconds that were taken.
pub(crate) async fn give_back(db: &Db, name: &str, taken: i64) -> Result<()> {
    let give = "UPDATE rate_buckets SET used_until_us = used_until_us - $1 WHERE name = $2";
    let give = diesel::sql_query(give).bind::<BigInt, _>(taken).bind::<Text, _>(name);
    give.execute(&mut *db.conn().await?).await?;
    Ok(())
}

impl crate::RateLimits {
    /// Forgets shared buckets that have been full for an hour.
    pub async fn purge(conn: &mut Conn) -> Result<()> {
        let old =
            "DELETE FROM rate_buckets WHERE used_until_us < extract(epoch FROM now() - interval '1 hour') * 1000000";
        diesel::sql_query(old).execute(conn).await?;
        Ok(())
    }
}
