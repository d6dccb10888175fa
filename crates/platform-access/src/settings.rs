//! References that stand in the JSON settings of records.

use diesel::sql_types::{Array, Text};
use diesel_async::RunQueryDsl;
use platform_core::{AccountId, Result};
use platform_db::Conn;

/// How a reference stands in settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReferenceForm {
    /// The id by itself; there is one at most.
    One,
    /// An id of a list.
    Listed,
    /// The `id` of an object of a list.
    ListedObject,
}

impl ReferenceForm {
    /// What settings become, and of which records: `$3` is the reference, `$4` where it stands.
    fn change(self, refers: bool) -> (&'static str, &'static str) {
        match (self, refers) {
            (Self::One, true) => ("jsonb_set(settings, $4, to_jsonb($3))", "settings #>> $4 IS DISTINCT FROM $3"),
            (Self::One, false) => ("settings #- $4", "settings #>> $4 = $3"),
            (Self::Listed | Self::ListedObject, true) => (
                "jsonb_set(settings, $4, coalesce(settings #> $4, '[]') || to_jsonb($3))",
                "NOT coalesce(settings #> $4 ? $3, false)",
            ),
            (Self::Listed, false) => ("jsonb_set(settings, $4, (settings #> $4) - $3)", "settings #> $4 ? $3"),
            (Self::ListedObject, false) => (
                "jsonb_set(settings, $4, (SELECT coalesce(jsonb_agg(s), '[]') \
                 FROM jsonb_array_elements(settings #> $4) s WHERE s ->> 'id' <> $3))",
                "jsonb_typeof(settings #> $4) = 'array'",
            ),
        }
    }
}

/// A table of records with the columns `account_id`, `id`, `version`, `edited_ms` and `settings`.
#[derive(Debug, Clone, Copy)]
pub struct SettingsTable {
    /// Its name.
    pub name: &'static str,
    /// What else is done with rows that changed, as a statement that reads `changed (account_id, id, version, settings)`.
    pub then: &'static str,
}

/// Where in settings a reference stands, and how.
pub type ReferencePlace<'a> = (&'a [&'a str], ReferenceForm);

impl SettingsTable {
    /// A table whose rows stand for themselves.
    pub const fn new(name: &'static str) -> Self {
        Self { name, then: "SELECT FROM changed" }
    }

    /// Has a record refer to another, or no longer; one that did not already has a new version then.
    pub async fn set_in(
        self,
        conn: &mut Conn,
        account: &AccountId,
        id: &str,
        (path, form): ReferencePlace<'_>,
        target: &str,
        refers: bool,
    ) -> Result<()> {
        let Self { name, then } = self;
        let (becomes, of) = form.change(refers);
        let change = format!(
            "WITH changed AS (\
                 UPDATE {name} SET version = version + 1, \
                 edited_ms = floor(extract(epoch FROM clock_timestamp()) * 1000), settings = {becomes} \
                 WHERE account_id = $1 AND id = $2 AND {of} \
                 RETURNING account_id, id, version, settings) \
             {then}"
        );
        let change = diesel::sql_query(change).bind::<Text, _>(account.as_str()).bind::<Text, _>(id);
        change.bind::<Text, _>(target).bind::<Array<Text>, _>(path).execute(conn).await?;
        Ok(())
    }
}
