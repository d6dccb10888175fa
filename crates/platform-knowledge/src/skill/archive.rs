//! Skills as archives: packed for whoever downloads one, unpacked in a child process.

use std::{
    collections::HashSet,
    io::{Cursor, Read, Write},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use platform_core::{Error, Result};
use serde::{Deserialize, Serialize};
use zip::{CompressionMethod, ZipArchive, ZipWriter, write::SimpleFileOptions};

use super::model::SkillFile;

/// Files of a skill, and bytes of them together (contract 14).
pub(super) const MAX_FILES: usize = 500;
pub(super) const MAX_BYTES: usize = 8 << 20;

/// What is in an archive, or why it is not taken.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Unpacked {
    /// By their paths.
    Files(Vec<(String, FileContent)>),
    TooLarge,
    Refused(String),
}

/// What is in a file of a skill.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FileContent {
    Text(String),
    /// Bytes that are no text, in base64.
    Base64(String),
}

impl FileContent {
    pub fn of(bytes: Vec<u8>) -> Self {
        match String::from_utf8(bytes) {
            Ok(text) if !text.contains('\0') => Self::Text(text),
            Ok(text) => Self::Base64(STANDARD.encode(text)),
            Err(error) => Self::Base64(STANDARD.encode(error.as_bytes())),
        }
    }
}

/// Unpacks an archive; to be run in a child process.
pub(crate) fn unpack(bytes: &[u8]) -> Vec<u8> {
    let unpacked =
        read(bytes).unwrap_or_else(|error| Unpacked::Refused(format!("the archive cannot be read: {error}")));
    serde_json::to_vec(&unpacked).expect("answers are JSON")
}

fn read(bytes: &[u8]) -> zip::result::ZipResult<Unpacked> {
    let mut archive = ZipArchive::new(Cursor::new(bytes))?;
    if archive.len() > 2 * MAX_FILES {
        return Ok(Unpacked::TooLarge);
    }
    let (mut files, mut size) = (Vec::new(), 0);
    for at in 0..archive.len() {
        let mut entry = archive.by_index(at)?;
        let path = entry.name()?.into_owned();
        if entry.is_symlink() {
            return Ok(Unpacked::Refused(format!("`{path}` is a link")));
        }
        if path.starts_with('/') || path.split('/').any(|part| part == "..") {
            return Ok(Unpacked::Refused(format!("`{path}` leads out of the skill")));
        }
        if entry.is_dir() || is_added(&path) {
            continue;
        }
        let mut content = Vec::new();
        entry.by_ref().take((MAX_BYTES - size + 1) as u64).read_to_end(&mut content)?;
        size += content.len();
        if size > MAX_BYTES || files.len() >= MAX_FILES {
            return Ok(Unpacked::TooLarge);
        }
        files.push((path, FileContent::of(content)));
    }
    Ok(Unpacked::Files(files))
}

/// Whether a system added a file by itself.
fn is_added(path: &str) -> bool {
    path.split('/').any(|part| part == "__MACOSX" || part == ".DS_Store")
}

/// Files of a skill by their paths within it.
#[derive(Debug)]
pub(super) struct Placed {
    pub files: Vec<(String, FileContent)>,
    /// The folder that all lay in.
    pub folder: Option<String>,
}

/// Puts files where they are in a skill: without the folder that all lie in, without what systems add. An error says
/// which path is not taken.
pub(super) fn placed(files: Vec<(String, FileContent)>) -> std::result::Result<Placed, String> {
    let mut kept: Vec<(String, FileContent)> = files.into_iter().filter(|(path, _)| !is_added(path)).collect();
    for (path, _) in &mut kept {
        while path.starts_with("./") {
            path.drain(..2);
        }
    }
    for (path, _) in &kept {
        let parts: Vec<&str> = path.split('/').collect();
        let is_bad = |part: &&str| part.is_empty() || *part == "." || *part == ".." || part.contains(['\\', '\0', ':']);
        if parts.iter().any(is_bad) || parts.len() > 16 || parts.iter().any(|part| part.chars().count() > 200) {
            return Err(format!("`{path}` is no path within the skill"));
        }
    }
    let is_at_root = |path: &str| path.eq_ignore_ascii_case("SKILL.md");
    let mut folder = None;
    if !kept.iter().any(|(path, _)| is_at_root(path)) {
        let root = kept.iter().find_map(|(path, _)| {
            let (root, rest) = path.split_once('/')?;
            is_at_root(rest).then(|| format!("{root}/"))
        });
        match root {
            Some(root) if kept.iter().all(|(path, _)| path.starts_with(&root)) => {
                for (path, _) in &mut kept {
                    path.drain(..root.len());
                }
                folder = Some(root.trim_end_matches('/').to_owned());
            }
            _ => return Err("there is no SKILL.md at its root".to_owned()),
        }
    }
    let mut seen = HashSet::new();
    match kept.iter().find(|(path, _)| !seen.insert(path.to_lowercase())) {
        Some((path, _)) => Err(format!("`{path}` is there twice")),
        None => Ok(Placed { files: kept, folder }),
    }
}

/// Packs files; a script that names its interpreter can be run where it is unpacked.
pub(super) fn pack(files: &[SkillFile]) -> Result<Vec<u8>> {
    let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default().compression_method(CompressionMethod::Deflated);
    for file in files {
        let mode = if file.content.starts_with("#!") { 0o755 } else { 0o644 };
        archive.start_file(file.path.as_str(), options.unix_permissions(mode)).map_err(Error::internal)?;
        let written = match file.encoding {
            None => archive.write_all(file.content.as_bytes()),
            Some(_) => archive.write_all(&STANDARD.decode(&file.content).map_err(Error::internal)?),
        };
        written.map_err(Error::internal)?;
    }
    Ok(archive.finish().map_err(Error::internal)?.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;

    type Zip = ZipWriter<Cursor<Vec<u8>>>;

    fn files(paths: &[&str]) -> Vec<(String, FileContent)> {
        paths.iter().map(|path| ((*path).to_owned(), FileContent::Text(String::new()))).collect()
    }

    #[test]
    fn what_is_packed_is_unpacked_and_no_path_leaves_the_skill() {
        let file = |path: &str| SkillFile {
            path: path.to_owned(),
            content: "text".to_owned(),
            encoding: None,
            file_type: "md".to_owned(),
        };
        let logo = SkillFile { content: "/wA=".to_owned(), encoding: Some("base64"), ..file("logo.png") };
        let script = SkillFile { content: "#!/bin/sh\n".to_owned(), ..file("scripts/run.sh") };
        let packed = pack(&[file("SKILL.md"), file("scripts/run.py"), logo, script]).expect("packed");
        let mut archive = ZipArchive::new(Cursor::new(&packed)).expect("an archive");
        let modes: Vec<_> = (0..4).map(|n| archive.by_index(n).expect("a file").unix_mode()).collect();
        assert_eq!(modes, [0o100_644, 0o100_644, 0o100_644, 0o100_755].map(Some));
        let unpacked: Unpacked = serde_json::from_slice(&unpack(&packed)).expect("JSON");
        let Unpacked::Files(found) = unpacked else { panic!("{unpacked:?}") };
        assert_eq!(found[1], ("scripts/run.py".to_owned(), FileContent::Text("text".to_owned())));
        assert_eq!(found[2], ("logo.png".to_owned(), FileContent::Base64("/wA=".to_owned())));
        let root = placed(files(&["./review/SKILL.md", "review/a/b.md", "__MACOSX/x"])).expect("placed");
        assert_eq!(root.files.iter().map(|(path, _)| path.as_str()).collect::<Vec<_>>(), ["SKILL.md", "a/b.md"]);
        assert_eq!(root.folder.as_deref(), Some("review"));
        for bad in [
            &["SKILL.md", "../x"][..],
            &["SKILL.md", "/etc/passwd"],
            &["SKILL.md", "a\\..\\b"],
            &["SKILL.md", "c:x"],
            &["a/SKILL.md", "b/x"],
            &["README.md"],
            &["SKILL.md", "a.md", "A.md"],
        ] {
            assert!(placed(files(bad)).is_err(), "{bad:?}");
        }
        assert!(matches!(serde_json::from_slice(&unpack(b"no archive")).expect("JSON"), Unpacked::Refused(_)));
        let archive = |fill: &dyn Fn(&mut Zip)| {
            let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
            fill(&mut archive);
            archive.finish().expect("packed").into_inner()
        };
        let plain = SimpleFileOptions::default();
        for bytes in [
            archive(&|zip| zip.add_symlink("SKILL.md", "/etc/passwd", plain).expect("a link")),
            archive(&|zip| zip.start_file("../SKILL.md", plain).expect("a file")),
            archive(&|zip| zip.start_file("/etc/passwd", plain).expect("a file")),
        ] {
            let refused: Unpacked = serde_json::from_slice(&unpack(&bytes)).expect("JSON");
            assert!(matches!(refused, Unpacked::Refused(_)), "{refused:?}");
        }
        let many = archive(&|zip| {
            (0..=MAX_FILES).for_each(|n| zip.start_file(format!("f{n}"), plain).expect("a file"));
        });
        assert!(matches!(serde_json::from_slice(&unpack(&many)).expect("JSON"), Unpacked::TooLarge));
        let bomb = file("SKILL.md");
        let bomb = pack(&[SkillFile { content: "0".repeat(MAX_BYTES + 1), ..bomb }]).expect("packed");
        assert!(matches!(serde_json::from_slice(&unpack(&bomb)).expect("JSON"), Unpacked::TooLarge));
    }
}
