use diesel::{pg::Pg, prelude::*};
use diesel_async::RunQueryDsl;
use platform_access::{KnownProject, KnownProjects, ProjectRole, Visibility};
use platform_core::{AccountId, Page, Result, Timestamp};
use platform_db::Conn;

use crate::{
    model::{Project, ProjectPatch},
    schema::{project_members, projects},
};

#[derive(Queryable, Selectable, Insertable, Clone)]
#[diesel(table_name = projects)]
pub(crate) struct ProjectRow {
    pub id: String,
    pub account_id: String,
    pub identifier: String,
    pub name: String,
    pub description: String,
    pub image_url: String,
    pub visibility: String,
    pub archived: bool,
    pub created_by: String,
    pub created_ms: i64,
    pub edited_ms: i64,
}

impl ProjectRow {
    pub fn patchable(&self) -> ProjectPatch {
        ProjectPatch {
            name: self.name.clone(),
            description: self.description.clone(),
            image_url: self.image_url.clone(),
            visibility: Visibility::of(&self.visibility),
            archived: self.archived,
        }
    }
}

impl From<ProjectRow> for Project {
    fn from(row: ProjectRow) -> Self {
        Self {
            id: row.id,
            client_uid: row.account_id,
            created_by_user_uid: row.created_by,
            name: row.name,
            identifier: row.identifier,
            description: row.description,
            image_url: row.image_url,
            visibility: Visibility::of(&row.visibility),
            creation_timestamp_ms: Timestamp(row.created_ms),
            last_edit_timestamp_ms: Timestamp(row.edited_ms),
            archived: row.archived,
        }
    }
}

/// `false` when the identifier is there already.
pub(crate) async fn insert(conn: &mut Conn, project: &ProjectRow) -> Result<bool> {
    let inserted = diesel::insert_into(projects::table).values(project).on_conflict_do_nothing().execute(conn).await?;
    Ok(inserted == 1)
}

/// By id, or else by identifier: no identifier hides an id.
pub(crate) async fn find(conn: &Conn, account: &AccountId, name: &str) -> Result<Option<ProjectRow>> {
    let mut conn = conn;
    let project = projects::table
        .filter(projects::account_id.eq(account.as_str()))
        .filter(projects::id.eq(name).or(projects::identifier.eq(name)))
        .order(projects::id.eq(name).desc())
        .select(ProjectRow::as_select());
    Ok(project.first(&mut conn).await.optional()?)
}

pub(crate) async fn lock(conn: &mut Conn, account: &AccountId, id: &str) -> Result<Option<ProjectRow>> {
    let project = projects::table.filter(projects::account_id.eq(account.as_str()).and(projects::id.eq(id)));
    Ok(project.for_no_key_update().select(ProjectRow::as_select()).first(conn).await.optional()?)
}

/// A page of those that are `readable`, `None` = all; and how many there are.
pub(crate) async fn list(
    conn: &Conn,
    account: &AccountId,
    archived: bool,
    readable: Option<&[String]>,
    page: Page,
) -> Result<(Vec<ProjectRow>, i64)> {
    let of = || {
        let mut of = projects::table.filter(projects::account_id.eq(account.as_str())).into_boxed::<Pg>();
        if !archived {
            of = of.filter(projects::archived.eq(false));
        }
        if let Some(readable) = readable {
            of = of.filter(projects::id.eq_any(readable));
        }
        of
    };
    let (mut first, mut second) = (conn, conn);
    let rows = of()
        .order((projects::created_ms.desc(), projects::id.desc()))
        .limit(page.limit)
        .offset(page.offset)
        .select(ProjectRow::as_select());
    let (rows, total) = futures_util::try_join!(rows.load(&mut first), of().count().get_result(&mut second))?;
    Ok((rows, total))
}

pub(crate) async fn update(
    conn: &mut Conn,
    account: &AccountId,
    id: &str,
    to: &ProjectPatch,
    now: Timestamp,
) -> Result<ProjectRow> {
    let project = projects::table.filter(projects::account_id.eq(account.as_str()).and(projects::id.eq(id)));
    Ok(diesel::update(project)
        .set((
            projects::name.eq(&to.name),
            projects::description.eq(&to.description),
            projects::image_url.eq(&to.image_url),
            projects::visibility.eq(to.visibility.as_str()),
            projects::archived.eq(to.archived),
            projects::edited_ms.eq(now.0),
        ))
        .returning(ProjectRow::as_returning())
        .get_result(conn)
        .await?)
}

/// What decides about access in an account.
pub(crate) async fn known(conn: &Conn, account: &AccountId) -> Result<KnownProjects> {
    let mut conn = conn;
    let projects: Vec<(String, String, String, bool)> = projects::table
        .filter(projects::account_id.eq(account.as_str()))
        .select((projects::id, projects::identifier, projects::visibility, projects::archived))
        .load(&mut conn)
        .await?;
    let members: Vec<(String, String, String)> = project_members::table
        .filter(project_members::account_id.eq(account.as_str()))
        .select((project_members::user_id, project_members::project_id, project_members::role))
        .load(&mut conn)
        .await?;
    let mut known = KnownProjects::default();
    for (id, identifier, visibility, archived) in projects {
        known.projects.insert(id, KnownProject { identifier, visibility: Visibility::of(&visibility), archived });
    }
    for (user, project, role) in members {
        known.members.entry(user).or_default().insert(project, ProjectRole::of(&role));
    }
    Ok(known)
}

/// User, role and since when, the oldest member first.
pub(crate) async fn members(
    conn: &Conn,
    account: &AccountId,
    project: &str,
) -> Result<Vec<(String, ProjectRole, Timestamp)>> {
    let mut conn = conn;
    let rows: Vec<(String, String, i64)> = project_members::table
        .filter(project_members::account_id.eq(account.as_str()).and(project_members::project_id.eq(project)))
        .order((project_members::added_ms, project_members::user_id))
        .select((project_members::user_id, project_members::role, project_members::added_ms))
        .load(&mut conn)
        .await?;
    Ok(rows.into_iter().map(|(user, role, added)| (user, ProjectRole::of(&role), Timestamp(added))).collect())
}

/// Gives a user a role; since when they belong to the project.
pub(crate) async fn set_member(
    conn: &mut Conn,
    account: &AccountId,
    project: &str,
    user: &str,
    role: ProjectRole,
    now: Timestamp,
) -> Result<Timestamp> {
    let added: i64 = diesel::insert_into(project_members::table)
        .values((
            project_members::account_id.eq(account.as_str()),
            project_members::project_id.eq(project),
            project_members::user_id.eq(user),
            project_members::role.eq(role.as_str()),
            project_members::added_ms.eq(now.0),
        ))
        .on_conflict((project_members::account_id, project_members::project_id, project_members::user_id))
        .do_update()
        .set(project_members::role.eq(role.as_str()))
        .returning(project_members::added_ms)
        .get_result(conn)
        .await?;
    Ok(Timestamp(added))
}

pub(crate) async fn remove_member(conn: &mut Conn, account: &AccountId, project: &str, user: &str) -> Result<()> {
    let member = project_members::table
        .filter(project_members::account_id.eq(account.as_str()).and(project_members::project_id.eq(project)))
        .filter(project_members::user_id.eq(user));
    diesel::delete(member).execute(conn).await?;
    Ok(())
}
