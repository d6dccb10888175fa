//! The command line.

use std::{
    io::{ErrorKind, Write},
    process::ExitCode,
    sync::Arc,
};

use anyhow::Result;
use clap::{Parser, Subcommand};
use platform_auth::{AuthService, KeyService, NewApiKey, NewUser, PgAuthService, Role, UserService};
use platform_core::{Error, Page};
use serde::Serialize;

use crate::{
    bootstrap::{FIRST_USER, find_account, first_user, log_in_address, operator},
    children,
    config::{self, Config},
    connectors::{self, Connectors},
    running::Running,
    sandboxes, serve,
    telemetry::Telemetry,
};

/// The open AI agent and assistant platform.
///
/// Without a command it serves: on a machine with nothing else it starts a PostgreSQL of its own under
/// the data directory, writes a first API key there, and answers with an offline demo model until a
/// provider is set.
#[derive(Parser)]
#[command(name = "platform-gateway", version, after_long_help = config::help(), after_help = "Settings are environment variables; --help lists them.")]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Serve the API (the default).
    Serve,
    /// Bring the database schema up to date and exit.
    Migrate,
    /// Print the OpenAPI 3.1 document.
    Openapi,
    /// Print all settings as Markdown.
    Settings,
    /// Read and run what clients wrote, for a process that serves.
    #[command(name = children::COMMAND, hide = true)]
    Child,
    /// Become a machine on which agents run commands, for a process that serves.
    #[command(name = sandboxes::COMMAND, hide = true)]
    Sandbox {
        /// How far it is.
        stage: String,
    },
    /// Accounts of this server.
    #[command(subcommand)]
    Accounts(Accounts),
    /// API keys of an account.
    #[command(subcommand)]
    Keys(Keys),
    /// Connectors: apps that YAML files describe.
    #[command(subcommand)]
    Connectors(Connectors),
    /// Users of an account, who log in to applications.
    #[command(subcommand)]
    Users(Users),
}

#[derive(Subcommand)]
enum Users {
    /// Print a link that logs a user in to the console, once, within a day.
    Link {
        /// Account: its clientUID or name.
        #[arg(long, default_value = "default")]
        account: String,
        /// Address of the user.
        #[arg(long, default_value = FIRST_USER)]
        email: String,
    },
    /// Make a user; the password is read from standard input. Prints the user as JSON.
    Create {
        /// Account: its clientUID or name.
        #[arg(long, default_value = "default")]
        account: String,
        /// Address they log in with.
        #[arg(long)]
        email: String,
        /// Name for people.
        #[arg(long, default_value = "")]
        name: String,
        /// What they may do.
        #[arg(long, default_value = "member", value_parser = ["admin", "member"])]
        role: String,
    },
}

#[derive(Subcommand)]
enum Accounts {
    /// Make an account; prints it as JSON.
    Create {
        /// Its name, unique on this server.
        #[arg(long)]
        name: String,
    },
    /// Print all accounts, one JSON object a line.
    List,
}

#[derive(Subcommand)]
enum Keys {
    /// Make a key; prints it as JSON, its value this once.
    Create {
        /// Account: its clientUID or name.
        #[arg(long, default_value = "default")]
        account: String,
        /// Name of the key.
        #[arg(long, default_value = "command line")]
        name: String,
        /// Reach of the key.
        #[arg(long, default_value = "full", value_parser = ["full"])]
        kind: String,
    },
    /// Print the keys of an account, one JSON object a line, without their values.
    List {
        /// Account: its clientUID or name.
        #[arg(long, default_value = "default")]
        account: String,
    },
}

/// Runs the program; every failure is one line on stderr.
pub fn main() -> ExitCode {
    // What whoever starts it left open is for none of its children.
    close_fds::set_fds_cloexec(3, &[]);
    let cli = Cli::parse();
    match run(cli.command.unwrap_or(Command::Serve)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("platform-gateway: {}", line(&error));
            ExitCode::FAILURE
        }
    }
}

/// A failure with what it came from, for the operator.
fn line(error: &anyhow::Error) -> String {
    let said = error.chain().map(|error| match error.downcast_ref::<Error>() {
        Some(error) => error.cause().map_or_else(|| error.message().to_owned(), ToString::to_string),
        None => error.to_string(),
    });
    said.collect::<Vec<_>>().join(": ")
}

/// Prints text, as far as anybody reads it.
fn write_out(text: &str) -> Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

fn run(command: Command) -> Result<()> {
    if matches!(command, Command::Child) {
        return Ok(children::serve()?);
    }
    if matches!(command, Command::Settings) {
        return write_out(&config::page());
    }
    if let Command::Sandbox { stage } = &command {
        return Ok(platform_sandbox::serve_machine(stage)?);
    }
    if let Command::Connectors(command) = &command {
        return write_out(&connectors::run(command)?);
    }
    let config = Config::from_env()?;
    let _telemetry = Telemetry::start(&config.log, config.traces && matches!(command, Command::Serve))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let outcome = runtime.block_on(async {
        match command {
            Command::Serve | Command::Settings | Command::Child | Command::Sandbox { .. } | Command::Connectors(_) => {
                Box::pin(serve::run(config)).await
            }
            Command::Openapi => write_out(&format!("{}\n", Running::document(&config).await?)),
            Command::Migrate => Running::migrate(&config).await,
            Command::Accounts(command) => accounts(&config, command).await,
            Command::Keys(command) => keys(&config, command).await,
            Command::Users(command) => users(&config, command).await,
        }
    });
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    outcome
}

async fn accounts(config: &Config, command: Accounts) -> Result<()> {
    Running::with_auth(config, async |auth| match command {
        Accounts::Create { name } => {
            print(&auth.create_account(&name).await?)?;
            Ok(())
        }
        Accounts::List => {
            auth.list_accounts().await?.iter().try_for_each(print)?;
            Ok(())
        }
    })
    .await
}

async fn keys(config: &Config, command: Keys) -> Result<()> {
    Running::with_auth(config, async |auth| match command {
        Keys::Create { account, name, kind: _ } => {
            let caller = operator(find_account(&*auth, &account).await?);
            print(&auth.create_key(&caller, NewApiKey { name, ..NewApiKey::default() }, None).await?)?;
            Ok(())
        }
        Keys::List { account } => {
            let caller = operator(find_account(&*auth, &account).await?);
            let all = Page { limit: i64::MAX, offset: 0 };
            auth.list_keys(&caller, all).await?.items.iter().try_for_each(print)?;
            Ok(())
        }
    })
    .await
}

async fn users(config: &Config, command: Users) -> Result<()> {
    let (account, email, name, role) = match command {
        Users::Create { account, email, name, role } => (account, email, name, role),
        Users::Link { account, email } => {
            let is_first = (account.as_str(), email.as_str()) == ("default", FIRST_USER);
            let link = async |auth: Arc<PgAuthService>| {
                let account = find_account(&*auth, &account).await?;
                // A first account that is older than the console has no user yet.
                if is_first && auth.list_users(&account, Page { limit: 1, offset: 0 }).await?.total == 0 {
                    first_user(&auth, &account).await?;
                }
                println!("{}", log_in_address(config, config.addr, &auth.log_in_link(&account, &email).await?));
                Ok(())
            };
            return Running::with_auth(config, link).await;
        }
    };
    // Not an argument: those are shown to everybody on the machine.
    let mut password = String::new();
    eprintln!("Password of {email} (12 characters or more):");
    std::io::stdin().read_line(&mut password)?;
    let role = if role == "admin" { Role::Admin } else { Role::Member };
    let password = Some(password.trim_end_matches(['\r', '\n']).to_owned());
    let new = NewUser { email, password, name, role, disabled: false };
    Running::with_auth(config, async |auth| {
        let account = find_account(&*auth, &account).await?;
        print(&auth.create_user(&account, new, None).await?)?;
        Ok(())
    })
    .await
}

fn print(record: &impl Serialize) -> Result<()> {
    write_out(&format!("{}\n", serde_json::to_string(record)?))
}
