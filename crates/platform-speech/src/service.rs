use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use diesel_async::AsyncConnection;
use platform_access::{Kind, Place, Resources, check_owner};
use platform_conversation::Dictations;
use platform_core::{
    AccountId, Caller, Clock, Code, Error, FairPermit, FairSemaphore, Id, Money, Owner, Result, joined, millis,
    run_blocking, sha256_hex,
};
use platform_db::{Conn, Db, Idempotency};
use platform_egress::{Egress, EgressError};
use platform_files::{Content, NewFile, PgFileService};
use platform_runtime::{
    Audio, Budget, Catalog, ChildPool, Cost, Fault, Operation, Payer, SecondaryCall, Spender, Usage,
};
use tokio::time::{Instant, timeout_at};

use crate::{
    audio::{SUPPORTED, format},
    code, language,
    repository::{self, TranscriptRow},
    transcript::{NewTranscript, Recording, Transcript, TranscriptSegment},
};

/// Transcripts.
pub const TRANSCRIPT: Kind = Kind::placed("transcript");

/// Recordings that are heard at once, and of one account.
const AT_ONCE: (usize, usize) = (8, 3);
/// Recordings that are fetched from elsewhere at once, and of one account.
const FETCHED_AT_ONCE: (usize, usize) = (4, 2);
/// Recordings of one end user that are under way, so that the account's others find a place.
const OF_END_USER: usize = 2;
/// Of these, those that are fetched: an address that drips keeps no other of the account waiting.
const FETCHED_OF_END_USER: usize = 1;
/// The fewest and the most bytes that a second of a recording takes.
const SPARSEST: u64 = 250;
const DENSEST: u64 = 256 << 10;
/// The same of one that is not compressed, or has pictures.
const DENSEST_OTHER: u64 = 8 << 20;
/// What it takes of one that does not say how long it is: 64 kbit.
const USUAL: u64 = 8000;

/// Recordings that become text.
#[async_trait]
pub trait SpeechService: Send + Sync {
    /// Turns a recording into text, and keeps both. `SPEECH_NOT_CONFIGURED`, `AUDIO_UNSUPPORTED_FORMAT`,
    /// `NO_SPEECH_DETECTED`.
    async fn transcribe(
        &self,
        account: &AccountId,
        new: NewTranscript,
        once: Option<&Idempotency>,
    ) -> Result<Transcript>;
    /// One that was made. `TRANSCRIPT_NOT_FOUND`.
    async fn get(&self, account: &AccountId, id: &str) -> Result<Transcript>;
}

/// What speech needs of others.
pub struct SpeechNeeds {
    /// Where transcripts are kept.
    pub db: Db,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Where recordings are kept.
    pub files: Arc<PgFileService>,
    /// To recordings at addresses.
    pub egress: Egress,
    /// Child processes that read containers.
    pub children: Arc<ChildPool>,
    /// What models there are.
    pub catalog: Arc<dyn Catalog>,
    /// Who lets them be asked.
    pub budget: Arc<dyn Budget>,
    /// Longest time from a recording to its text.
    pub timeout: Duration,
}

/// Speech on PostgreSQL.
pub struct PgSpeech {
    needs: SpeechNeeds,
    places: FairSemaphore,
    fetching: FairSemaphore,
    end_users: FairSemaphore<String>,
    fetching_end_users: FairSemaphore<String>,
}

/// A recording from elsewhere, with the places that it takes until it has one to be heard.
struct Fetched {
    bytes: Bytes,
    _places: (Option<FairPermit<String>>, FairPermit),
}

impl PgSpeech {
    /// Nobody is heard yet.
    pub fn new(needs: SpeechNeeds) -> Self {
        Self {
            needs,
            places: FairSemaphore::new(AT_ONCE.0, AT_ONCE.1),
            fetching: FairSemaphore::new(FETCHED_AT_ONCE.0, FETCHED_AT_ONCE.1),
            end_users: FairSemaphore::new(0, OF_END_USER),
            fetching_end_users: FairSemaphore::new(0, FETCHED_OF_END_USER),
        }
    }

    /// A recording that has to be fetched from elsewhere.
    async fn fetched(
        &self,
        account: &AccountId,
        end_user: Option<&String>,
        recording: &Recording,
    ) -> Result<Option<Fetched>> {
        let SpeechNeeds { files, egress, .. } = &self.needs;
        let Recording::Url(url) = recording else { return Ok(None) };
        if files.token_of(url).is_some() {
            return Ok(None);
        }
        let of_end_user = match end_user {
            Some(end_user) => Some(self.fetching_end_users.acquire(end_user).await),
            None => None,
        };
        let place = self.fetching.acquire(account).await;
        let fetched = egress.of(account).get(url).await.map_err(|error| match error {
            EgressError::Timeout(reason) => Error::new(Code::UPSTREAM_TIMEOUT, format!("audioUrl: {reason}")),
            EgressError::TooLarge(reason) => {
                let error = Error::new(Code::PAYLOAD_TOO_LARGE, format!("audioUrl: {reason}"));
                error.with("limitBytes", egress.most_bytes())
            }
            other => other.into_error("audioUrl"),
        })?;
        if !(200..300).contains(&fetched.status) {
            let message = format!("audioUrl: the address answers {}", fetched.status);
            return Err(Error::invalid("audioUrl", "format", message));
        }
        Ok(Some(Fetched { bytes: fetched.bytes, _places: (of_end_user, place) }))
    }

    /// The bytes of a recording that is here.
    async fn kept(&self, account: &AccountId, owner: &Owner, recording: &Recording) -> Result<Bytes> {
        let files = &self.needs.files;
        match recording {
            Recording::File { path, .. } => {
                let path = path.clone();
                run_blocking(move || std::fs::read(&path).map(Bytes::from).map_err(Error::internal)).await
            }
            Recording::Url(url) => {
                let file = files.find_for(account, owner, &files.token_of(url).unwrap_or_default()).await?;
                files.bytes(account, &file, u64::MAX).await
            }
        }
    }

    /// How long a recording is, as far as its size allows that; by its size alone where its container says nothing.
    async fn duration(&self, account: &AccountId, bytes: &Bytes, extension: &str) -> Duration {
        let children = &self.needs.children;
        let place = children.place(account).await;
        let millis = children.read::<Option<u64>>(&place, "audio", bytes).await.ok().flatten();
        let size = bytes.len() as u64 * 1000;
        let densest = if matches!(extension, "mp3" | "m4a" | "ogg") { DENSEST } else { DENSEST_OTHER };
        Duration::from_millis(millis.map_or(size / USUAL, |millis| millis.clamp(size / densest, size / SPARSEST)))
    }
}

/// Why an engine gives no text; what it does not take of one recording it takes of others.
fn refused(fault: &Fault) -> Error {
    let Some(status @ (400 | 413 | 415 | 422)) = fault.status else { return Error::from(fault) };
    let message = format!(
        "The speech engine does not take this recording (it answers {status}): it may be damaged, too short or too long. \
         Send one of {}.",
        SUPPORTED.join(", ")
    );
    Error::new(code::AUDIO_UNSUPPORTED_FORMAT, message).with("supported", SUPPORTED)
}

fn missing(id: &str) -> Error {
    Error::not_found(code::TRANSCRIPT_NOT_FOUND, "transcript", id)
}

#[async_trait]
impl SpeechService for PgSpeech {
    async fn transcribe(
        &self,
        account: &AccountId,
        mut new: NewTranscript,
        once: Option<&Idempotency>,
    ) -> Result<Transcript> {
        new.check()?;
        let SpeechNeeds { db, clock, files, catalog, budget, .. } = &self.needs;
        let Some(engine) = catalog.transcriber() else {
            let message = "No speech engine is configured: set PLATFORM_SPEECH_URL to a transcription server.";
            return Err(Error::new(code::SPEECH_NOT_CONFIGURED, message));
        };
        let NewTranscript { recording, language, message_uid, chat_uid, owner, verbose } = new;
        let until = Instant::now() + self.needs.timeout;
        let late = |_| Error::new(Code::UPSTREAM_TIMEOUT, "The recording was not heard in time; send a shorter one.");
        let subtenant = owner.subtenant_id.as_deref().unwrap_or_default();
        let end_user = owner.tenant_id.as_deref().map(|tenant| joined([account.as_str(), tenant, subtenant]));
        let _of_end_user = match &end_user {
            Some(end_user) => Some(timeout_at(until, self.end_users.acquire(end_user)).await.map_err(late)?),
            None => None,
        };
        let fetched = timeout_at(until, self.fetched(account, end_user.as_ref(), &recording)).await.map_err(late)??;
        let _place = timeout_at(until, self.places.acquire(account)).await.map_err(late)?;
        let bytes = match fetched {
            Some(fetched) => fetched.bytes,
            None => timeout_at(until, self.kept(account, &owner, &recording)).await.map_err(late)??,
        };
        let Some((media_type, extension)) = format(&bytes) else {
            let message = format!("This is no recording that can be read; send one of {}.", SUPPORTED.join(", "));
            return Err(Error::new(code::AUDIO_UNSUPPORTED_FORMAT, message).with("supported", SUPPORTED));
        };
        let name = format!("recording.{extension}");
        let duration = timeout_at(until, self.duration(account, &bytes, extension)).await.map_err(late)?;
        let payer = Payer {
            account: account.clone(),
            tenant_id: owner.tenant_id.clone(),
            subtenant_id: owner.subtenant_id.clone(),
            project_id: None,
            spender: Spender::Service("speech"),
        };
        let audio = Audio {
            name: name.clone(),
            media_type: media_type.to_owned(),
            bytes: bytes.clone(),
            duration: Some(duration),
            language: language.clone(),
        };
        let model = budget.model(&payer, None);
        let heard = timeout_at(until, model.transcribe(&audio)).await.map_err(late)?;
        let heard = heard.map_err(|fault| refused(&fault))?;
        if heard.text.is_empty() {
            return Err(Error::new(code::NO_SPEECH_DETECTED, "Nobody speaks in this recording."));
        }
        let (size, sha256) = match &recording {
            Recording::File { size, sha256, .. } => (*size, sha256.clone()),
            Recording::Url(_) => (bytes.len() as u64, sha256_hex(&bytes)),
        };
        let content = match recording {
            Recording::File { path, .. } => Content::File(path),
            Recording::Url(_) => Content::Bytes(bytes),
        };
        let file = NewFile { name, content, size, sha256, ttl_seconds: None, owner: owner.clone(), kept_for: None };
        let file = files.store(account, file).await?;
        let segments = heard.segments.into_iter().map(|segment| TranscriptSegment {
            start_ms: millis(segment.start),
            end_ms: millis(segment.end),
            text: segment.text.replace('\0', ""),
        });
        let segments = serde_json::to_value(segments.collect::<Vec<_>>()).map_err(Error::internal)?;
        let duration_ms = millis(heard.duration.unwrap_or(duration));
        let now = clock.now();
        let mut conn = db.conn().await?;
        conn.transaction::<_, Error, _>(async |conn| {
            let file = files.create_in(conn, file).await?;
            let row = TranscriptRow {
                account_id: account.as_str().to_owned(),
                id: Id::<Transcript>::generate().into(),
                text: heard.text.replace('\0', ""),
                language,
                detected_language: heard.language.filter(|code| language::is_known(code)),
                audio_url: file.download_url,
                model: engine.llm.to_string(),
                duration_ms,
                segments,
                has_segments: verbose,
                message_uid,
                chat_uid,
                tenant_id: owner.tenant_id,
                subtenant_id: owner.subtenant_id,
                created_ms: now.0,
                uncharged: Some(heard.cost.total_cost.nanos()),
            };
            repository::insert(conn, &row).await?;
            let transcript = row.shown()?;
            Idempotency::store_if(once, conn, 200, &transcript).await?;
            Ok(transcript)
        })
        .await
    }

    async fn get(&self, account: &AccountId, id: &str) -> Result<Transcript> {
        let row = repository::find(self.needs.db.read().await?.get(), account, id).await?;
        row.ok_or_else(|| missing(id))?.shown()
    }
}

#[async_trait]
impl Resources for PgSpeech {
    async fn place(&self, account: &AccountId, id: &str) -> Result<Option<Place>> {
        let row = repository::find(self.needs.db.read().await?.get(), account, id).await?;
        Ok(row.map(|row| row.place()))
    }
}

#[async_trait]
impl Dictations for PgSpeech {
    async fn text(&self, caller: &Caller, owner: &Owner, id: &str) -> Result<String> {
        let row = repository::find(self.needs.db.read().await?.get(), &caller.account, id).await?;
        let row = row.ok_or_else(|| missing(id))?;
        // One of no end user may be said for each of its tenant.
        let of = Owner { subtenant_id: row.subtenant_id.clone().or_else(|| owner.subtenant_id.clone()), ..row.owner() };
        match caller.session() {
            Some(session) => check_owner(session, Some(&row.place()))?,
            None if !owner.may_use(&of) => return Err(missing(id)),
            None => {}
        }
        Ok(row.text)
    }

    async fn take_cost_in(&self, conn: &mut Conn, account: &AccountId, id: &str) -> Result<Option<SecondaryCall>> {
        let taken = repository::take_cost(conn, account, id).await?;
        Ok(taken.map(|nanos| {
            let total = Money::from_nanos(nanos);
            let cost = Cost { input_cost: total, total_cost: total, ..Cost::default() };
            SecondaryCall { operation: Operation::Transcription, usage: Usage::default(), cost }
        }))
    }
}
