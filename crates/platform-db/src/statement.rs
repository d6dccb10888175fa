use std::marker::PhantomData;

use diesel::{
    QueryResult,
    pg::Pg,
    query_builder::{AstPass, Query, QueryFragment, QueryId},
    sql_types::{Text, Untyped},
};

/// A pattern for `LIKE` that finds a text anywhere, as it stands.
pub fn containing(text: &str) -> String {
    format!("%{}%", text.replace('\\', "\\\\").replace('%', "\\%").replace('_', "\\_"))
}

/// A prepared statement with one parameter, a JSON array of rows: `jsonb_to_recordset($1)`.
///
/// This is how one statement writes for many callers at once. Unlike `diesel::sql_query`,
/// it is prepared once per connection.
pub struct JsonStatement {
    sql: &'static str,
    rows: String,
}

impl JsonStatement {
    /// `sql` names its parameter once, as `$1`.
    pub fn new(sql: &'static str, rows: &[impl serde::Serialize]) -> Result<Self, platform_core::Error> {
        Ok(Self { sql, rows: serde_json::to_string(rows).map_err(platform_core::Error::internal)? })
    }
}

impl QueryFragment<Pg> for JsonStatement {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Pg>) -> QueryResult<()> {
        let (before, after) = self.sql.split_once("$1").expect("the statement names its parameter as $1");
        out.push_sql(before);
        out.push_bind_param::<Text, _>(&self.rows)?;
        out.push_sql(after);
        Ok(())
    }
}

impl QueryId for JsonStatement {
    type QueryId = PhantomData<()>;
    const HAS_STATIC_QUERY_ID: bool = false;
}

impl Query for JsonStatement {
    type SqlType = Untyped;
}

impl<C> diesel::RunQueryDsl<C> for JsonStatement {}
