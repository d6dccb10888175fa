//! `connectors`: what is wrong with a pack, and how one is written.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Subcommand;
use platform_integrations::{pack_schema, read_pack, read_pack_file};

#[derive(Subcommand)]
pub(crate) enum Connectors {
    /// Say what is wrong with a connector, each problem with its line.
    Check {
        /// A YAML file of one app.
        file: PathBuf,
    },
    /// Print the JSON Schema of connectors, for an editor.
    Schema,
}

/// What is to be printed.
pub(crate) fn run(command: &Connectors) -> Result<String> {
    match command {
        Connectors::Check { file } => check(file),
        Connectors::Schema => Ok(format!("{}\n", serde_json::to_string_pretty(&pack_schema())?)),
    }
}

fn check(file: &Path) -> Result<String> {
    let text = read_pack_file(file).with_context(|| file.display().to_string())?;
    match read_pack(&text) {
        Ok(pack) => {
            let (tools, events) = (pack.tools.len(), pack.event_types.len());
            Ok(format!("{}: {} is good, with {tools} tools and {events} event types.\n", file.display(), pack.name))
        }
        Err(problems) => {
            for problem in &problems {
                println!("{}:{}: {}", file.display(), problem.line, problem.message);
            }
            let count = problems.len();
            bail!("{} has {count} {}", file.display(), if count == 1 { "problem" } else { "problems" })
        }
    }
}
