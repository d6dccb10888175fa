//! Log-ins that last: what a browser holds after its user logged in, and links that log in once. Both open the console
//! alone, which belongs to this server; any other application asks for the password and for consent.

use diesel::prelude::*;
use diesel_async::RunQueryDsl;
use platform_core::{AccountId, Id, Result, Timestamp, sha256_hex};
use platform_db::Conn;
use secrecy::{ExposeSecret, SecretString};
use url::Url;

use super::clients::{ClientRow, is_loopback};
use crate::{
    PgAuthService,
    key::KeySecret,
    schema::{log_ins, oauth_clients},
    user::{
        repository::{self as users, UserRow},
        sign_in,
    },
};

/// The console in the protocol.
pub(crate) const CONSOLE: &str = "platform-console";
/// What it asks for: all that an access token can open.
const SCOPES: [&str; 4] = ["platform:read", "platform:write", "keys:write", "tenant-admin:read"];
/// A link is good for so long.
const LINK_MS: i64 = 24 * 3_600_000;
/// A browser need not log in again for so long.
const BROWSER_MS: i64 = 12 * 3_600_000;
/// First part of their values.
const PREFIX: &str = "li";

/// How a user shows who they are.
#[derive(Debug)]
pub enum SignIn {
    /// What they know.
    Password {
        /// Their address.
        email: String,
        /// Their password.
        password: SecretString,
    },
    /// A link that the server gave them; good once, for the console.
    Link(SecretString),
    /// What their browser holds since they logged in; for the console.
    Browser(SecretString),
}

#[derive(Queryable, Selectable, Insertable)]
#[diesel(table_name = log_ins)]
pub(crate) struct LogInRow {
    digest: String,
    account_id: String,
    user_id: String,
    is_link: bool,
    expires_ms: i64,
}

/// A new log-in of a user, and its value.
pub(crate) fn new(user: &UserRow, is_link: bool, now: Timestamp) -> Result<(LogInRow, SecretString)> {
    let value = KeySecret::generate(PREFIX)?;
    let row = LogInRow {
        digest: value.digest(),
        account_id: user.account_id.clone(),
        user_id: user.id.clone(),
        is_link,
        expires_ms: now.0 + if is_link { LINK_MS } else { BROWSER_MS },
    };
    Ok((row, value.expose().to_owned().into()))
}

pub(crate) async fn insert(conn: &mut Conn, row: &LogInRow) -> Result<()> {
    diesel::insert_into(log_ins::table).values(row).execute(conn).await?;
    Ok(())
}

/// `false` when it is gone already: a link logs in once.
pub(crate) async fn end(conn: &mut Conn, value: &SecretString) -> Result<bool> {
    let log_in = log_ins::table.filter(log_ins::digest.eq(sha256_hex(value.expose_secret())));
    Ok(diesel::delete(log_in).execute(conn).await? == 1)
}

/// Whether it has not ended.
pub(crate) async fn is_held(conn: &mut Conn, value: &SecretString) -> Result<bool> {
    let log_in = log_ins::table.filter(log_ins::digest.eq(sha256_hex(value.expose_secret())));
    Ok(diesel::select(diesel::dsl::exists(log_in)).get_result(conn).await?)
}

pub(crate) async fn end_of_user(conn: &mut Conn, account: &AccountId, user: &str) -> Result<()> {
    let of_user = log_ins::account_id.eq(account.as_str()).and(log_ins::user_id.eq(user));
    diesel::delete(log_ins::table.filter(of_user)).execute(conn).await?;
    Ok(())
}

/// Forgets those past their time.
pub async fn purge(conn: &mut Conn, now: Timestamp) -> Result<()> {
    diesel::delete(log_ins::table.filter(log_ins::expires_ms.lt(now.0))).execute(conn).await?;
    Ok(())
}

impl PgAuthService {
    /// Who signs in so, to the console or to another application of an account; `None` = nobody.
    pub(crate) async fn signed_in(
        &self,
        is_console: bool,
        account: Option<&AccountId>,
        way: &SignIn,
    ) -> Result<Option<UserRow>> {
        let (value, is_link) = match way {
            SignIn::Password { email, password } => return sign_in(self, account, email, password.clone()).await,
            SignIn::Link(value) => (value, true),
            SignIn::Browser(value) => (value, false),
        };
        if !is_console {
            return Ok(None);
        }
        let conn = self.db.read().await?;
        let log_in = log_ins::table
            .filter(log_ins::digest.eq(sha256_hex(value.expose_secret())).and(log_ins::is_link.eq(is_link)))
            .filter(log_ins::expires_ms.gt(self.clock.now().0))
            .select(LogInRow::as_select());
        let Some(log_in) = log_in.first(&mut conn.get()).await.optional()? else { return Ok(None) };
        let account = crate::service::stored_account(&log_in.account_id)?;
        Ok(users::find(conn.get(), &account, &log_in.user_id).await?.filter(|user| !user.disabled))
    }

    /// Makes the console known, at the address that this server has now.
    pub async fn ensure_console(&self) -> Result<()> {
        let now = self.clock.now();
        let row = ClientRow {
            id: Id::<ClientRow>::generate().into(),
            account_id: None,
            client_id: CONSOLE.to_owned(),
            name: "Console".to_owned(),
            // Each process knows its own names besides.
            redirect_uris: vec![format!("{}/", self.config.issuer)],
            secret_digest: None,
            scopes: SCOPES.map(str::to_owned).to_vec(),
            created_ms: now.0,
            edited_ms: now.0,
            // Never, so that it is not forgotten for being unused.
            used_ms: None,
        };
        // Whoever had the name before does not have it any more.
        let there = (
            oauth_clients::account_id.eq(&row.account_id),
            oauth_clients::secret_digest.eq(&row.secret_digest),
            oauth_clients::redirect_uris.eq(&row.redirect_uris),
            oauth_clients::scopes.eq(&row.scopes),
        );
        diesel::insert_into(oauth_clients::table)
            .values(&row)
            .on_conflict(oauth_clients::client_id)
            .do_update()
            .set(there)
            .execute(&mut *self.db.conn().await?)
            .await?;
        Ok(())
    }
}

/// The server's own address; where that is this machine's, under each of its usual names.
pub(crate) fn redirects(issuer: &str) -> Vec<String> {
    let mut all = vec![format!("{issuer}/")];
    let Some(mut url) = Url::parse(issuer).ok().filter(|url| url.scheme() == "http") else { return all };
    let is_any = matches!(url.host_str(), Some("0.0.0.0" | "[::]"));
    if is_any || is_loopback(&url) {
        for name in ["127.0.0.1", "localhost", "[::1]"] {
            if url.set_host(Some(name)).is_ok() {
                all.push(url.to_string());
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_console_is_where_the_server_is_and_nowhere_else() {
        assert_eq!(redirects("https://agents.example"), ["https://agents.example/"]);
        let local = redirects("http://0.0.0.0:8080");
        assert!(local.contains(&"http://127.0.0.1:8080/".to_owned()), "{local:?}");
        assert!(redirects("http://127.0.0.1:8080").contains(&"http://localhost:8080/".to_owned()));
        assert_eq!(redirects("http://10.0.0.7:8080").len(), 1);
    }
}
