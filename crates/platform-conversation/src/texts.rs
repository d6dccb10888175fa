//! Texts of a conversation within a statement of whoever owns it.

use diesel::{
    AppearsOnTable, QueryResult,
    expression::{Expression, SelectableExpression, ValidGrouping, is_aggregate},
    pg::Pg,
    query_builder::{AstPass, QueryFragment, QueryId},
    sql_types::{Array, Nullable, Text},
};
use platform_core::{AccountId, MAX_LISTED};

/// Texts of a conversation as one expression in a statement of whoever owns it, so that both are of one moment.
#[derive(Debug, Clone, Copy)]
pub struct Texts<'a> {
    what: &'static str,
    order: &'static str,
    account: &'a str,
    conversation: &'a str,
}

impl<'a> Texts<'a> {
    /// All messages, oldest first.
    pub fn messages(account: &'a AccountId, conversation: &'a str) -> Self {
        Self::of("ARRAY(SELECT body::text FROM messages", " ORDER BY position)", account, conversation)
    }

    /// What they took, in the same order.
    pub fn accountings(account: &'a AccountId, conversation: &'a str) -> Self {
        Self::of("ARRAY(SELECT accounting::text FROM messages", " ORDER BY position)", account, conversation)
    }

    /// The same, and nothing when they are more than a list holds.
    pub fn unless_large(self) -> UnlessLarge<'a> {
        UnlessLarge(self)
    }

    /// The messages that watchers see.
    pub fn shown(account: &'a AccountId, conversation: &'a str) -> Self {
        let order = " AND role IN ('user', 'assistant', 'tool') ORDER BY position)";
        Self::of("ARRAY(SELECT body::text FROM messages", order, account, conversation)
    }

    /// The messages that wait.
    pub fn queued(account: &'a AccountId, conversation: &'a str) -> Self {
        Self::of("ARRAY(SELECT body::text FROM queued_messages", " ORDER BY position)", account, conversation)
    }

    fn of(what: &'static str, order: &'static str, account: &'a AccountId, conversation: &'a str) -> Self {
        Self { what, order, account: account.as_str(), conversation }
    }
}

impl Expression for Texts<'_> {
    type SqlType = Array<Nullable<Text>>;
}

impl QueryFragment<Pg> for Texts<'_> {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Pg>) -> QueryResult<()> {
        out.push_sql(self.what);
        out.push_sql(" WHERE account_id = ");
        out.push_bind_param::<Text, _>(self.account)?;
        out.push_sql(" AND conversation = ");
        out.push_bind_param::<Text, _>(self.conversation)?;
        out.push_sql(self.order);
        Ok(())
    }
}

/// Texts of a conversation whose messages are no more than a list holds.
#[derive(Debug, Clone, Copy)]
pub struct UnlessLarge<'a>(Texts<'a>);

impl Expression for UnlessLarge<'_> {
    type SqlType = Nullable<Array<Nullable<Text>>>;
}

impl QueryFragment<Pg> for UnlessLarge<'_> {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Pg>) -> QueryResult<()> {
        out.push_sql("CASE WHEN (SELECT coalesce(sum(octet_length(body::text)), 0) FROM messages WHERE account_id = ");
        out.push_bind_param::<Text, _>(self.0.account)?;
        out.push_sql(" AND conversation = ");
        out.push_bind_param::<Text, _>(self.0.conversation)?;
        out.push_sql(&format!(") <= {MAX_LISTED} THEN "));
        self.0.walk_ast(out.reborrow())?;
        out.push_sql(" END");
        Ok(())
    }
}

macro_rules! selectable {
    ($($texts:ty),*) => {$(
        /// Prepared once per connection, by its text.
        impl QueryId for $texts {
            type QueryId = ();
            const HAS_STATIC_QUERY_ID: bool = false;
        }
        impl<S> SelectableExpression<S> for $texts {}
        impl<S> AppearsOnTable<S> for $texts {}
        impl ValidGrouping<()> for $texts {
            type IsAggregate = is_aggregate::Never;
        }
    )*};
}
selectable!(Texts<'_>, UnlessLarge<'_>);
