use diesel::{
    dsl::sql,
    pg::Pg,
    prelude::*,
    sql_types::{Bool, Jsonb, Nullable, Text},
};
use platform_core::{AccountId, Caller, Checks, Code, Error, Object, Result, Timestamp};
use platform_db::containing;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::schema::{assistants, chats};

/// Which chats to list (specification, filtered list of chats); all given conditions must hold.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ChatFilter {
    /// Only this assistant.
    #[serde(alias = "assistantIdentifier")]
    pub assistant_specialization_identifier: Option<String>,
    /// Exactly this title.
    pub name: Option<String>,
    /// A part of the title, in any case.
    pub search: Option<String>,
    /// Archived chats instead of live ones.
    pub archived: Option<bool>,
    /// Answered by this model.
    pub llm: Option<String>,
    /// Made at or after.
    #[serde(alias = "startDate")]
    pub created_after: Option<TimeBound>,
    /// Made at or before.
    #[serde(alias = "endDate")]
    pub created_before: Option<TimeBound>,
    /// At least so many prompt tokens.
    pub min_input_tokens: Option<i64>,
    /// At least so many answer tokens.
    pub min_output_tokens: Option<i64>,
    /// Only this tenant.
    pub tenant_id: Option<String>,
    /// Only this end user; of a chat that belongs to nobody `metadata.subtenantId` says whose it is.
    pub subtenant_id: Option<String>,
    /// Every given leaf is equal, nested; of arrays each given element is there.
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<Object>,
    /// Any of these tags.
    pub tags: Option<Vec<String>>,
    /// Only these assistants: what a session is limited to.
    #[serde(skip)]
    #[schema(ignore)]
    pub among: Option<Vec<String>>,
    /// Only those with assistants of this project.
    #[serde(skip)]
    #[schema(ignore)]
    pub project: Option<String>,
    /// Beside those with assistants in no project, only those of these; `None` = all.
    #[serde(skip)]
    #[schema(ignore)]
    pub within: Option<Vec<String>>,
}

/// A moment as epoch milliseconds or ISO 8601.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, ToSchema)]
#[serde(transparent)]
#[schema(value_type = i64)]
pub struct TimeBound(pub Timestamp);

impl<'de> Deserialize<'de> for TimeBound {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::Number(number) if number.is_i64() => Ok(Self(Timestamp(number.as_i64().unwrap_or_default()))),
            Value::String(text) => Timestamp::from_iso(&text).map(Self).ok_or(()),
            _ => Err(()),
        }
        .map_err(|()| serde::de::Error::custom("expected epoch milliseconds or an ISO 8601 date-time"))
    }
}

/// Query of the chat list of one assistant.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ChatListQuery {
    /// Only this tenant.
    pub tenant_id: Option<String>,
    /// Only this end user.
    pub subtenant_id: Option<String>,
    /// Archived chats instead of live ones.
    pub archived: Option<bool>,
    /// Any of these tags, separated by commas.
    pub tags: Option<String>,
    /// A part of the title.
    pub search: Option<String>,
}

impl ChatListQuery {
    /// The same as a filter over one assistant.
    pub fn filter(self, assistant: String) -> ChatFilter {
        let tags = self.tags.map(|tags| tags.split(',').map(str::trim).map(str::to_owned).collect());
        ChatFilter {
            assistant_specialization_identifier: Some(assistant),
            tenant_id: self.tenant_id,
            subtenant_id: self.subtenant_id,
            archived: self.archived,
            search: self.search,
            tags,
            ..ChatFilter::default()
        }
    }
}

/// Assistants of a project.
#[diesel::dsl::auto_type(no_type_alias)]
pub(crate) fn assistants_of(account: &AccountId, project: &str) -> _ {
    let (account, project): (String, String) = (account.to_string(), project.to_owned());
    assistants::table
        .filter(assistants::account_id.eq(account).and(assistants::project_id.eq(project).assume_not_null()))
        .select(assistants::identifier)
}

/// Assistants of all projects but these.
#[diesel::dsl::auto_type(no_type_alias)]
pub(crate) fn assistants_beyond(account: &AccountId, projects: &[String]) -> _ {
    let (account, projects): (String, Vec<String>) = (account.to_string(), projects.to_vec());
    assistants::table
        .filter(assistants::account_id.eq(account).and(assistants::project_id.is_not_null()))
        .filter(assistants::project_id.ne_all(projects).assume_not_null())
        .select(assistants::identifier)
}

/// Chats with assistants that a caller may know, deleted ones too, by [`crate::Assistant::is_known_to`]; `None` = all.
pub(crate) fn known_to(account: &AccountId, caller: &Caller) -> Option<Condition> {
    let (is_session, role) = (caller.session().is_some(), caller.role());
    if !is_session && role.is_none() {
        return None;
    }
    let access = "settings -> 'accessConfiguration'";
    // The built-in one is in no table: all but sessions know it.
    let among = if is_session { "IN" } else { "NOT IN" };
    let open = if is_session { format!("({access} ->> 'externalAccess')::boolean AND ") } else { "NOT ".to_owned() };
    let known = sql::<Bool>(&format!("chats.assistant {among} (SELECT identifier FROM assistants WHERE account_id = "))
        .bind::<Text, _>(account.to_string())
        .sql(&format!(" AND {open}coalesce(jsonb_array_length({access} -> 'visibilityByRole') = 0"))
        .sql(&format!(" OR {access} -> 'visibilityByRole' @> to_jsonb("))
        .bind::<Nullable<Text>, _>(role)
        .sql("::text), true))");
    Some(Box::new(known))
}

/// Elements of lists in the metadata that a filter asks for: each is held against each that is stored.
const MAX_LISTED_ELEMENTS: usize = 100;

fn listed_elements(value: &Value) -> usize {
    match value {
        Value::Array(elements) => elements.len() + elements.iter().map(listed_elements).sum::<usize>(),
        Value::Object(fields) => fields.values().map(listed_elements).sum(),
        _ => 0,
    }
}

type Condition = Box<dyn BoxableExpression<chats::table, Pg, SqlType = Bool>>;

impl ChatFilter {
    pub(crate) fn check(&self) -> Result<()> {
        let mut checks = Checks::default();
        for (path, value) in [("minInputTokens", self.min_input_tokens), ("minOutputTokens", self.min_output_tokens)] {
            checks.range(path, value.unwrap_or(0), &(0..=(1 << 53) - 1));
        }
        if let Some(metadata) = &self.metadata {
            checks.metadata("metadata", metadata);
            if self.listed_elements() > MAX_LISTED_ELEMENTS {
                let message = format!("metadata: its lists have at most {MAX_LISTED_ELEMENTS} elements together");
                checks.issue("metadata", "length", message);
            }
        }
        checks.count("tags", self.tags.as_ref().map_or(0, Vec::len), 50);
        checks.finish()?;
        match (self.created_after, self.created_before) {
            (Some(after), Some(before)) if after > before => {
                Err(Error::new(Code::INVALID_TIME_RANGE, "createdAfter must not be later than createdBefore."))
            }
            _ => Ok(()),
        }
    }

    /// Elements of lists in the metadata that are asked for.
    pub(crate) fn listed_elements(&self) -> usize {
        self.metadata.iter().flat_map(Object::values).map(listed_elements).sum()
    }

    /// The condition as SQL. Its literals keep the statement from being prepared once for all
    /// values: each gets a plan of its own, with the index that serves it.
    pub(crate) fn condition(&self, caller: &Caller) -> Condition {
        let account = &caller.account;
        let mut condition: Condition = Box::new(
            chats::account_id
                .eq(account.as_str().to_owned())
                .and(chats::archived.eq(self.archived.unwrap_or(false)))
                .and(sql::<Bool>("TRUE")),
        );
        if let Some(assistant) = &self.assistant_specialization_identifier {
            condition = Box::new(condition.and(chats::assistant.eq(assistant.clone())));
        }
        if let Some(among) = &self.among {
            condition = Box::new(condition.and(chats::assistant.eq_any(among.clone())));
        }
        if let Some(project) = &self.project {
            condition = Box::new(condition.and(chats::assistant.eq_any(assistants_of(account, project))));
        }
        if let Some(within) = &self.within {
            condition = Box::new(condition.and(chats::assistant.ne_all(assistants_beyond(account, within))));
        }
        if let Some(known) = known_to(account, caller) {
            condition = Box::new(condition.and(known));
        }
        if let Some(name) = &self.name {
            condition = Box::new(condition.and(chats::name.eq(name.clone())));
        }
        if let Some(search) = &self.search {
            condition = Box::new(condition.and(chats::name.ilike(containing(search))));
        }
        if let Some(llm) = &self.llm {
            condition = Box::new(condition.and(chats::llm.eq(llm.clone()).assume_not_null()));
        }
        if let Some(after) = self.created_after {
            condition = Box::new(condition.and(chats::created_ms.ge(after.0.0)));
        }
        if let Some(before) = self.created_before {
            condition = Box::new(condition.and(chats::created_ms.le(before.0.0)));
        }
        if let Some(least) = self.min_input_tokens {
            condition = Box::new(condition.and(chats::input_tokens.ge(least)));
        }
        if let Some(least) = self.min_output_tokens {
            condition = Box::new(condition.and(chats::output_tokens.ge(least)));
        }
        if let Some(tenant) = &self.tenant_id {
            condition = Box::new(condition.and(chats::tenant_id.eq(tenant.clone()).assume_not_null()));
        }
        if let Some(subtenant) = &self.subtenant_id {
            // The index is over what is noted; it is the owner's, wherever there is one.
            let equal = sql::<Bool>("metadata ->> 'subtenantId' = ").bind::<Text, _>(subtenant.clone());
            let is_theirs = sql::<Bool>("(subtenant_id = ")
                .bind::<Text, _>(subtenant.clone())
                .sql(" OR (tenant_id IS NULL AND subtenant_id IS NULL))");
            condition = Box::new(condition.and(equal).and(is_theirs));
        }
        if let Some(metadata) = self.metadata.as_ref().filter(|metadata| !metadata.is_empty()) {
            let holds =
                sql::<Bool>("metadata <> '{}' AND metadata @> ").bind::<Jsonb, _>(Value::Object(metadata.clone()));
            condition = Box::new(condition.and(holds));
        }
        if let Some(tags) = self.tags.as_ref().filter(|tags| !tags.is_empty()) {
            let any = sql::<Bool>("tags <> '{}'").and(chats::tags.overlaps_with(tags.clone()));
            condition = Box::new(condition.and(any));
        }
        condition
    }
}
