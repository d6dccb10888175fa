//! What the first start makes: an account with its administrator, a first API key, and the link that logs in.

use std::{
    fs,
    io::{self, Write},
    net::{Ipv4Addr, SocketAddr},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use platform_auth::{AuthService, KeySecret, KeyService, NewUser, PgAuthService, Role, UserService};
use platform_core::{AccountId, Caller, Credential, Origin, Page};
use secrecy::{ExposeSecret, SecretString};

use crate::config::Config;

/// Address of the user that the first start makes.
pub(crate) const FIRST_USER: &str = "admin@localhost";

/// What the first start made for whoever started it.
#[derive(Default)]
pub(crate) struct First {
    /// Where the first API key is.
    pub key_file: Option<PathBuf>,
    /// Logs the first user in to the console, once.
    pub log_in: Option<String>,
}

/// Makes sure there is an account with a user and a key to begin with.
pub(crate) async fn bootstrap(auth: &PgAuthService, config: &Config, addr: SocketAddr) -> Result<First> {
    auth.ensure_console().await?;
    let mut first = First::default();
    let account = match auth.find_account("default").await? {
        Some(account) => account,
        None => match auth.create_account("default").await {
            Ok(account) => {
                first_user(auth, &account.id).await?;
                let link = auth.log_in_link(&account.id, FIRST_USER).await?;
                first.log_in = Some(log_in_address(config, addr, &link));
                account.id
            }
            // Another process was first.
            Err(_) => find_account(auth, "default").await?,
        },
    };
    first.key_file = first_key(auth, &account, config).await?;
    Ok(first)
}

/// An administrator with a password that nobody has: a link logs them in.
pub(crate) async fn first_user(auth: &PgAuthService, account: &AccountId) -> Result<()> {
    let password = Some(KeySecret::generate("pw")?.expose().to_owned());
    let (email, name) = (FIRST_USER.to_owned(), "Administrator".to_owned());
    auth.create_user(account, NewUser { email, password, name, role: Role::Admin, disabled: false }, None).await?;
    Ok(())
}

/// The file of the first key, if it has one.
async fn first_key(keys: &PgAuthService, account: &AccountId, config: &Config) -> Result<Option<PathBuf>> {
    if let Some(secret) = &config.bootstrap_key {
        keys.ensure_key(account, "bootstrap", secret).await?;
        return Ok(None);
    }
    let path = config.data_dir.join("bootstrap-key");
    if keys.list_keys(&operator(account.clone()), Page { limit: 1, offset: 0 }).await?.total == 0 {
        let stored = fs::read_to_string(&path).ok();
        let secret = match stored.and_then(|text| KeySecret::parse(text.trim(), &config.key_prefix)) {
            Some(secret) => secret,
            None => {
                let secret = KeySecret::generate(&config.key_prefix)?;
                write_private(&path, secret.expose())?;
                secret
            }
        };
        keys.ensure_key(account, "bootstrap", &secret).await?;
    }
    Ok(path.exists().then_some(path))
}

/// Where whoever has the value of a link is logged in.
pub(crate) fn log_in_address(config: &Config, mut addr: SocketAddr, link: &SecretString) -> String {
    // Who listens everywhere is reached here; and only here, or over https, a browser lets the console log in.
    if addr.ip().is_unspecified() {
        addr.set_ip(Ipv4Addr::LOCALHOST.into());
    }
    format!("{}/#link={}", config.url(addr), link.expose_secret())
}

pub(crate) async fn find_account(auth: &dyn AuthService, id_or_name: &str) -> Result<AccountId> {
    let found = auth.find_account(id_or_name).await?;
    found.with_context(|| format!("There is no account `{id_or_name}`; `accounts list` shows them."))
}

/// Who makes a key from the command line.
pub(crate) fn operator(account: AccountId) -> Caller {
    let (credential, user_uid) = (Credential::FullKey("server".to_owned()), "server".to_owned());
    Caller { account, credential, user_uid, projects: None, origin: Origin::default() }
}

/// Writes a file that its owner alone reads, whole or not at all.
pub(crate) fn write_private(path: &Path, text: &str) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    let draft = path.with_extension("draft");
    let mut file = fs::OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&draft)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(draft, path)
}
