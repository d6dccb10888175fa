use std::collections::HashMap;

use async_trait::async_trait;
use diesel_async::AsyncConnection;
use platform_core::{AccountId, Code, Error, Id, Object, Page, Result, overlay, sha256_hex};
use platform_db::Idempotency;
use secrecy::SecretString;

use super::{
    model::{NewUser, Role, User, UserPage},
    password,
    repository::{self, UserRow},
};
use crate::{
    PgAuthService, code,
    key::repository as keys,
    oauth::{end_log_ins, insert_log_in, new_log_in, revoke_of_user as revoke_grants},
    session::revoke_of_user as revoke_sessions,
};

/// Users of an account.
#[async_trait]
pub trait UserService: Send + Sync {
    /// Makes a user; `NAME_TAKEN` when the address is there already.
    async fn create_user(&self, account: &AccountId, new: NewUser, once: Option<&Idempotency>) -> Result<User>;
    /// Users, newest first.
    async fn list_users(&self, account: &AccountId, page: Page) -> Result<UserPage>;
    /// One user.
    async fn get_user(&self, account: &AccountId, id: &Id<User>) -> Result<User>;
    /// Addresses of those of these users that have one, by id.
    async fn emails(&self, account: &AccountId, ids: &[&str]) -> Result<HashMap<String, String>>;
    /// The value of a link that logs the user of an address in to the console, once.
    async fn log_in_link(&self, account: &AccountId, email: &str) -> Result<SecretString>;
    /// Changes the given fields. Who is disabled is out at once; a new password ends what they granted before, and
    /// their log-ins.
    async fn update_user(&self, account: &AccountId, id: &Id<User>, patch: Object) -> Result<User>;
    /// Takes a user away, with everything they granted; keys they made open nothing any more.
    async fn delete_user(&self, account: &AccountId, id: &Id<User>) -> Result<()>;
}

#[async_trait]
impl UserService for PgAuthService {
    async fn create_user(&self, account: &AccountId, new: NewUser, once: Option<&Idempotency>) -> Result<User> {
        new.check(true, true)?;
        let now = self.clock.now();
        let row = UserRow {
            id: Id::<User>::generate().into(),
            account_id: account.as_str().to_owned(),
            password: hashed(account, new.password).await?,
            email: Some(new.email),
            issuer: None,
            subject: None,
            name: new.name,
            role: new.role.as_str().to_owned(),
            disabled: new.disabled,
            created_ms: now.0,
            edited_ms: now.0,
        };
        let mut conn = self.db.conn().await?;
        let creating = conn.transaction::<_, Error, _>(async |conn| {
            if !repository::insert(conn, &row).await? {
                return Err(taken());
            }
            let user = User::from(row);
            Idempotency::store_if(once, conn, 201, &user).await?;
            Ok(user)
        });
        creating.await
    }

    async fn list_users(&self, account: &AccountId, page: Page) -> Result<UserPage> {
        let (rows, total) = repository::list(&*self.db.fair_conn(account).await?, account, page).await?;
        let items = rows.into_iter().map(User::from).collect();
        Ok(UserPage { items, total, offset: page.offset, limit: page.limit })
    }

    async fn get_user(&self, account: &AccountId, id: &Id<User>) -> Result<User> {
        let row = repository::find(self.db.read().await?.get(), account, id).await?;
        Ok(row.ok_or_else(|| not_found(id))?.into())
    }

    async fn emails(&self, account: &AccountId, ids: &[&str]) -> Result<HashMap<String, String>> {
        repository::emails(self.db.read().await?.get(), account, ids).await
    }

    async fn log_in_link(&self, account: &AccountId, email: &str) -> Result<SecretString> {
        let mut conn = self.db.conn().await?;
        let user = repository::by_email(&conn, Some(account), email).await?.into_iter().next();
        let (row, link) = new_log_in(&user.ok_or_else(|| not_found(email))?, true, self.clock.now())?;
        insert_log_in(&mut conn, &row).await?;
        Ok(link)
    }

    async fn update_user(&self, account: &AccountId, id: &Id<User>, patch: Object) -> Result<User> {
        let given = patch.get("password").and_then(|password| password.as_str()).map(str::to_owned);
        if patch.get("password").is_some_and(|password| !password.is_string()) {
            return Err(Error::invalid("password", "type", "password must be text of 12 characters or more"));
        }
        // Fields are judged before it matters what they are applied to.
        let known = NewUser { email: "a@b".to_owned(), ..NewUser::default() };
        overlay(&known, patch.clone())?.check(false, true)?;
        let password = hashed(account, given).await?;
        let now = self.clock.now();
        let mut conn = self.db.conn().await?;
        let updating = conn.transaction::<_, Error, _>(async |conn| {
            let mut row = repository::lock(conn, account, id).await?.ok_or_else(|| not_found(id))?;
            let current = NewUser {
                email: row.email.clone().unwrap_or_default(),
                password: None,
                name: row.name.clone(),
                role: row.role(),
                disabled: row.disabled,
            };
            let changed: NewUser = overlay(&current, patch)?;
            let is_external = row.issuer.is_some();
            changed.check(false, !is_external)?;
            let is_shut_out = changed.disabled && !row.disabled;
            let is_renewed = password.is_some() && !is_external;
            // Grants before keys before sessions, as everywhere.
            if is_shut_out || is_renewed {
                revoke_grants(conn, account, id, now).await?;
                end_log_ins(conn, account, id).await?;
            }
            if is_renewed {
                keys::disable_of_applications(conn, keys::OfApplications::User(id), now).await?;
            }
            if is_shut_out {
                // Who is let in again has their keys, and logs in again.
                keys::lock_keys(conn, account).await?;
                revoke_sessions(conn, account, id, now).await?;
            }
            if !is_external {
                row.email = Some(changed.email);
                row.password = password.or(row.password);
            }
            (row.name, row.disabled, row.edited_ms) = (changed.name, changed.disabled, now.0);
            changed.role.as_str().clone_into(&mut row.role);
            if !repository::update(conn, account, &row).await? {
                return Err(taken());
            }
            Ok(User::from(row))
        });
        let user = updating.await?;
        drop(conn);
        self.known.changed(id).await?;
        Ok(user)
    }

    async fn delete_user(&self, account: &AccountId, id: &Id<User>) -> Result<()> {
        let now = self.clock.now();
        let mut conn = self.db.conn().await?;
        let deleting = conn.transaction::<_, Error, _>(async |conn| {
            if !repository::delete(conn, account, id).await? {
                return Err(not_found(id));
            }
            // Keys before sessions, and all of them in one order, as everywhere.
            keys::lock_keys(conn, account).await?;
            keys::disable_of_user(conn, account, id, now).await?;
            revoke_sessions(conn, account, id, now).await
        });
        deleting.await?;
        drop(conn);
        self.known.changed(id).await
    }
}

async fn hashed(account: &AccountId, password: Option<String>) -> Result<Option<String>> {
    match password {
        Some(password) => Ok(Some(password::hash(account.as_str(), password.into()).await?)),
        None => Ok(None),
    }
}

/// The user whose address and password these are, of an account or of any; `None` for all others alike, and as slowly.
pub(crate) async fn sign_in(
    auth: &PgAuthService,
    account: Option<&AccountId>,
    email: &str,
    password: SecretString,
) -> Result<Option<UserRow>> {
    let users = repository::by_email(auth.db.read().await?.get(), account, email).await?;
    let hashes = users.iter().map(|user| user.password.clone().unwrap_or_default()).collect();
    let Some(right) = password::find(&email.to_lowercase(), password, hashes).await? else { return Ok(None) };
    Ok(users.into_iter().nth(right).filter(|user| !user.disabled))
}

/// The user of another issuer, made as a member when they come for the first time.
pub(crate) async fn external_user(
    auth: &PgAuthService,
    account: &AccountId,
    issuer: &str,
    subject: &str,
) -> Result<UserRow> {
    let find = async || repository::by_subject(auth.db.read().await?.get(), account, issuer, subject).await;
    if let Some(user) = find().await? {
        return Ok(user);
    }
    let now = auth.clock.now();
    // The subject is the id where it has the form of one.
    let id = match Id::<User>::parse(subject) {
        Ok(id) => id.into(),
        Err(_) => format!("user-{}", &sha256_hex(format!("{issuer} {subject}"))[..32]),
    };
    let row = |id: String| UserRow {
        id,
        account_id: account.as_str().to_owned(),
        email: None,
        password: None,
        issuer: Some(issuer.to_owned()),
        subject: Some(subject.to_owned()),
        name: String::new(),
        role: Role::Member.as_str().to_owned(),
        disabled: false,
        created_ms: now.0,
        edited_ms: now.0,
    };
    for id in [id, Id::<User>::generate().into()] {
        repository::insert(&mut *auth.db.conn().await?, &row(id)).await?;
        if let Some(user) = find().await? {
            return Ok(user);
        }
    }
    Err(Error::internal("a user of another issuer could not be made"))
}

fn taken() -> Error {
    Error::new(code::NAME_TAKEN, "There is a user with this e-mail address already.")
}

fn not_found(id: &str) -> Error {
    Error::not_found(Code::NOT_FOUND, "user", id)
}
