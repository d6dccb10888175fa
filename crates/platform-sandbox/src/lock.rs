//! Files by which processes tell each other that they live.

use std::{fs::File, io, path::Path};

use rustix::fs::{FlockOperation, flock};

/// Makes a file that is locked until it is dropped, or the process ends in whatever way.
pub(crate) fn take(path: &Path) -> io::Result<File> {
    let file = File::create(path)?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    Ok(file)
}

/// Locks the file of somebody who is gone, in their place; an error when they are not.
pub(crate) fn take_over(path: &Path) -> io::Result<File> {
    let file = File::open(path)?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    Ok(file)
}

/// Whether whoever made the file is gone; an error when there is none.
pub(crate) fn is_left(path: &Path) -> io::Result<bool> {
    match take_over(path) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error),
    }
}
