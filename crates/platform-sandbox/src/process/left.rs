//! A machine whose process is gone: its disk is all that is left of it.

use std::{fs, io::Write, os::unix::fs::MetadataExt};

use async_trait::async_trait;
use tokio::net::TcpStream;

use super::{
    disk::{self, MachineDir},
    machine::first_user_of,
};
use crate::backend::{Command, Machine, Running, SandboxError};

pub(super) struct LeftMachine(pub MachineDir);

#[async_trait]
impl Machine for LeftMachine {
    fn variables(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    async fn start(&self, _: Command) -> Result<Running, SandboxError> {
        Err(SandboxError::Ended)
    }

    async fn connect(&self, _: u16) -> Result<TcpStream, SandboxError> {
        Err(SandboxError::Ended)
    }

    async fn disk_bytes(&self) -> Result<u64, SandboxError> {
        self.0.blocking(|dir| Ok(disk::used(dir))).await
    }

    async fn end(&self) {}

    async fn ended(&self) {}

    async fn save(&self, to: Box<dyn Write + Send>) -> Result<(), SandboxError> {
        let saving = self.0.blocking(move |dir| {
            let first_user = first_user_of(fs::symlink_metadata(dir.join("workspace"))?.uid());
            disk::save(to, dir, first_user, u64::MAX)
        });
        saving.await
    }
}
