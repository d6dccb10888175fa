//! Who refers to documents and folders.

use diesel::prelude::*;
use diesel_async::RunQueryDsl;
use platform_access::{RecordRef, Referrers, users_in};
use platform_core::{AccountId, Checks, Error, Result};
use platform_db::Conn;

use crate::{
    code,
    document::{Attachment, UsedBy, UsedByAgent, UsedByAssistant},
    folder::repository as folder_repository,
    kinds::{DOCUMENT, FOLDER, SKILL},
    schema::{documents, folders},
    skill::{self, SkillRef},
};

/// Locks documents and folders that a record is to refer to, before that record is locked, as whoever deletes them does.
pub async fn hold_in(conn: &mut Conn, account: &AccountId, documents: &[String], folders: &[String]) -> Result<()> {
    if !documents.is_empty() {
        known_documents(conn, account, documents).await?;
    }
    if !folders.is_empty() {
        known_folders(conn, account, folders).await?;
    }
    Ok(())
}

/// Stores to which documents and folders a record refers, in the transaction that stores it. `DOCUMENT_NOT_FOUND` or
/// `FOLDER_NOT_FOUND` for what is not there, `INVALID_SKILLS` for what is no skill.
pub async fn use_in(
    conn: &mut Conn,
    account: &AccountId,
    user: RecordRef<'_>,
    documents: &[String],
    folders: &[String],
    skills: &[SkillRef],
) -> Result<()> {
    let known = known_documents(conn, account, documents).await?;
    let missing = documents.iter().filter(|id| !known.contains(id));
    Error::check_none_missing(code::DOCUMENT_NOT_FOUND, "document", missing)?;
    platform_access::use_in(conn, account, user, DOCUMENT, &known).await?;
    let known = known_folders(conn, account, folders).await?;
    let missing = folders.iter().filter(|id| !known.contains(id));
    Error::check_none_missing(code::FOLDER_NOT_FOUND, "folder", missing)?;
    platform_access::use_in(conn, account, user, FOLDER, &known).await?;
    skill::check_in(conn, account, skills).await?;
    let skills: Vec<String> = skills.iter().map(|skill| skill.id.clone()).collect();
    platform_access::use_in(conn, account, user, SKILL, &skills).await
}

/// Which of these documents are there; they stay until the transaction ends.
pub(crate) async fn known_documents(conn: &mut Conn, account: &AccountId, ids: &[String]) -> Result<Vec<String>> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let known = documents::table
        .filter(documents::account_id.eq(account.as_str()).and(documents::id.eq_any(ids)))
        .order(documents::id)
        .select(documents::id)
        .for_key_share();
    Ok(known.load(conn).await?)
}

/// The same of folders.
pub(crate) async fn known_folders(conn: &mut Conn, account: &AccountId, ids: &[String]) -> Result<Vec<String>> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let known = folders::table
        .filter(folders::account_id.eq(account.as_str()).and(folders::id.eq_any(ids)))
        .order(folders::id)
        .select(folders::id)
        .for_key_share();
    Ok(known.load(conn).await?)
}

impl Attachment {
    /// Refuses a kind that nothing can be attached to.
    pub(crate) fn check(&mut self) -> Result<()> {
        self.target_type.make_ascii_lowercase();
        let mut checks = Checks::default();
        if !["agent", "assistant", "environment"].contains(&self.target_type.as_str()) {
            checks.issue("targetType", "enum", "targetType must be agent, assistant or environment");
        }
        checks.finish()
    }
}

/// Attaches what is held in this transaction to a record, or takes it from there; id of the record.
pub(crate) async fn attach_in(
    conn: &mut Conn,
    account: &AccountId,
    referrers: &Referrers,
    target: RecordRef<'_>,
    to: &Attachment,
    attach: bool,
) -> Result<String> {
    referrers.set_in(conn, account, (&to.target_type, &to.target_id), target, attach).await
}

/// Who uses a document: by itself, or by a folder that it lies in.
pub(crate) async fn used_by(
    conn: &mut Conn,
    account: &AccountId,
    referrers: &Referrers,
    document: &str,
    folder: Option<&str>,
) -> Result<UsedBy> {
    let mut used: Vec<(String, String, &'static str)> = Vec::new();
    let mut note = |users: Vec<(String, String)>, via| {
        for (kind, id) in users {
            if !used.iter().any(|(known_kind, known, _)| *known_kind == kind && *known == id) {
                used.push((kind, id, via));
            }
        }
    };
    note(users_in(conn, account, (DOCUMENT, document)).await?, "document");
    note(users_in(conn, account, (SKILL, document)).await?, "skill");
    if let Some(folder) = folder {
        for above in folder_repository::above(conn, account, folder).await? {
            note(users_in(conn, account, (FOLDER, &above)).await?, "folder");
            note(users_in(conn, account, (SKILL, &above)).await?, "skill");
        }
    }
    let mut found = UsedBy::default();
    for (kind, id, via) in used {
        let Some((identifier, name)) = referrers.describe_in(conn, account, (&kind, &id)).await? else { continue };
        let via = via.to_owned();
        match kind.as_str() {
            "assistant" => found.assistants.push(UsedByAssistant { id, identifier, name, via }),
            "agent" => found.agents.push(UsedByAgent { id, name, via }),
            _ => found.environments.push(UsedByAgent { id, name, via }),
        }
    }
    Ok(found)
}
