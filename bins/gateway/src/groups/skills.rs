//! `/v1/skills`, and the same at `/v1/documents/skills`

use std::sync::Arc;

use platform_core::{Error, Page, Result};
use platform_http::{Answer, Group, Request, key};
use platform_knowledge::{
    FOLDER, Install, NewSkill, PgKnowledge, SKILL, SkillFiles, SkillFilter, SkillResources, SkillService,
};
use serde::Deserialize;
use utoipa::ToSchema;

use super::documents::admit;
use crate::module::Module;

/// An archive, or the files of a skill: a little more than what is unpacked of it.
const MAX_UPLOAD: usize = 9 << 20;
/// JSON of a skill (contract 00 §8).
const MAX_BYTES: usize = 8 << 20;

/// Skills.
pub(crate) fn module(knowledge: &Arc<PgKnowledge>) -> Module {
    Module {
        groups: vec![group(Arc::clone(knowledge))],
        resources: vec![(SKILL, Arc::new(SkillResources(Arc::clone(knowledge))))],
        ..Module::default()
    }
}

fn group(services: Arc<PgKnowledge>) -> Group {
    let mut group = Group::of("skills", "Skills: instructions that models load when they need them", services)
        .naming("id", SKILL)
        .referring(&[("parentFolderId", FOLDER)])
        .also_at("/v1/skills", "/v1/documents/skills");
    let read = key("skills:read");
    let write = key("skills:write");
    group.get("/v1/skills", read, list).with(spec::list);
    group.post("/v1/skills/import", write, import).with(spec::import).uploading(MAX_UPLOAD);
    group.post("/v1/skills/scaffold", write, scaffold).with(spec::scaffold).at_most(MAX_BYTES);
    group.get("/v1/skills/tags", read, tags).with(spec::tags);
    group.get("/v1/skills/{id}/archive", read, archive).with(spec::archive);
    group.post("/v1/skills/{id}/install", write, install).with(spec::install);
    group.delete("/v1/skills/{id}/install", write, uninstall).with(spec::uninstall).using();
    group.get("/v1/skills/{id}/tree", read, tree).with(spec::tree);
    group.build()
}

/// The page that is asked for, numbered from 1; `None` = all.
fn page(request: &Request) -> Result<Option<Page>> {
    let number = |name: &str| {
        let Some(value) = request.query.get(name) else { return Ok(None) };
        value.parse::<i64>().ok().filter(|number| *number >= 1).map(Some).ok_or_else(|| {
            let message = format!("{name} must be a whole number of 1 or more.");
            Error::new(platform_core::Code::INVALID_PAGINATION, message).with("parameter", name)
        })
    };
    let (page, limit) = (number("page")?.unwrap_or(1), number("limit")?.map(|limit| limit.min(200)));
    Ok(limit.map(|limit| Page { limit, offset: (page - 1).saturating_mul(limit) }))
}

async fn filter(request: &Request) -> Result<SkillFilter> {
    let filter: SkillFilter = request.query()?;
    Ok(SkillFilter { within: request.within().await?, ..filter })
}

async fn list(knowledge: Arc<PgKnowledge>, request: Request) -> Result<Answer> {
    let (page, filter) = (page(&request)?, filter(&request).await?);
    Answer::ok(&SkillService::list(&*knowledge, request.account()?, &filter, page).await?)
}

async fn tags(knowledge: Arc<PgKnowledge>, request: Request) -> Result<Answer> {
    let filter = filter(&request).await?;
    Answer::ok(&SkillService::tags(&*knowledge, request.account()?, &filter).await?)
}

async fn scaffold(knowledge: Arc<PgKnowledge>, request: Request) -> Result<Answer> {
    let new: NewSkill = request.body().await?;
    admit(&knowledge, &request, new.parent_folder_id.as_deref()).await?;
    Answer::created(&knowledge.scaffold(request.caller()?, new, request.once.as_ref()).await?)
}

/// Where a skill is imported to.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Destination {
    project_id: Option<String>,
    parent_folder_id: Option<String>,
}

async fn import(knowledge: Arc<PgKnowledge>, request: Request) -> Result<Answer> {
    let Destination { project_id, parent_folder_id } = request.form().await?;
    admit(&knowledge, &request, parent_folder_id.as_deref()).await?;
    let files: Vec<_> = request.parts.iter().filter(|part| part.field == "files").collect();
    let files = if files.is_empty() {
        SkillFiles::Zip(request.file("file")?.bytes().await?)
    } else {
        let mut read = Vec::with_capacity(files.len());
        for part in files {
            read.push((part.file_name.clone(), part.bytes().await?));
        }
        SkillFiles::Files(read)
    };
    let place = NewSkill { name: String::new(), description: None, tags: Vec::new(), project_id, parent_folder_id };
    Answer::created(&knowledge.import(request.caller()?, files, place, request.once.as_ref()).await?)
}

/// Which skill is meant.
#[derive(Default, Deserialize, ToSchema)]
#[serde(default)]
struct TypeQuery {
    /// `document` or `folder`; found by itself.
    r#type: Option<String>,
}

async fn tree(knowledge: Arc<PgKnowledge>, request: Request) -> Result<Answer> {
    let (account, TypeQuery { r#type }) = (request.account()?, request.query()?);
    Answer::ok(&SkillService::tree(&*knowledge, account, &request.id("id"), r#type.as_deref()).await?)
}

async fn archive(knowledge: Arc<PgKnowledge>, request: Request) -> Result<Answer> {
    let (name, archive) = knowledge.archive(request.account()?, &request.id("id")).await?;
    Ok(Answer::download("application/zip", &format!("{name}.zip"), archive.into()))
}

async fn install(knowledge: Arc<PgKnowledge>, request: Request) -> Result<Answer> {
    let (install, TypeQuery { r#type }): (Install, _) = (request.body().await?, request.query()?);
    Answer::ok(&knowledge.install(request.caller()?, &request.id("id"), r#type.as_deref(), install).await?)
}

/// Where a copy is that is taken away.
#[derive(Default, Deserialize, ToSchema)]
#[serde(default)]
struct ScopeQuery {
    /// `project` (default) or `global`.
    scope: Option<String>,
}

async fn uninstall(knowledge: Arc<PgKnowledge>, request: Request) -> Result<Answer> {
    let ScopeQuery { scope } = request.query()?;
    knowledge.uninstall(request.caller()?, &request.id("id"), scope.as_deref()).await?;
    Ok(Answer::empty(204))
}

mod spec {
    use platform_http::Operation;
    use platform_knowledge::{ImportedSkill, Install, NewSkill, Scaffold, SkillFilter, SkillList, SkillTree};
    use utoipa::ToSchema;

    use super::{ScopeQuery, TypeQuery};

    /// What a list may be asked for.
    #[derive(ToSchema)]
    #[expect(dead_code, reason = "described for the document; read as the filter and the page")]
    #[schema(rename_all = "camelCase")]
    pub struct SkillListQuery {
        /// Text in name or description.
        search: Option<String>,
        /// With one of these tags, separated by commas.
        tags: Option<String>,
        /// Of this project.
        project_id: Option<String>,
        /// From 1.
        page: Option<i64>,
        /// At most 200; absent: all.
        limit: Option<i64>,
    }

    /// Files of a skill.
    #[derive(ToSchema)]
    #[expect(dead_code, reason = "described for the document; the files are read as parts")]
    #[schema(rename_all = "camelCase")]
    pub struct SkillUpload {
        /// A ZIP archive with a SKILL.md at its root, or in the one folder that it has there.
        #[schema(value_type = String, format = Binary, required = false)]
        file: (),
        /// Or the files themselves, their paths as names.
        #[schema(value_type = Vec<String>, required = false)]
        files: (),
        /// Project it belongs to.
        #[schema(nullable = false)]
        project_id: Option<String>,
        /// Folder it lies in.
        #[schema(nullable = false)]
        parent_folder_id: Option<String>,
    }

    pub fn list() -> Operation {
        Operation::new("List skills").query::<SkillListQuery>().answers::<SkillList>(200)
    }
    pub fn tags() -> Operation {
        Operation::new("List the tags of skills")
            .query::<SkillFilter>()
            .without(&["search", "tags"])
            .answers::<Vec<String>>(200)
    }
    pub fn scaffold() -> Operation {
        Operation::new("Begin a skill: a folder with a document SKILL").body::<NewSkill>().answers::<Scaffold>(201)
    }
    pub fn import() -> Operation {
        Operation::new("Make a skill of an archive or of files").form::<SkillUpload>().answers::<ImportedSkill>(201)
    }
    pub fn tree() -> Operation {
        Operation::new("Read a skill with everything in it").query::<TypeQuery>().answers::<SkillTree>(200)
    }
    pub fn archive() -> Operation {
        Operation::new("Download a skill as a ZIP archive").answers_text(200, "application/zip")
    }
    pub fn install() -> Operation {
        Operation::new("Read a skill to install it, and count that")
            .query::<TypeQuery>()
            .body::<Install>()
            .answers::<SkillTree>(200)
    }
    pub fn uninstall() -> Operation {
        Operation::new("Take an installed copy out of the count").query::<ScopeQuery>().answers_empty(204)
    }
}
