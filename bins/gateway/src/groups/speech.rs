//! `/v1/speech-to-text`

use std::sync::Arc;

use platform_core::{Error, Owner, Result};
use platform_http::{Answer, Group, Request, session};
use platform_speech::{NewTranscript, PgSpeech, Recording, SpeechService, TRANSCRIPT, code};
use serde::Deserialize;
use utoipa::ToSchema;

use crate::module::Module;

/// Recordings that become text; `most_bytes`: of one.
pub(crate) fn module(speech: &Arc<PgSpeech>, most_bytes: usize) -> Module {
    Module {
        groups: vec![group(speech.clone(), most_bytes)],
        resources: vec![(TRANSCRIPT, speech.clone())],
        ..Module::default()
    }
}

fn group(services: Arc<dyn SpeechService>, most_bytes: usize) -> Group {
    let mut group = Group::of("speech", "Recordings that become text", services)
        .naming("transcriptId", TRANSCRIPT)
        .also_at("/v1/speech-to-text", "/v1/whisper")
        .describing_both();
    let transcribe = group.post("/v1/speech-to-text", session("speech:write"), transcribe);
    transcribe.uploading(most_bytes).or_json().with(spec::transcribe).cancellable();
    group.get("/v1/speech-to-text/{transcriptId}", session("speech:read"), get).with(spec::get);
    group.build()
}

/// A recording, as a part or by its address.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
#[expect(dead_code, reason = "described for the document; the recording is read as a part")]
struct SpeechUpload {
    /// The recording: mp3, mp4, m4a, wav, webm, ogg or flac.
    #[schema(value_type = String, format = Binary, required = false)]
    audio: Option<()>,
    /// Its address instead, ours or another's.
    audio_url: Option<String>,
    /// What is spoken, as a code of ISO 639-1.
    language: Option<String>,
    /// The message that it belongs to.
    message_uid: Option<String>,
    /// The chat that it belongs to.
    chat_uid: Option<String>,
    /// The tenant whose it is.
    tenant_id: Option<String>,
    /// The end user whose it is.
    subtenant_id: Option<String>,
    /// With what is said when.
    verbose: Option<bool>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SpeechFields {
    audio_url: Option<String>,
    language: Option<String>,
    message_uid: Option<String>,
    chat_uid: Option<String>,
    tenant_id: Option<String>,
    subtenant_id: Option<String>,
    verbose: Option<bool>,
}

async fn transcribe(speech: Arc<dyn SpeechService>, request: Request) -> Result<Answer> {
    let fields: SpeechFields = request.form().await?;
    let part = request.parts.iter().any(|part| part.field == "audio").then(|| request.file("audio")).transpose()?;
    let url = fields.audio_url.filter(|url| !url.is_empty());
    let recording = match (part, url) {
        (Some(part), None) => {
            Recording::File { path: part.path().to_owned(), size: part.size, sha256: part.sha256.clone() }
        }
        (None, Some(url)) => Recording::Url(url),
        _ => {
            let message = "Send either a recording as the part `audio`, or its address as audioUrl.";
            return Err(Error::new(code::AUDIO_MISSING, message));
        }
    };
    let new = NewTranscript {
        recording,
        language: fields.language.filter(|language| !language.is_empty()),
        message_uid: fields.message_uid,
        chat_uid: fields.chat_uid,
        owner: Owner { tenant_id: fields.tenant_id, subtenant_id: fields.subtenant_id },
        verbose: fields.verbose.unwrap_or(false),
    };
    Answer::ok(&speech.transcribe(request.account()?, new, request.once.as_ref()).await?)
}

async fn get(speech: Arc<dyn SpeechService>, request: Request) -> Result<Answer> {
    Answer::ok(&speech.get(request.account()?, request.path("transcriptId")).await?)
}

mod spec {
    use platform_http::Operation;
    use platform_speech::Transcript;

    use super::SpeechUpload;

    pub fn transcribe() -> Operation {
        Operation::new("Turn a recording into text").form::<SpeechUpload>().answers::<Transcript>(200)
    }
    pub fn get() -> Operation {
        Operation::new("Read a transcript").answers::<Transcript>(200)
    }
}
