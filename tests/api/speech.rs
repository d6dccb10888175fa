//! `/v1/speech-to-text`: recordings become text, which is kept with them and can be said in chats.

use std::time::Duration;

use futures_util::future::{join, join_all, join5};
use platform_testing::{FakeModelServer, FakeToolServer, Reply, Script, TestApp, TestDb, sha256_hex};
use reqwest::{
    Method, StatusCode,
    multipart::{Form, Part},
};
use serde_json::json;

use crate::{
    access::session,
    support::{PROGRAM, app, app_with, eventually, finished_of, other_account, text},
    uploads::upload,
};

const WAV: &[u8] = include_bytes!("speech/hello.wav");
const OGG: &[u8] = include_bytes!("speech/hello.ogg");
const FLAC: &[u8] = include_bytes!("speech/hello.flac");
const MP3: &[u8] = include_bytes!("speech/hello.mp3");
const WEBM: &[u8] = include_bytes!("speech/hello.webm");
/// As a browser records it: it does not say how long it is.
const LIVE: &[u8] = include_bytes!("speech/live.webm");
const M4A: &[u8] = include_bytes!("speech/hello.m4a");
const MP4: &[u8] = include_bytes!("speech/hello.mp4");
/// A program stream of MPEG in which nothing says how long it is.
const MPEG: &[u8] = &{
    let mut bytes = [0; 16_000];
    (bytes[2], bytes[3]) = (1, 0xba);
    bytes
};

fn recording(bytes: &'static [u8]) -> Form {
    let part = Part::bytes(bytes).file_name("recording.webm").mime_str("audio/webm;codecs=opus").expect("a type");
    Form::new().part("audio", part)
}

async fn hear(app: &TestApp, form: Form) -> Reply {
    app.send(app.request(Method::POST, "/whisper").multipart(form)).await
}

/// The platform with a transcription server that costs a cent a minute.
async fn app_that_hears(more: &[(&str, &str)]) -> (TestApp, FakeModelServer, TestDb) {
    let (model, db) = (FakeModelServer::start(), TestDb::new().await);
    let providers =
        std::env::temp_dir().join(format!("providers-speech-{}-{}.yaml", std::process::id(), db.url().len()));
    let base = format!("{}/v1", model.url());
    let file = format!(
        "providers: [{{name: ears, baseUrl: '{base}', models: [{{llm: large, transcriptionPricePerMinute: 0.01}}]}}]"
    );
    std::fs::write(&providers, file).expect("written");
    let url = format!("{base}/audio/transcriptions");
    let providers = providers.to_string_lossy().into_owned();
    let mut settings = vec![
        ("PLATFORM_SPEECH_URL", url.as_str()),
        ("PLATFORM_SPEECH_API_KEY", "sk-ears"),
        ("PLATFORM_SPEECH_MODEL", "large"),
        ("PLATFORM_PROVIDERS_FILE", &providers),
        ("PLATFORM_DEFAULT_PROVIDER", "demo"),
        ("PLATFORM_EGRESS_ALLOW", "127.0.0.0/8"),
        ("PLATFORM_MODEL_ATTEMPTS", "1"),
    ];
    settings.extend_from_slice(more);
    let app = TestApp::start(PROGRAM, &db, &settings);
    (app, model, db)
}

#[tokio::test]
async fn a_voice_message_from_a_chat_widget_becomes_a_chat_message_in_two_calls() {
    let (app, model, _db) = app_that_hears(&[]).await;
    let widget = json!({"name": "Widget", "identifier": "widget", "accessConfiguration": {"externalAccess": true}});
    assert_eq!(app.post("/assistants", widget).await.status, StatusCode::CREATED);
    // The widget has the session of an end user, nothing else.
    let own = session(&app, json!({"tenantId": "acme", "subtenantId": "ann"})).await;
    let as_own = |method: Method, path: &str| app.anonymous(method, &format!("/v1{path}")).bearer_auth(&own);
    let recorded = recording(OGG).text("chatUid", "voice").text("messageUid", "said").text("verbose", "true");
    let heard = app.send(as_own(Method::POST, "/whisper").multipart(recorded)).await;
    assert_eq!(heard.status, StatusCode::OK, "{}", heard.body);
    let transcript = heard.body;
    for (field, value) in [
        ("text", json!("Hello there.")),
        ("language", json!("en")),
        ("detectedLanguage", json!("en")),
        ("model", json!("large")),
        ("durationMs", json!(1500)),
        ("chatUid", json!("voice")),
        ("messageUid", json!("said")),
        ("tenantId", json!("acme")),
    ] {
        assert_eq!(transcript[field], value, "{field}");
    }
    assert!(transcript["creationTimestampMs"].is_i64(), "{transcript}");
    assert_eq!(transcript["segments"][1], json!({"startMs": 700, "endMs": 1500, "text": "there."}));
    let asked = &model.recorded()[0];
    assert_eq!((asked.credential.as_str(), &asked.body["model"]), ("Bearer sk-ears", &json!("large")));
    assert_eq!((&asked.body["response_format"], asked.body.get("language")), (&json!("verbose_json"), None));

    let said = json!({"transcriptId": transcript["transcriptId"], "chatUid": "voice", "skipSummarization": true});
    let sent = app.send(as_own(Method::POST, "/assistants/widget/messages").json(&said)).await;
    assert_eq!(sent.status, StatusCode::OK, "{}", sent.body);
    for (tenant, user) in [("acme", "bob"), ("globex", "ann")] {
        let other = session(&app, json!({"tenantId": tenant, "subtenantId": user})).await;
        let stolen = app.anonymous(Method::POST, "/v1/assistants/widget/messages").bearer_auth(other);
        let stolen = app.send(stolen.json(&json!({"transcriptId": transcript["transcriptId"]}))).await;
        assert!(stolen.status.is_client_error(), "{user} of {tenant}: {}", stolen.body);
        assert!(!stolen.body.to_string().contains("Hello there"), "{}", stolen.body);
        let other = session(&app, json!({"tenantId": tenant, "subtenantId": user})).await;
        let stolen = app.anonymous(Method::POST, "/v1/speech-to-text").bearer_auth(other);
        let stolen = app.send(stolen.json(&json!({"audioUrl": transcript["audioUrl"]}))).await;
        assert_eq!(stolen.error(), "FILE_NOT_FOUND", "{user} of {tenant}");
        let read = session(&app, json!({"tenantId": tenant, "subtenantId": user})).await;
        let read =
            app.anonymous(Method::GET, &format!("/v1/whisper/{}", text(&transcript["transcriptId"]))).bearer_auth(read);
        assert_eq!(app.send(read).await.error(), "NOT_OWNER", "{user} of {tenant}");
    }
    let chat = app.get("/assistants/widget/chats/voice").await.body;
    let message = &chat["chatContent"][0];
    let counted = &chat["tokenUsage"]["secondaryByOperation"]["transcription"];
    assert_eq!((&counted["calls"], &counted["cost"]), (&json!(1), &json!(0.00025)), "{chat}");
    assert_eq!(message["content"]["message"], "Hello there.");
    assert_eq!(
        (&message["contentSource"], &message["transcriptId"]),
        (&json!("dictation"), &transcript["transcriptId"])
    );
    assert_eq!(chat["chatContent"][1]["content"]["message"], "Demo reply: Hello there.");

    // It is read again later, and played from its address, in ranges.
    let again = app.get(&format!("/whisper/{}", text(&transcript["transcriptId"]))).await;
    assert_eq!((again.status, &again.body), (StatusCode::OK, &transcript));
    let url = text(&transcript["audioUrl"]);
    let played = app.anonymous(Method::GET, &url[url.find("/f/").expect("ours")..]).header("range", "bytes=0-3");
    let played = played.send().await.expect("an answer");
    assert_eq!(played.status(), StatusCode::PARTIAL_CONTENT);
    assert_eq!(played.headers()["content-type"], "audio/ogg");
    assert_eq!(played.bytes().await.expect("bytes"), OGG[..4]);
    // Said again, it is counted no second time.
    let again = json!({"transcriptId": transcript["transcriptId"], "chatUid": "voice", "skipSummarization": true});
    assert_eq!(app.send(as_own(Method::POST, "/assistants/widget/messages").json(&again)).await.status, StatusCode::OK);
    let usage = app.get("/assistants/widget/chats/voice").await.body["tokenUsage"].clone();
    assert_eq!(usage["secondaryByOperation"]["transcription"]["calls"], 1, "{usage}");
    // Whoever changes the text before it is said says what they wrote.
    let edited = json!({"message": "Hello, Ann.", "transcriptId": transcript["transcriptId"], "chatUid": "edited"});
    let sent = app.send(as_own(Method::POST, "/assistants/widget/messages?async=true").json(&edited)).await;
    assert!(sent.status.is_success(), "{}", sent.body);
    let said = finished_of(&app, "widget", "edited").await["chatContent"][0].clone();
    assert_eq!((&said["content"]["message"], &said["contentSource"]), (&json!("Hello, Ann."), &json!("dictation")));
    assert_eq!(said["transcriptId"], transcript["transcriptId"]);
    // What an end user dictated is said for no other of their tenant, neither in a new chat nor in one that is there.
    let of_ann = hear(&app, recording(WAV).text("tenantId", "shared").text("subtenantId", "ann")).await.body;
    let said_for = async |user: &str, chat: &str| {
        let body =
            json!({"transcriptId": of_ann["transcriptId"], "tenantId": "shared", "subtenantId": user, "chatUid": chat});
        app.post("/assistants/default/messages", body).await
    };
    assert_eq!(said_for("bob", "of-bob").await.error(), "TRANSCRIPT_NOT_FOUND");
    assert_eq!(said_for("ann", "of-ann").await.status, StatusCode::OK);
    let begun = json!({"message": "Hi", "tenantId": "shared", "subtenantId": "bob", "chatUid": "of-bob"});
    assert_eq!(app.post("/assistants/default/messages", begun).await.status, StatusCode::OK);
    let without_user = json!({"transcriptId": of_ann["transcriptId"], "tenantId": "shared", "chatUid": "of-bob"});
    assert_eq!(app.post("/assistants/default/messages", without_user).await.error(), "TRANSCRIPT_NOT_FOUND");
    let missing = json!({"transcriptId": "none"});
    assert_eq!(app.post("/assistants/default/messages", missing).await.error(), "TRANSCRIPT_NOT_FOUND");
    assert_eq!(app.get("/speech-to-text/none").await.error(), "TRANSCRIPT_NOT_FOUND");
}

#[tokio::test]
async fn recordings_are_told_by_their_content_and_all_that_is_wrong_with_one_has_a_name() {
    let (app, model, _db) = app_that_hears(&[]).await;
    for (bytes, kind, extension) in [
        (WAV, "audio/wav", "wav"),
        (OGG, "audio/ogg", "ogg"),
        (FLAC, "audio/flac", "flac"),
        (MP3, "audio/mpeg", "mp3"),
        (WEBM, "audio/webm", "webm"),
        (LIVE, "audio/webm", "webm"),
        (M4A, "audio/mp4", "m4a"),
        (MP4, "audio/mp4", "mp4"),
    ] {
        let heard = hear(&app, recording(bytes).text("language", "DE")).await;
        assert_eq!(heard.status, StatusCode::OK, "{kind}: {}", heard.body);
        assert!(heard.body.get("segments").is_none(), "{kind}");
        let languages = (&heard.body["language"], &heard.body["detectedLanguage"]);
        assert_eq!(languages, (&json!("de"), &json!("en")), "what is given, and what was heard");
        let asked = model.recorded().last().expect("a call").body.clone();
        assert_eq!(asked["language"], "de", "{kind}");
        let file = json!({"name": format!("recording.{extension}"), "type": kind, "sha256": sha256_hex(bytes)});
        assert_eq!(asked["file"], file, "as the engine gets it");
        let kept = reqwest::get(text(&heard.body["audioUrl"])).await.expect("an answer");
        assert_eq!(kept.bytes().await.expect("bytes"), bytes, "{kind}");
    }
    let calls = model.recorded().len();
    let once = async || {
        let request = app.request(Method::POST, "/whisper").header("Idempotency-Key", "heard");
        app.send(request.multipart(recording(WAV))).await.body["transcriptId"].clone()
    };
    assert_eq!(once().await, once().await);
    assert_eq!(model.recorded().len(), calls + 1, "who asks again is told again");
    let calls = calls + 1;
    let large = Part::bytes([WAV, &vec![0; 25 << 20]].concat()).file_name("recording.wav");
    for (form, status, code) in [
        (Form::new().part("audio", large), 413, "PAYLOAD_TOO_LARGE"),
        (recording(b"%PDF-1.4 no recording"), 400, "AUDIO_UNSUPPORTED_FORMAT"),
        (Form::new().text("language", "en"), 400, "AUDIO_MISSING"),
        (recording(WAV).text("audioUrl", "https://a.example/a.wav"), 400, "AUDIO_MISSING"),
        (recording(WAV).text("language", "english"), 400, "VALIDATION_ERROR"),
        (recording(WAV).text("language", "xx"), 400, "VALIDATION_ERROR"),
        (recording(WAV).text("messageUid", "x".repeat(65)), 400, "VALIDATION_ERROR"),
        (Form::new().text("audioUrl", "http://10.0.0.1/a.wav"), 400, "URL_NOT_ALLOWED"),
    ] {
        let refused = hear(&app, form).await;
        assert_eq!((refused.status.as_u16(), refused.error()), (status, code), "{}", refused.body);
    }
    let wrong = hear(&app, recording(b"hello")).await;
    assert!(wrong.body["details"]["supported"].as_array().expect("a list").contains(&json!("webm")), "{}", wrong.body);
    assert_eq!(model.recorded().len(), calls, "nobody was asked");
    for silence in [&[][..], &["[BLANK_AUDIO]"]] {
        model.script([Script::words(silence)]);
        assert_eq!(hear(&app, recording(WAV)).await.error(), "NO_SPEECH_DETECTED", "{silence:?}");
    }
    model.script([Script::refusal(503)]);
    let away = hear(&app, recording(WAV)).await;
    assert_eq!((away.status, away.error()), (StatusCode::BAD_GATEWAY, "UPSTREAM_ERROR"));
    for status in [400, 413, 415, 422] {
        model.script([Script::refusal(status)]);
        assert_eq!(hear(&app, recording(WAV)).await.error(), "AUDIO_UNSUPPORTED_FORMAT", "{status}");
    }
    // Engines answer 500 to one damaged recording: others are heard all the same.
    for _ in 0..12 {
        model.script([Script::refusal(500)]);
        assert_eq!(hear(&app, recording(WAV)).await.error(), "UPSTREAM_ERROR");
    }
    assert_eq!(hear(&app, recording(WAV)).await.status, StatusCode::OK);

    let (hasty, silent, _hasty_db) = app_that_hears(&[("PLATFORM_SPEECH_TIMEOUT", "3s")]).await;
    silent.hold();
    session(&hasty, json!({"tenantId": "acme"})).await;
    let late = hear(&hasty, recording(WAV).text("tenantId", "acme")).await;
    assert_eq!((late.status, late.error()), (StatusCode::GATEWAY_TIMEOUT, "UPSTREAM_TIMEOUT"));
    // The engine has it all the same: 966 ms, as the container says.
    let charged = async || {
        let costs = hasty.get("/tenants/acme/costs").await.body;
        (costs[0]["secondaryCost"] == json!(0.000_161)).then_some(())
    };
    eventually("what was broken off is charged", charged).await;

    // At an address: of another, and one of ours; also as JSON.
    let server = FakeToolServer::start();
    let none = json!({"audioUrl": format!("{}/echo", server.url())});
    assert_eq!(app.post("/speech-to-text", none).await.error(), "AUDIO_UNSUPPORTED_FORMAT");
    server.serve("/a.wav", "text/html", WAV);
    let heard = app.post("/speech-to-text", json!({"audioUrl": format!("{}/a.wav", server.url())})).await;
    assert_eq!((heard.status, &heard.body["text"]), (StatusCode::OK, &json!("Hello there.")), "{}", heard.body);
    let form = Form::new().text("audioUrl", format!("{}/a.wav", server.url()));
    assert_eq!(hear(&app, form).await.body["text"], "Hello there.");
    let inner = json!({"audioUrl": format!("{}/to?http://10.0.0.1/a.wav", server.url())});
    assert_eq!(app.post("/speech-to-text", inner).await.error(), "URL_NOT_ALLOWED");
    let kept = text(&heard.body["audioUrl"]);
    assert!(kept.starts_with(app.url()), "it is kept here: {kept}");
    let kept = reqwest::get(&kept).await.expect("an answer").bytes().await.expect("bytes");
    assert_eq!(kept, WAV);
    let large = json!({"audioUrl": format!("{}/big/{}", server.url(), 26 << 20)});
    let refused = app.post("/speech-to-text", large).await;
    assert_eq!((refused.status.as_u16(), refused.error()), (413, "PAYLOAD_TOO_LARGE"), "{}", refused.body);
    let file = upload(&app, "a.wav", WAV).await;
    let heard = app.post("/speech-to-text", json!({"audioUrl": file["downloadUrl"], "verbose": true})).await;
    assert_eq!((heard.status, &heard.body["text"]), (StatusCode::OK, &json!("Hello there.")), "{}", heard.body);
    assert_ne!(heard.body["audioUrl"], file["downloadUrl"], "it has a recording of its own");
}

#[tokio::test]
async fn transcripts_of_a_tenant_are_its_own_and_count_toward_its_quota() {
    let (app, model, _db) = app_that_hears(&[]).await;
    let (acme, globex) =
        (session(&app, json!({"tenantId": "acme"})).await, session(&app, json!({"tenantId": "globex"})).await);
    let ask = async |token: &str, form: Form| {
        let request = app.anonymous(Method::POST, "/v1/speech-to-text").bearer_auth(token);
        app.send(request.multipart(form)).await
    };
    let heard = ask(&acme, recording(WAV)).await;
    assert_eq!((heard.status, &heard.body["tenantId"]), (StatusCode::OK, &json!("acme")), "{}", heard.body);
    assert_eq!(ask(&acme, recording(WAV).text("tenantId", "globex")).await.error(), "TENANT_MISMATCH");
    let id = text(&heard.body["transcriptId"]);
    let read = async |token: &str| {
        app.send(app.anonymous(Method::GET, &format!("/v1/speech-to-text/{id}")).bearer_auth(token)).await
    };
    assert_eq!(read(&acme).await.status, StatusCode::OK);
    let other = read(&globex).await;
    assert_eq!((other.status, other.error()), (StatusCode::FORBIDDEN, "NOT_OWNER"));
    let dictate = |tenant: &str| json!({"transcriptId": id, "tenantId": tenant});
    assert_eq!(app.post("/assistants/default/messages", dictate("globex")).await.error(), "TRANSCRIPT_NOT_FOUND");
    assert_eq!(app.post("/assistants/default/messages", dictate("acme")).await.status, StatusCode::OK);
    // A second and a half at a cent a minute.
    let costs = app.get("/tenants/acme/costs").await.body;
    assert_eq!(costs[0]["secondaryCost"], json!(0.00025), "{costs}");
    assert_eq!(model.recorded().len(), 1);
    let rules = json!([{"scope": "tenant", "metric": "cost", "windowUnit": "month", "limit": 0.0002}]);
    let tier = json!({"tierId": "tight", "name": "Tight", "rules": rules, "isDefault": true});
    let made = app.post("/tenant-admin/tiers", tier).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.body);
    assert_eq!(ask(&acme, recording(WAV)).await.status, StatusCode::OK, "what is used from now on counts");
    let refused = ask(&acme, recording(WAV)).await;
    assert_eq!((refused.status, refused.error()), (StatusCode::TOO_MANY_REQUESTS, "TENANT_LIMIT_EXCEEDED"));
    assert_eq!(model.recorded().len(), 2, "nobody was asked");
    // What is being heard counts with what it will cost: two of 966 ms leave nothing of the quota.
    model.hold();
    let mut users = Vec::new();
    for user in ["ann", "bob", "cid"] {
        users.push(session(&app, json!({"tenantId": "globex", "subtenantId": user})).await);
    }
    let third = async {
        model.called(4).await;
        let refused = ask(&users[2], recording(WAV)).await;
        model.let_go(9);
        refused.status
    };
    let both = join(ask(&users[0], recording(WAV)), ask(&users[1], recording(WAV)));
    let ((one, other), third) = join(both, third).await;
    let statuses = [one.status, other.status, third].map(|status| status.as_u16());
    assert_eq!(statuses, [200, 200, 429]);
}

#[tokio::test]
async fn one_end_user_and_one_account_have_their_share_of_what_is_fetched_and_heard() {
    let (app, model, db) = app_that_hears(&[("PLATFORM_SPEECH_MODEL", "gpt-4o-transcribe")]).await;
    let server = FakeToolServer::start();
    server.serve("/held/a.wav", "audio/wav", WAV);
    server.serve("/a.wav", "audio/wav", WAV);
    let (ann, bob) = (
        session(&app, json!({"tenantId": "acme", "subtenantId": "ann"})).await,
        session(&app, json!({"tenantId": "acme", "subtenantId": "bob"})).await,
    );
    let fetch = async |token: &str, path: &str| {
        let request = app.anonymous(Method::POST, "/v1/speech-to-text").bearer_auth(token);
        app.send(request.json(&json!({"audioUrl": format!("{}{path}", server.url())}))).await.status
    };
    server.hold();
    let held = join(fetch(&ann, "/held/a.wav"), fetch(&ann, "/held/a.wav"));
    let other = async {
        server.called(1).await;
        let heard = fetch(&bob, "/a.wav").await;
        server.let_go();
        heard
    };
    assert_eq!(join(held, other).await, ((StatusCode::OK, StatusCode::OK), StatusCode::OK));
    let asked = model.recorded().last().expect("a call").body["response_format"].clone();
    assert_eq!(asked, "json", "it knows of no segments");

    model.hold();
    let stranger = other_account(&db).await;
    let hear = async |token: &str, language: &'static str| {
        let request = app.anonymous(Method::POST, "/v1/speech-to-text").bearer_auth(token);
        app.send(request.multipart(recording(WAV).text("language", language))).await.status
    };
    let heard_in = |language: &str| model.recorded().iter().filter(|call| call.body["language"] == language).count();
    let is_heard = async |language: &str| (heard_in(language) > 0).then_some(());
    let of_ann = join_all((0..4).map(|_| hear(&ann, "en")));
    let of_bob = async {
        model.called(5).await;
        hear(&bob, "de").await
    };
    let of_account = async {
        eventually("bob is heard beside ann", async || is_heard("de").await).await;
        join_all((0..6).map(|_| hear(app.key(), "es"))).await
    };
    let of_stranger = async {
        eventually("bob is heard", async || is_heard("de").await).await;
        hear(&stranger, "fr").await
    };
    let let_go = async {
        eventually("another account is heard", async || is_heard("fr").await).await;
        assert_eq!((heard_in("en"), heard_in("de"), heard_in("es")), (2, 1, 0));
        model.let_go(99);
    };
    let (of_ann, of_bob, of_account, of_stranger, ()) = join5(of_ann, of_bob, of_account, of_stranger, let_go).await;
    let all = of_ann.into_iter().chain(of_account).chain([of_bob, of_stranger]);
    assert!(all.into_iter().all(|status| status == StatusCode::OK));
}

#[tokio::test]
async fn without_an_engine_the_demo_answers_or_it_says_that_there_is_none() {
    let app = app().await;
    let heard = hear(&app, recording(WAV)).await;
    assert_eq!(heard.body["text"], format!("demo transcript of {} bytes", WAV.len()));
    let millis = heard.body["durationMs"].as_i64().expect("a time");
    assert!(Duration::from_millis(millis.unsigned_abs()) > Duration::from_millis(300), "{millis}, from the container");
    for bytes in [OGG, FLAC, MP3, WEBM, LIVE, M4A, MP4] {
        let other = hear(&app, recording(bytes)).await.body["durationMs"].as_i64().expect("a time");
        assert!((other - millis).abs() < 150, "{other} and {millis}");
    }
    // A hundred frames are as long as they are, whatever the first says of itself.
    let frame = [&[0xff, 0xfb, 0x90, 0][..], &[0; 32], b"Xing\0\0\0\x01\0\0\0\x01", &[0; 369]].concat();
    let lies = Form::new().part("audio", Part::bytes(frame.repeat(100)).file_name("a.mp3"));
    assert_eq!(hear(&app, lies).await.body["durationMs"], 2612);
    // It costs something all the same.
    assert_eq!(hear(&app, recording(MPEG)).await.body["durationMs"], 2000);
    let settings = [("OPENAI_BASE_URL", "http://127.0.0.1:9/v1"), ("OPENAI_API_KEY", "x")];
    let app = app_with(&settings).await;
    assert_eq!(hear(&app, recording(WAV)).await.error(), "SPEECH_NOT_CONFIGURED");
}
