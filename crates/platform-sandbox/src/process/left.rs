//! A machine whose process is gone: its disk is all that is left of it.

use std::{io::Write, os::unix::fs::MetadataExt};

use async_trait::async_trait;

use super::{
    disk::{self, MachineDir},
    machine::first_user_of,
};
use crate::backend::{Command, Machine, Running, SandboxError};

pub(super) struct LeftMachine {
    dir: MachineDir,
}

impl LeftMachine {
    pub fn new(dir: MachineDir) -> Self {
        Self { dir }
    }
}

#[async_trait]
impl Machine for LeftMachine {
    fn variables(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    async fn start(&self, _: Command) -> Result<Running, SandboxError> {
        Err(SandboxError::Ended)
    }

    async fn disk_bytes(&self) -> Result<u64, SandboxError> {
        let dir = self.dir.0.clone();
        tokio::task::spawn_blocking(move || disk::used(&dir))
            .await
            .map_err(|error| SandboxError::Failed(error.to_string()))
    }

    async fn end(&self) {}

    async fn ended(&self) {}

    async fn save(&self, to: Box<dyn Write + Send>) -> Result<(), SandboxError> {
        let dir = self.dir.0.clone();
        let saving = tokio::task::spawn_blocking(move || {
            let first_user = first_user_of(std::fs::symlink_metadata(dir.join("workspace"))?.uid());
            disk::save(to, &dir, first_user, u64::MAX)
        });
        Ok(saving.await.map_err(|error| SandboxError::Failed(error.to_string()))??)
    }
}
