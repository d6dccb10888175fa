//! A thread as its table has it.

use diesel::{
    dsl::sql,
    expression::SqlLiteral,
    prelude::*,
    sql_types::{Bool, Nullable, Text},
};
use serde_json::Value;

use crate::schema::threads;

macro_rules! names_address {
    () => {
        "(threads.facts ->> 'callbackUrl' IS NOT NULL OR EXISTS (SELECT FROM agents
            WHERE agents.account_id = threads.account_id AND agents.id = threads.agent_id
                AND agents.settings ->> 'webhookUrl' IS NOT NULL))"
    };
}

pub(super) use names_address;

#[derive(Queryable, Selectable, Clone)]
#[diesel(table_name = threads)]
pub(super) struct ThreadRow {
    pub account_id: String,
    pub id: String,
    pub agent_id: String,
    #[diesel(embed)]
    pub of_agent: OfAgent,
    pub state: String,
    pub finish_reason: Option<String>,
    pub stop_reason: Option<String>,
    pub name: Option<String>,
    pub user_uid: String,
    pub tenant_id: Option<String>,
    pub subtenant_id: Option<String>,
    pub api_source: Option<String>,
    pub metadata: Value,
    pub tags: Vec<String>,
    pub provider: Option<String>,
    pub llm: Option<String>,
    pub usage: Option<String>,
    pub secondary: Option<Value>,
    pub total_tokens: i64,
    pub open_calls: Option<String>,
    pub guardrails: Option<String>,
    pub compactions: Option<String>,
    pub revision: i64,
    pub message_count: i32,
    pub turn_start: i32,
    pub changes: Value,
    pub facts: Value,
    pub started_ms: Option<i64>,
    pub finished_ms: Option<i64>,
    pub duration_ms: i64,
    pub created_ms: i64,
    pub edited_ms: i64,
}

/// What a thread has from its agent, as that is now.
#[derive(Queryable, Selectable, Clone)]
#[diesel(table_name = threads)]
pub(super) struct OfAgent {
    #[diesel(select_expression = sql::<Nullable<Text>>(PROJECT))]
    #[diesel(select_expression_type = SqlLiteral<Nullable<Text>>)]
    pub project_id: Option<String>,
    #[diesel(select_expression = sql::<Nullable<Text>>(ENVIRONMENT))]
    #[diesel(select_expression_type = SqlLiteral<Nullable<Text>>)]
    pub environment_id: Option<String>,
    #[diesel(select_expression = sql::<Bool>(NAMES_ADDRESS))]
    #[diesel(select_expression_type = SqlLiteral<Bool>)]
    pub names_address: bool,
}

/// The project of the thread's agent.
pub(super) const PROJECT: &str = "(SELECT project_id FROM agents
    WHERE agents.account_id = threads.account_id AND agents.id = threads.agent_id)";
/// The environment that the thread's agent works in.
const ENVIRONMENT: &str = "(SELECT settings ->> 'environmentId' FROM agents
    WHERE agents.account_id = threads.account_id AND agents.id = threads.agent_id)";
/// Whether it or its agent names an address that its events go to.
const NAMES_ADDRESS: &str = names_address!();

#[diesel::dsl::auto_type(no_type_alias)]
pub(super) fn by_id<'a>(account: &'a str, id: &'a str) -> _ {
    threads::table.filter(threads::account_id.eq(account)).filter(threads::id.eq(id))
}
