//! Skills: documents and folders whose text a model loads when it needs it (contract 14).

mod archive;
mod files;
mod frontmatter;
mod model;
mod repository;
mod service;
mod tools;

pub(crate) use archive::unpack;
pub use model::{
    ImportedSkill, Install, NewSkill, Scaffold, Skill, SkillFile, SkillFiles, SkillFilter, SkillList, SkillRef,
    SkillTree,
};
pub(crate) use repository::{check_in, forget};
pub use service::{SkillResources, SkillService};
pub use tools::skill_tools;
