//! `/v1/projects`

use std::sync::Arc;

use platform_access::Kind;
use platform_agents::{AgentFilter, AgentService, ThreadFilter, ThreadService, ThreadState};
use platform_chat::{AssistantFilter, AssistantService, Chat, ChatFilter, ChatList, ChatService};
use platform_core::{Bound, Page, Result};
use platform_environments::{EnvironmentFilter, EnvironmentService};
use platform_http::{Answer, Group, Request, key};
use platform_knowledge::DocumentService;
use platform_projects::{Project, ProjectService};
use platform_tenants::{CostTotals, ProjectCost, UsageService};
use platform_toolservers::{ToolServerFilter, ToolServerService};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::oauth::USER;
use super::{chats::chat_page, tenants::without_hidden};
use crate::module::Module;

/// What the handlers use.
pub(crate) struct Services {
    pub agents: Arc<dyn AgentService>,
    pub assistants: Arc<dyn AssistantService>,
    pub chat: Arc<dyn ChatService>,
    pub documents: Arc<dyn DocumentService>,
    pub environments: Arc<dyn EnvironmentService>,
    pub projects: Arc<dyn ProjectService>,
    pub threads: Arc<dyn ThreadService>,
    pub tool_servers: Arc<dyn ToolServerService>,
    pub usage: Arc<dyn UsageService>,
}

/// Projects, which say themselves who reaches them.
const PROJECT: Kind = Kind::of_account("project");

/// Projects, and what is in them.
pub(crate) fn module(services: Services) -> Module {
    Module { groups: vec![group(Arc::new(services))], ..Module::default() }
}

fn group(services: Arc<Services>) -> Group {
    let mut group = Group::of("projects", "Projects: what belongs together, and who reaches it", services)
        .naming("id", PROJECT)
        .naming("userUID", USER);
    let read = key("projects:read");
    let write = key("projects:write");
    group.get("/v1/projects", read, list).with(spec::list);
    group.post("/v1/projects", write, create).with(spec::create);
    group.get("/v1/projects/{id}", read, get).with(spec::get);
    group.patch("/v1/projects/{id}", write, update).with(spec::update);
    group.delete("/v1/projects/{id}", write, archive).with(spec::archive);
    group.get("/v1/projects/{id}/conversations", read, conversations).with(spec::conversations);
    group.get("/v1/projects/{id}/costs/daily", read, daily_costs).with(spec::daily_costs);
    group.get("/v1/projects/{id}/costs/monthly", read, monthly_costs).with(spec::monthly_costs);
    group.get("/v1/projects/{id}/members", read, members).with(spec::members);
    group.post("/v1/projects/{id}/members", write, set_member).with(spec::set_member);
    group.delete("/v1/projects/{id}/members/{userUID}", write, remove_member).with(spec::remove_member);
    group.get("/v1/projects/{id}/stats", read, stats).with(spec::stats);
    group.get("/v1/projects/{id}/threads", read, threads).with(spec::threads);
    group.build()
}

/// Nothing of a list but how long it is.
const COUNT: Page = Page { limit: 0, offset: 0 };

/// The project that the path names, when the caller may read it.
async fn project(services: &Services, request: &Request) -> Result<Project> {
    services.projects.get(request.caller()?, &request.id("id")).await
}

async fn create(services: Arc<Services>, request: Request) -> Result<Answer> {
    let once = request.once.as_ref();
    Answer::created(&services.projects.create(request.caller()?, request.body().await?, once).await?)
}

async fn list(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (filter, page) = (request.query()?, request.page()?);
    Answer::ok(&services.projects.list(request.caller()?, &filter, page).await?)
}

async fn get(services: Arc<Services>, request: Request) -> Result<Answer> {
    Answer::ok(&project(&services, &request).await?)
}

async fn update(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (caller, id) = (request.caller()?, &request.id("id"));
    Answer::ok(&services.projects.update(caller, id, request.patch().await?).await?)
}

/// The answer of a deletion: the project is still there.
#[derive(Serialize, ToSchema)]
pub(crate) struct Archived {
    success: bool,
    archived: bool,
}

async fn archive(services: Arc<Services>, request: Request) -> Result<Answer> {
    let patch = [("archived".to_owned(), true.into())].into_iter().collect();
    services.projects.update(request.caller()?, &request.id("id"), patch).await?;
    Answer::ok(&Archived { success: true, archived: true })
}

/// What is in a project, and what was spent there.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ProjectStats {
    /// Archived ones, too.
    agents: i64,
    assistants: i64,
    documents: i64,
    threads: i64,
    /// Archived ones, too.
    chats: i64,
    tool_servers: i64,
    environments: i64,
    /// Threads that have not ended.
    active_threads: i64,
    totals: CostTotals,
    last30_days: CostTotals,
}

async fn stats(services: Arc<Services>, request: Request) -> Result<Answer> {
    let caller = request.caller()?;
    let (account, id) = (&caller.account, Some(project(&services, &request).await?.id));
    let threads = async |state: Option<String>| {
        let filter =
            ThreadFilter { project_id: id.clone(), state, omit_content: Some(true), ..ThreadFilter::default() };
        Ok::<_, platform_core::Error>(services.threads.list(account, filter, &[], COUNT).await?.total)
    };
    let active: Vec<&str> =
        ThreadState::ALL.iter().filter(|state| !state.is_terminal()).map(|state| state.as_str()).collect();
    let chats = async |archived: bool| {
        let filter = ChatFilter { project: id.clone(), archived: Some(archived), ..ChatFilter::default() };
        let page = platform_chat::ChatPage { page: COUNT, omit_content: true };
        Ok::<_, platform_core::Error>(services.chat.list(caller, filter, page).await?.total)
    };
    let agents = AgentFilter { project_id: id.clone(), archived: Some(true), ..AgentFilter::default() };
    let assistants = AssistantFilter { project_id: id.clone(), ..AssistantFilter::default() };
    let servers = ToolServerFilter { project_id: id.clone(), ..ToolServerFilter::default() };
    let environments = EnvironmentFilter { project_id: id.clone(), ..EnvironmentFilter::default() };
    let (totals, last30_days) = services.usage.project_totals(account, id.as_deref().unwrap_or_default()).await?;
    Answer::ok(&ProjectStats {
        agents: services.agents.list(account, &agents, COUNT).await?.total,
        assistants: i64::try_from(services.assistants.list(request.caller()?, &assistants).await?.1)
            .unwrap_or(i64::MAX),
        documents: services.documents.count(account, id.as_deref().unwrap_or_default()).await?,
        threads: threads(None).await?,
        chats: chats(false).await? + chats(true).await?,
        tool_servers: services.tool_servers.list(account, &servers, COUNT).await?.total,
        environments: services.environments.list(account, &environments, COUNT).await?.total,
        active_threads: threads(Some(active.join(","))).await?,
        totals,
        last30_days,
    })
}

async fn threads(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (page, filter): (_, ThreadFilter) = (request.page()?, request.query()?);
    let found = project(&services, &request).await;
    // Fields are judged before it matters whose it is.
    let id = found.as_ref().map_or("", |project| project.id.as_str()).to_owned();
    let filter = ThreadFilter { project_id: Some(id), ..filter };
    let listed = services.threads.list(request.account()?, filter, &request.query_names, page).await?;
    found?;
    Answer::ok(&listed)
}

/// Which chats of a project.
#[derive(Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ConversationQuery {
    /// Leave `chatContent` out.
    omit_content: Option<bool>,
    /// Only this assistant.
    assistant_identifier: Option<String>,
    /// Only this tenant.
    tenant_id: Option<String>,
    /// Only this end user.
    subtenant_id: Option<String>,
    /// Any of these tags, separated by commas.
    tags: Option<String>,
}

/// A page of the chats of a project, under both names.
#[derive(Serialize, ToSchema)]
pub(crate) struct Conversations {
    #[serde(flatten)]
    list: ChatList,
    conversations: Vec<Chat>,
}

async fn conversations(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (page, query): (_, ConversationQuery) = (chat_page(&request)?, request.query()?);
    let tags = query.tags.map(|tags| tags.split(',').map(str::trim).map(str::to_owned).collect());
    let filter = ChatFilter {
        project: Some(project(&services, &request).await?.id),
        assistant_specialization_identifier: query.assistant_identifier,
        tenant_id: query.tenant_id,
        subtenant_id: query.subtenant_id,
        tags,
        ..ChatFilter::default()
    };
    let list = services.chat.list(request.caller()?, filter, page).await?;
    let conversations = list.histories.clone();
    Answer::ok(&Conversations { list, conversations })
}

/// Which days.
#[derive(Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct DailyQuery {
    /// The first day, `YYYY-MM-DD`; absent = 29 days before the last.
    start_date: Option<String>,
    /// The last day; absent = today.
    end_date: Option<String>,
    /// Rows for days without activity, too.
    fill: Option<bool>,
    /// Only this tenant.
    tenant_id: Option<String>,
}

/// Which months.
#[derive(Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct MonthlyQuery {
    /// The first month, `YYYY-MM`; absent = 11 months before the last.
    start_month: Option<String>,
    /// The last month; absent = this one.
    end_month: Option<String>,
    /// Rows for months without activity, too.
    fill: Option<bool>,
    /// Only this tenant.
    tenant_id: Option<String>,
}

async fn daily_costs(services: Arc<Services>, request: Request) -> Result<Answer> {
    let DailyQuery { start_date, end_date, fill, tenant_id } = request.query()?;
    let range = (("startDate", start_date.as_deref()), ("endDate", end_date.as_deref()));
    Answer::ok(&costs(&services, &request, false, range, tenant_id.as_deref(), fill == Some(true)).await?)
}

async fn monthly_costs(services: Arc<Services>, request: Request) -> Result<Answer> {
    let MonthlyQuery { start_month, end_month, fill, tenant_id } = request.query()?;
    let range = (("startMonth", start_month.as_deref()), ("endMonth", end_month.as_deref()));
    Answer::ok(&costs(&services, &request, true, range, tenant_id.as_deref(), fill == Some(true)).await?)
}

/// What was spent, with the threads and chats that were made, ascending.
async fn costs(
    services: &Services,
    request: &Request,
    by_month: bool,
    range: (Bound<'_>, Bound<'_>),
    tenant: Option<&str>,
    fill: bool,
) -> Result<Vec<ProjectCost>> {
    let (account, found) = (request.account()?, project(services, request).await);
    // The range is judged before it matters whose it is.
    let id = found.as_ref().map_or("", |project| project.id.as_str()).to_owned();
    let (period, mut costs) = services.usage.project_costs(account, &id, tenant, by_month, range).await?;
    found?;
    for (begins, count) in services.threads.count_in(account, &id, tenant, period).await? {
        costs.entry(begins).or_default().thread_count = count;
    }
    for (begins, count) in services.chat.count_in(account, &id, tenant, period).await? {
        costs.entry(begins).or_default().chat_count = count;
    }
    for begins in period.each().filter(|_| fill) {
        costs.entry(begins).or_default();
    }
    for cost in costs.values_mut() {
        without_hidden(request, &mut cost.by_assistant).await?;
    }
    let named = |(begins, cost)| {
        let (date, month) = period.names(begins);
        ProjectCost { date, month, ..cost }
    };
    Ok(costs.into_iter().map(named).collect())
}

async fn members(services: Arc<Services>, request: Request) -> Result<Answer> {
    Answer::ok(&services.projects.members(request.caller()?, &request.id("id")).await?)
}

async fn set_member(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (caller, id, once) = (request.caller()?, &request.id("id"), request.once.as_ref());
    let (is_new, member) = services.projects.set_member(caller, id, request.body().await?, once).await?;
    Answer::json(if is_new { 201 } else { 200 }, &member)
}

/// It is done.
#[derive(Serialize, ToSchema)]
pub(crate) struct Done {
    success: bool,
}

async fn remove_member(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (caller, id, user) = (request.caller()?, &request.id("id"), &request.id("userUID"));
    services.projects.remove_member(caller, id, user).await?;
    Answer::ok(&Done { success: true })
}

mod spec {
    use platform_agents::{ThreadFilter, ThreadList};
    use platform_projects::{Member, NewMember, NewProject, Project, ProjectFilter, ProjectPage, ProjectPatch};
    use platform_tenants::ProjectCost;

    use super::{Archived, ConversationQuery, Conversations, DailyQuery, Done, MonthlyQuery, ProjectStats};
    use platform_http::Operation;

    pub fn create() -> Operation {
        Operation::new("Make a project; a user who does becomes its owner")
            .body::<NewProject>()
            .requires(&["name", "identifier"])
            .answers::<Project>(201)
    }
    pub fn list() -> Operation {
        Operation::new("List the projects that the caller reaches")
            .query::<ProjectFilter>()
            .paged(10, 100)
            .answers::<ProjectPage>(200)
    }
    pub fn get() -> Operation {
        Operation::new("Read a project").answers::<Project>(200)
    }
    pub fn update() -> Operation {
        Operation::new("Change a project").body::<ProjectPatch>().answers::<Project>(200)
    }
    pub fn archive() -> Operation {
        Operation::new("Archive a project: nothing can be added, what is there keeps working").answers::<Archived>(200)
    }
    pub fn stats() -> Operation {
        Operation::new("Read what is in a project, and what was spent there").answers::<ProjectStats>(200)
    }
    pub fn threads() -> Operation {
        Operation::new("List the threads of a project")
            .query::<ThreadFilter>()
            .without(&["projectId"])
            .paged(10, 100)
            .answers::<ThreadList>(200)
    }
    pub fn conversations() -> Operation {
        Operation::new("List the chats of a project")
            .query::<ConversationQuery>()
            .paged(10, 100)
            .answers::<Conversations>(200)
    }
    pub fn daily_costs() -> Operation {
        Operation::new("Read what was spent in a project by day").query::<DailyQuery>().answers::<Vec<ProjectCost>>(200)
    }
    pub fn monthly_costs() -> Operation {
        Operation::new("Read what was spent in a project by month")
            .query::<MonthlyQuery>()
            .answers::<Vec<ProjectCost>>(200)
    }
    pub fn members() -> Operation {
        Operation::new("List the members of a project").answers::<Vec<Member>>(200)
    }
    pub fn set_member() -> Operation {
        Operation::new("Add a user to a project, or change their role")
            .body::<NewMember>()
            .answers::<Member>(201)
            .answers::<Member>(200)
    }
    pub fn remove_member() -> Operation {
        Operation::new("Take a user out of a project").answers::<Done>(200)
    }
}
