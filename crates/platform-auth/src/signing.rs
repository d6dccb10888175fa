//! What the server signs with: made when needed, sealed at rest, the same for all processes.

use std::sync::{Arc, RwLock};

use aws_lc_rs::{
    encoding::AsDer,
    rand::{SecureRandom, SystemRandom},
    rsa::KeySize,
    signature::{Ed25519KeyPair, RsaKeyPair},
};
use base64::{Engine, engine::general_purpose::STANDARD};
use diesel::{prelude::*, sql_query};
use diesel_async::{AsyncConnection, RunQueryDsl};
use platform_core::{AccountId, Clock, Error, Id, Result, Timestamp};
use platform_db::{Conn, Db};
use platform_vault::{SecretLocation, Vault};
use secrecy::zeroize::Zeroizing;

use crate::schema::signing_keys;

const DAY_MS: i64 = 86_400_000;
/// A key signs so long; what it signed lives a day at the most, and is read until then.
const SIGNS_MS: i64 = 30 * DAY_MS;
const VERIFIES_MS: i64 = SIGNS_MS + DAY_MS;
/// Before the PKCS #1 of an RSA key of this size in its PKCS #8.
const PKCS8_HEADER: usize = 26;

/// How access tokens are signed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TokenAlgorithm {
    /// `EdDSA` over Ed25519.
    #[default]
    EdDsa,
    /// RSA with SHA-256, for clients that know nothing newer.
    Rs256,
}

/// What a key signs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Tenant sessions: 32 random bytes for HMAC.
    Session,
    /// Access tokens: a key pair for Ed25519, as PKCS #8, or for RSA, as PKCS #1.
    Access(TokenAlgorithm),
}

impl Purpose {
    fn as_str(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::Access(TokenAlgorithm::EdDsa) => "access",
            Self::Access(TokenAlgorithm::Rs256) => "access-rs256",
        }
    }

    fn generate(self) -> Result<Zeroizing<Vec<u8>>> {
        let (random, none) = (SystemRandom::new(), |_| Error::internal("the system has no randomness"));
        match self {
            Self::Session => {
                let mut bytes = Zeroizing::new(vec![0; 32]);
                random.fill(&mut bytes).map_err(none)?;
                Ok(bytes)
            }
            Self::Access(TokenAlgorithm::Rs256) => {
                let pair = RsaKeyPair::generate(KeySize::Rsa2048).map_err(none)?;
                let pkcs8 = pair.as_der().map_err(|_| Error::internal("an RSA key cannot be written down"))?;
                Ok(Zeroizing::new(pkcs8.as_ref()[PKCS8_HEADER..].to_vec()))
            }
            Self::Access(TokenAlgorithm::EdDsa) => {
                let pair = Ed25519KeyPair::generate_pkcs8v1(&random).map_err(none)?;
                Ok(Zeroizing::new(pair.as_ref().to_vec()))
            }
        }
    }
}

/// A key the server signs with.
pub(crate) struct SigningKey {
    pub id: String,
    purpose: String,
    pub secret: Zeroizing<Vec<u8>>,
    created: Timestamp,
}

/// All of them that are still of use.
pub(crate) struct SigningKeys {
    db: Db,
    vault: Arc<Vault>,
    clock: Arc<dyn Clock>,
    known: RwLock<Vec<Arc<SigningKey>>>,
}

impl SigningKeys {
    pub fn new(db: &Db, vault: Arc<Vault>, clock: Arc<dyn Clock>) -> Self {
        Self { db: db.clone(), vault, clock, known: RwLock::default() }
    }

    /// The key to sign with now.
    pub async fn current(&self, purpose: Purpose) -> Result<Arc<SigningKey>> {
        if let Some(key) = self.newest(purpose) {
            return Ok(key);
        }
        let mut conn = self.db.conn().await?;
        let keys = conn.transaction::<_, Error, _>(async |conn| {
            sql_query("SELECT pg_advisory_xact_lock(hashtextextended('signing_keys', 0))").execute(conn).await?;
            self.load(conn).await?;
            if self.newest(purpose).is_none() {
                self.make(conn, purpose).await?;
            }
            Ok(())
        });
        keys.await?;
        self.load(&mut conn).await?;
        self.newest(purpose).ok_or_else(|| Error::internal("a signing key was made and is not there"))
    }

    /// The key of that name, if it is still good.
    pub async fn find(&self, purpose: Purpose, id: &str) -> Result<Option<Arc<SigningKey>>> {
        if let Some(key) = self.named(purpose, id) {
            return Ok(Some(key));
        }
        // Another process may have made it a moment ago.
        self.load(&mut *self.db.conn().await?).await?;
        Ok(self.named(purpose, id))
    }

    /// All that verify.
    pub fn all(&self, purpose: Purpose) -> Vec<Arc<SigningKey>> {
        let since = self.clock.now().0 - VERIFIES_MS;
        let known = self.known.read().expect("lock");
        let good = known.iter().filter(|key| key.purpose == purpose.as_str() && key.created.0 > since);
        good.cloned().collect()
    }

    fn newest(&self, purpose: Purpose) -> Option<Arc<SigningKey>> {
        let since = self.clock.now().0 - SIGNS_MS;
        let known = self.known.read().expect("lock");
        let signs = known.iter().filter(|key| key.purpose == purpose.as_str() && key.created.0 > since);
        signs.max_by_key(|key| key.created).cloned()
    }

    fn named(&self, purpose: Purpose, id: &str) -> Option<Arc<SigningKey>> {
        let since = self.clock.now().0 - VERIFIES_MS;
        let known = self.known.read().expect("lock");
        let named = |key: &&Arc<SigningKey>| key.id == id && key.purpose == purpose.as_str() && key.created.0 > since;
        known.iter().find(named).cloned()
    }

    async fn load(&self, conn: &mut Conn) -> Result<()> {
        let now = self.clock.now();
        let rows: Vec<(String, String, String, i64)> = signing_keys::table
            .filter(signing_keys::created_ms.gt(now.0 - VERIFIES_MS))
            .select((signing_keys::id, signing_keys::purpose, signing_keys::sealed, signing_keys::created_ms))
            .load(conn)
            .await?;
        let open = |(id, purpose, sealed, created): (String, String, String, i64)| {
            let text = self.vault.open(&place(&server(), &id), &sealed)?;
            let secret = Zeroizing::new(STANDARD.decode(text.expose()).map_err(Error::internal)?);
            Ok(Arc::new(SigningKey { id, purpose, secret, created: Timestamp(created) }))
        };
        let keys = rows.into_iter().map(open).collect::<Result<Vec<_>>>()?;
        *self.known.write().expect("lock") = keys;
        Ok(())
    }

    async fn make(&self, conn: &mut Conn, purpose: Purpose) -> Result<()> {
        let now = self.clock.now();
        let id = String::from(Id::<SigningKey>::generate());
        let secret = Zeroizing::new(STANDARD.encode(&*purpose.generate()?));
        let old = signing_keys::created_ms.le(now.0 - VERIFIES_MS);
        diesel::delete(signing_keys::table.filter(old)).execute(conn).await?;
        diesel::insert_into(signing_keys::table)
            .values((
                signing_keys::id.eq(&id),
                signing_keys::purpose.eq(purpose.as_str()),
                signing_keys::sealed.eq(self.vault.seal(&place(&server(), &id), &secret)),
                signing_keys::created_ms.eq(now.0),
            ))
            .execute(conn)
            .await?;
        Ok(())
    }
}

/// Signing keys are of no account.
fn server() -> AccountId {
    AccountId::parse("server").expect("a good id")
}

fn place<'a>(account: &'a AccountId, row: &'a str) -> SecretLocation<'a> {
    SecretLocation { account, table: "signing_keys", column: "sealed", row }
}
