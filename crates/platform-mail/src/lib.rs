//! Mail to people, sent from durable runs.
//!
//! **Owns** no table and no endpoint. **Needs** `platform-jobs`, and an SMTP server from the settings; without
//! one nothing is sent.
//!
//! **Invariants**: what is handed over in a transaction is sent when that commits, however often the server is
//! away, for about a day; a message may arrive twice when a process dies between sending and noting it.
//!
//! ```no_run
//! # use platform_core::{AccountId, Result};
//! # use platform_db::Conn;
//! # use platform_mail::*;
//! # async fn example(mailer: &Mailer, conn: &mut Conn, account: &AccountId) -> Result<()> {
//! let mail = Mail { to: vec!["ann@example.com".to_owned()], subject: "Approve?".to_owned(), text: "…".to_owned() };
//! mailer.send_in(conn, account, mail).await?;
//! # Ok(()) }
//! ```

use std::time::Duration;

use async_trait::async_trait;
use lettre::{
    Address, AsyncSmtpTransport, AsyncTransport, Message, Tokio1Executor,
    message::{Mailbox, header::ContentType},
};
use platform_core::{AccountId, Error, Id, Result};
use platform_db::{Conn, Db};
use platform_jobs::{Run, When, Work, end_in, enqueue_in, is_held_in};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;
use tracing::warn;

const KIND: &str = "mail";
/// Pauses before a message is tried again; after the last it is given up.
const RETRY_DELAYS: [Duration; 6] = [
    Duration::from_secs(10),
    Duration::from_mins(1),
    Duration::from_mins(10),
    Duration::from_hours(1),
    Duration::from_hours(6),
    Duration::from_hours(18),
];

/// Whether a text is an e-mail address.
pub fn is_address(text: &str) -> bool {
    text.len() <= 254 && text.parse::<Address>().is_ok()
}

/// A message to people.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Mail {
    /// To whom; each gets a message of their own.
    pub to: Vec<String>,
    /// Subject.
    pub subject: String,
    /// Plain text.
    pub text: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct Letter {
    to: String,
    subject: String,
    text: String,
    tries: usize,
}

/// Hands mail over and sends it.
pub struct Mailer {
    db: Db,
    transport: Option<(AsyncSmtpTransport<Tokio1Executor>, Mailbox)>,
}

/// The server and the sender's address.
#[derive(Debug, Clone)]
pub struct MailConfig {
    /// `smtp://user:password@host:port` (with `?tls=required` for STARTTLS) or `smtps://…`.
    pub url: SecretString,
    /// Who it comes from.
    pub from: String,
}

impl Mailer {
    /// Without a configuration nothing is sent; a wrong one is told in one sentence.
    pub fn new(db: &Db, config: Option<&MailConfig>) -> std::result::Result<Self, String> {
        let transport = match config {
            None => None,
            Some(config) => {
                let from = config.from.parse::<Mailbox>();
                let from = from.map_err(|_| format!("PLATFORM_MAIL_FROM: `{}` is no address.", config.from))?;
                let transport = AsyncSmtpTransport::<Tokio1Executor>::from_url(config.url.expose_secret());
                let transport = transport.map_err(|error| format!("PLATFORM_SMTP_URL: {error}."))?;
                Some((transport.timeout(Some(Duration::from_secs(30))).build(), from))
            }
        };
        Ok(Self { db: db.clone(), transport })
    }

    /// Has mail sent when the caller's transaction commits. Whoever commits says so (`Jobs::announce`).
    pub async fn send_in(&self, conn: &mut Conn, account: &AccountId, mail: Mail) -> Result<()> {
        enum MailKind {}
        if self.transport.is_none() {
            return Ok(());
        }
        for to in mail.to {
            let letter = Letter { to, subject: mail.subject.clone(), text: mail.text.clone(), tries: 0 };
            let payload = serde_json::to_value(letter).map_err(Error::internal)?;
            let subject = String::from(Id::<MailKind>::generate());
            enqueue_in(conn, account, KIND, &subject, payload, When::After(Duration::ZERO)).await?;
        }
        Ok(())
    }

    async fn send(&self, letter: &Letter) -> std::result::Result<(), String> {
        let Some((transport, from)) = &self.transport else { return Ok(()) };
        let to = letter.to.parse::<Mailbox>().map_err(|error| error.to_string())?;
        let message = Message::builder().from(from.clone()).to(to).subject(&letter.subject);
        let message = message.header(ContentType::TEXT_PLAIN).body(letter.text.clone()).map_err(|e| e.to_string())?;
        transport.send(message).await.map(drop).map_err(|error| error.to_string())
    }
}

#[async_trait]
impl Work for Mailer {
    fn kind(&self) -> &'static str {
        KIND
    }

    async fn work(&self, run: &Run, _stop: &CancellationToken) -> Result<()> {
        use diesel_async::AsyncConnection;
        let mut letter: Letter = serde_json::from_value(run.payload.clone()).map_err(Error::internal)?;
        let again = match self.send(&letter).await {
            Ok(()) => None,
            Err(reason) => {
                let again = RETRY_DELAYS.get(letter.tries).copied();
                warn!(reason, tries = letter.tries + 1, given_up = again.is_none(), "Mail could not be sent.");
                again
            }
        };
        letter.tries += 1;
        let mut conn = self.db.conn().await?;
        conn.transaction::<_, Error, _>(async |conn| {
            if is_held_in(conn, run).await? {
                end_in(conn, run).await?;
                if let Some(pause) = again {
                    let payload = serde_json::to_value(&letter).map_err(Error::internal)?;
                    enqueue_in(conn, &run.account(), KIND, &run.subject, payload, When::After(pause)).await?;
                }
            }
            Ok(())
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::is_address;

    #[test]
    fn addresses_are_told_from_other_texts() {
        assert!(is_address("a.b+c@example.com"));
        assert!(!is_address("a@") && !is_address("no address") && !is_address("a@b@c") && !is_address("Bob <b@c.d>"));
    }
}
