//! The disk of a machine: two directories of the host, in which somebody else has written whatever they liked.
//!
//! Nothing here follows a link, goes down into itself, or trusts a size.

use std::{
    collections::{HashMap, HashSet},
    fs::{self, DirBuilder, File},
    io::{self, Read, Write},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown, lchown},
    },
    path::{Path, PathBuf},
    thread,
};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, Timespec, Timestamps, statvfs, utimensat};
use tracing::warn;

use super::USER;
use crate::backend::{Disk, Room, SandboxError};

/// Directories of a machine that are its disk, and who may write to them.
const DIRS: [(&str, u32); 2] = [("workspace", 0o775), ("tmp", 0o1777)];
/// Files and directories on a disk.
pub(crate) const MAX_ENTRIES: u64 = 2_000_000;
/// Files of many names that are told from each other; more count once for each name.
const MAX_NAMED: usize = 100_000;
/// Depth of directories.
const MAX_DEPTH: usize = 512;

/// A directory that goes with whoever has it.
#[derive(Debug)]
pub(super) struct MachineDir(pub PathBuf);

/// What follows the name of a directory that is being removed, before a number that no other has.
const GONE: &str = "-gone-";

impl MachineDir {
    /// Works in it on a thread that may wait.
    pub async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
    ) -> Result<T, SandboxError> {
        let dir = self.0.clone();
        tokio::task::spawn_blocking(move || work(&dir))
            .await
            .map_err(|error| SandboxError::Failed(error.to_string()))?
            .map_err(Into::into)
    }
}

impl Drop for MachineDir {
    fn drop(&mut self) {
        let path = std::mem::take(&mut self.0);
        // Nobody takes half of a disk for a whole one, and its name is free at once.
        let aside = set_aside(&path);
        // A large disk takes its time.
        thread::spawn(move || {
            if let Err(error) = aside.and_then(|aside| remove(&aside)) {
                warn!(dir = %path.display(), %error, "The disk of a sandbox could not be removed; the next start tries again.");
            }
        });
    }
}

/// Gives a directory a name under which nobody looks for it.
pub(super) fn set_aside(dir: &Path) -> io::Result<PathBuf> {
    let mut name = dir.file_name().unwrap_or_default().to_owned();
    name.push(GONE);
    name.push(String::from(platform_core::Id::<MachineDir>::generate()));
    let aside = dir.with_file_name(name);
    fs::rename(dir, &aside)?;
    Ok(aside)
}

/// Removes a directory, however deep it is: what is deep comes up first.
fn remove(top: &Path) -> io::Result<()> {
    let mut waiting = vec![top.to_owned()];
    let mut taken = 0_u64;
    while let Some(dir) = waiting.pop() {
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o700))?;
        for entry in fs::read_dir(&dir)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                taken += 1;
                fs::set_permissions(entry.path(), fs::Permissions::from_mode(0o700))?;
                let near = top.with_extension(format!("gone-{taken}"));
                fs::rename(entry.path(), &near)?;
                waiting.push(near);
            } else {
                fs::remove_file(entry.path())?;
            }
        }
        fs::remove_dir(&dir)?;
    }
    Ok(())
}

/// A new disk with this on it, which has at most so many bytes, and a place where the machine's files will be put together.
pub(super) fn prepare(dir: &Path, first_user: Option<u32>, disk: Disk, most: u64) -> io::Result<()> {
    DirBuilder::new().mode(0o711).create(dir)?;
    fs::create_dir(dir.join("root"))?;
    for (name, mode) in DIRS {
        fs::create_dir(dir.join(name))?;
        fs::set_permissions(dir.join(name), fs::Permissions::from_mode(mode))?;
    }
    if let Disk::Archive(archive) = disk {
        unpack(dir, first_user, archive, most)?;
    }
    if let Some(first) = first_user {
        let own = Some(first + USER);
        DIRS.into_iter().try_for_each(|(name, _)| chown(dir.join(name), own, own))?;
    }
    Ok(())
}

fn unpack(dir: &Path, first_user: Option<u32>, archive: Box<dyn Read + Send>, most: u64) -> io::Result<()> {
    let mut bytes = 0_u64;
    let mut archive = tar::Archive::new(archive);
    archive.set_preserve_permissions(true);
    let mut late = Vec::new();
    for entry in archive.entries()? {
        let mut entry = entry?;
        let (path, header) = (entry.path()?.into_owned(), entry.header().clone());
        bytes = bytes.saturating_add(entry.size());
        if bytes > most {
            return Err(io::Error::other(TOO_LARGE));
        }
        if header.entry_type().is_dir() {
            fs::create_dir_all(dir.join(&path))?;
            // A directory that nobody may write to would not take its files, and each file makes it newer.
            late.push((path.clone(), header.mode()?, header.mtime()?));
        } else {
            entry.unpack_in(dir)?;
            if header.entry_type().is_symlink() {
                set_modified(&dir.join(&path), header.mtime()?)?;
            }
        }
        if let Some(first) = first_user {
            let user = if header.uid()? == 0 { first } else { first + USER };
            lchown(dir.join(&path), Some(user), Some(first + USER))?;
        }
    }
    // What is below comes first: a directory may be closed to its owner.
    let mut late = late.into_iter().rev();
    late.try_for_each(|(path, mode, modified)| {
        set_modified(&dir.join(&path), modified)?;
        fs::set_permissions(dir.join(path), fs::Permissions::from_mode(mode))
    })
}

/// What was not changed is the same in the next archive. A link is not followed.
fn set_modified(path: &Path, seconds: u64) -> io::Result<()> {
    let at = Timespec { tv_sec: i64::try_from(seconds).unwrap_or(0), tv_nsec: 0 };
    let times = Timestamps { last_access: at, last_modification: at };
    Ok(utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}

const TOO_LARGE: &str = "there is more on the disk than it may hold; a file with holes counts with its whole length";
const TOO_DEEP: &str = "directories on the disk are deeper than 512";
const TOO_MANY: &str = "there are more than two million files and directories on the disk";

/// What its owner had closed to themselves, and is open until this is dropped: where the platform is not root it is that
/// owner.
#[derive(Default)]
struct Opened(Vec<(OwnedFd, u32)>);

impl Opened {
    /// Reads what may be closed; beyond so many it stays open.
    fn read<T>(&mut self, path: &Path, read: impl Fn(&Path) -> io::Result<T>) -> io::Result<T> {
        const MOST: usize = 256;
        match read(path) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
            outcome => return outcome,
        }
        let held = rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        let mode = fs::metadata(by_number(&held))?.mode() & 0o7777;
        fs::set_permissions(by_number(&held), fs::Permissions::from_mode(mode | 0o700))?;
        if self.0.len() < MOST {
            self.0.push((held, mode));
        }
        read(path)
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        for (held, mode) in &self.0 {
            let _ = fs::set_permissions(by_number(held), fs::Permissions::from_mode(*mode));
        }
    }
}

/// A name of a file that nobody can put in the place of another.
fn by_number(file: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// What is left where disks are: a tenth of all, at most 2 GiB, is not theirs, nor is the last fiftieth of its files; while
/// one is being removed half of that.
pub(super) fn room(dir: &Path) -> Option<Room> {
    const MOST_KEPT: u64 = 2 << 30;
    let found = dir.ancestors().find_map(|dir| statvfs(dir).ok())?;
    let has_files = found.f_files == 0 || found.f_favail > found.f_files / 50;
    let free = if has_files { found.f_bavail.saturating_mul(found.f_frsize) } else { 0 };
    let least = (found.f_blocks.saturating_mul(found.f_frsize) / 10).min(MOST_KEPT);
    let is_going =
        |entry: io::Result<fs::DirEntry>| entry.is_ok_and(|entry| entry.file_name().to_string_lossy().contains(GONE));
    let homes = fs::read_dir(dir).into_iter().flatten().flatten();
    let goes = homes.filter_map(|home| fs::read_dir(home.path()).ok()).flatten().any(is_going);
    Some(Room { free, least: if goes { least / 2 } else { least } })
}

/// Bytes on the disk; what cannot be counted is more than any disk has.
pub(super) fn used(dir: &Path) -> u64 {
    let mut waiting: Vec<PathBuf> = DIRS.iter().map(|(name, _)| dir.join(name)).collect();
    let (mut bytes, mut entries) = (0_u64, 0_u64);
    let mut opened = Opened::default();
    // Of a file that has many names each is found, and it takes its room once.
    let mut named: HashSet<(u64, u64)> = HashSet::new();
    while let Some(dir) = waiting.pop() {
        let found = match opened.read(&dir, |dir| fs::read_dir(dir)) {
            Ok(found) => found,
            // What goes meanwhile, or becomes something else, does not count.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => continue,
            Err(_) => return u64::MAX,
        };
        for entry in found.flatten() {
            let Ok(found) = entry.metadata() else { continue };
            entries += 1;
            let is_known = found.is_dir() || found.nlink() < 2 || named.len() == MAX_NAMED;
            let is_new = is_known || named.insert((found.dev(), found.ino()));
            bytes = bytes.saturating_add(if is_new { found.blocks() * 512 } else { 0 });
            if entries > MAX_ENTRIES {
                return u64::MAX;
            }
            if found.is_dir() {
                waiting.push(entry.path());
            }
        }
    }
    bytes
}

/// Bytes of files that have no name any more, and are held open by processes in this namespace.
pub(super) fn held(dir: &Path, namespace: Option<&Path>) -> u64 {
    let Some((namespace, on)) = namespace.zip(fs::metadata(dir).ok()) else { return 0 };
    let ids = fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.path());
    let own = ids.filter(|process| fs::read_link(process.join("ns/pid")).is_ok_and(|link| link == namespace));
    let files = own.flat_map(|process| fs::read_dir(process.join("fd")).into_iter().flatten().flatten());
    let found = files.filter_map(|file| fs::metadata(file.path()).ok());
    let gone = found.filter(|file| file.is_file() && file.nlink() == 0 && file.dev() == on.dev());
    let by_number: HashMap<u64, u64> = gone.map(|file| (file.ino(), file.blocks() * 512)).collect();
    by_number.into_values().sum()
}

/// Writes all of it as an archive; `most` bytes are more than it may hold.
pub(super) fn save(to: impl Write, dir: &Path, first_user: Option<u32>, most: u64) -> io::Result<()> {
    let mut archive = tar::Builder::new(to);
    pack(&mut archive, dir, first_user, most)?;
    archive.into_inner()?.flush()
}

/// In the order of the names; sockets and pipes are not kept.
fn pack<W: Write>(archive: &mut tar::Builder<W>, dir: &Path, first_user: Option<u32>, most: u64) -> io::Result<()> {
    archive.follow_symlinks(false);
    let mut waiting: Vec<PathBuf> = DIRS.iter().rev().map(|(name, _)| PathBuf::from(name)).collect();
    let (mut bytes, mut entries) = (0_u64, 0_u64);
    let mut first_names: HashMap<(u64, u64), PathBuf> = HashMap::new();
    let mut opened = Opened::default();
    while let Some(name) = waiting.pop() {
        let path = dir.join(&name);
        let found = fs::symlink_metadata(&path)?;
        let other_name = first_names.get(&(found.dev(), found.ino()));
        // Holes are written as what they are read as.
        let length = if found.is_file() { found.len() } else { 0 };
        let more = if other_name.is_some() { 0 } else { length.max(found.blocks() * 512) };
        (bytes, entries) = (bytes.saturating_add(more), entries + 1);
        for (is_too_much, what) in [
            (bytes > most, TOO_LARGE),
            (entries > MAX_ENTRIES, TOO_MANY),
            (name.components().count() > MAX_DEPTH, TOO_DEEP),
        ] {
            if is_too_much {
                return Err(io::Error::other(what));
            }
        }
        let mut header = tar::Header::new_gnu();
        header.set_metadata(&found);
        // On the machine, whichever it will be: its first user or the other.
        header.set_uid(if Some(found.uid()) == first_user { 0 } else { USER.into() });
        header.set_gid(USER.into());
        if found.is_dir() {
            header.set_size(0);
            archive.append_data(&mut header, &name, io::empty())?;
            let below = opened.read(&path, |dir| fs::read_dir(dir))?.map(|entry| Ok(name.join(entry?.file_name())));
            let mut below: Vec<PathBuf> = below.collect::<io::Result<_>>()?;
            below.sort_by(|one, other| other.cmp(one));
            waiting.append(&mut below);
        } else if found.is_symlink() {
            header.set_size(0);
            archive.append_link(&mut header, &name, fs::read_link(&path)?)?;
        } else if let Some(other_name) = other_name {
            header.set_entry_type(tar::EntryType::Link);
            header.set_size(0);
            archive.append_link(&mut header, &name, other_name)?;
        } else if found.is_file() {
            if found.nlink() > 1 {
                first_names.insert((found.dev(), found.ino()), name.clone());
            }
            archive.append_data(&mut header, &name, opened.read(&path, |file| File::open(file))?.take(found.len()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use rustix::{
        process::geteuid,
        thread::{Uid, set_thread_res_uid},
    };

    use super::*;

    #[test]
    fn what_is_restored_and_not_changed_is_saved_as_it_was_and_holes_count_as_what_they_are_read_as() {
        let top = std::env::temp_dir().join(format!("platform-same-{}", std::process::id()));
        fs::create_dir(&top).expect("a directory");
        let (first, second) = (top.join("first"), top.join("second"));
        prepare(&first, None, Disk::Empty, 0).expect("a disk");
        for n in 0..20 {
            let below = first.join(format!("workspace/{n}/below"));
            fs::create_dir_all(&below).expect("made");
            fs::write(below.join("file"), "x").expect("written");
            std::os::unix::fs::symlink("file", below.join("link")).expect("linked");
            set_modified(&below.join("link"), 5).expect("long ago");
            set_modified(&below, 7).expect("long ago");
        }
        let saved = |dir: &Path| {
            let mut archive = Vec::new();
            save(&mut archive, dir, None, 1 << 20).map(|()| archive)
        };
        let before = saved(&first).expect("saved");
        prepare(&second, None, Disk::Archive(Box::new(Cursor::new(before.clone()))), 1 << 20).expect("restored");
        assert!(saved(&second).expect("saved") == before, "nothing was changed");
        File::create(second.join("workspace/holes")).and_then(|file| file.set_len(2 << 20)).expect("a hole");
        let refused = saved(&second).map(drop).map_err(|error| error.to_string());
        let third = top.join("third");
        let small = prepare(&third, None, Disk::Archive(Box::new(Cursor::new(before))), 10);
        remove(&top).expect("removed");
        assert!(refused.is_err_and(|error| error.contains("holes")) && small.is_err());
    }

    #[test]
    fn what_its_owner_closed_is_counted_and_saved_and_closed_again_where_the_platform_is_not_root() {
        let top = std::env::temp_dir().join(format!("platform-closed-{}", std::process::id()));
        fs::create_dir(&top).expect("a directory");
        fs::set_permissions(&top, fs::Permissions::from_mode(0o777)).expect("open to all");
        let (first, second) = (top.join("first"), top.join("second"));
        let work = thread::spawn(move || {
            // Of this thread alone.
            if geteuid().is_root() {
                let other = Uid::from_raw(USER);
                set_thread_res_uid(other, other, other).expect("another user");
            }
            let mode_of = |path: PathBuf| fs::symlink_metadata(path).expect("it is there").mode() & 0o777;
            let close = |path: PathBuf| fs::set_permissions(path, fs::Permissions::from_mode(0o0)).expect("closed");
            prepare(&first, None, Disk::Empty, 0).expect("a disk");
            let closed = first.join("workspace/closed");
            fs::create_dir(&closed).expect("made");
            fs::write(closed.join("secret"), "x".repeat(100_000)).expect("written");
            fs::hard_link(closed.join("secret"), first.join("workspace/the-same")).expect("linked");
            close(closed.join("secret"));
            close(closed.clone());
            let bytes = used(&first);
            assert!((100_000..200_000).contains(&bytes), "{bytes}");
            assert_eq!(mode_of(closed), 0, "closed again");
            let mut archive = Vec::new();
            save(&mut archive, &first, None, 1 << 20).expect("saved");
            prepare(&second, None, Disk::Archive(Box::new(Cursor::new(archive))), 1 << 20).expect("restored");
            let closed = second.join("workspace/closed");
            assert_eq!(mode_of(closed.clone()), 0);
            let mut opened = Opened::default();
            let found = opened.read(&closed, |dir| fs::read_dir(dir)).expect("opened").count();
            assert_eq!((found, mode_of(closed.join("secret"))), (1, 0));
        });
        let outcome = work.join();
        remove(&top).expect("removed");
        outcome.expect("its thread");
    }
}
