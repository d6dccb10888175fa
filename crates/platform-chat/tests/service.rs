//! Turns through the traits, with the demo model, on a real PostgreSQL.

use std::{sync::Arc, time::Duration};

use platform_access::Referrers;
use platform_chat::{
    AssistantService, ChatConfig, ChatFilter, ChatPage, ChatService, DEFAULT_ASSISTANT, NewMessage, PgAssistantService,
    PgChatService,
};
use platform_child::Children;
use platform_conversation::{AssistantSettings, FileFetcher, Ports};
use platform_core::{AccountId, Caller, Clock, FairMemory, FieldLimits, Id, Page, SystemClock};
use platform_db::{Bus, Db};
use platform_egress::{Egress, EgressRules};
use platform_files::{PgFileService, Store};
use platform_jobs::{Jobs, JobsConfig};
use platform_models::{Models, ModelsConfig};
use platform_realtime::Realtime;
use platform_runtime::{ChildPool, Model, Toolbox};
use platform_tenants::{PgTenantService, Quotas};
use platform_testing::{TestDb, full_caller};
use platform_toolservers::{PgToolServerService, ToolServerNeeds};
use platform_vault::{MasterKey, Vault};

struct Fixture {
    assistants: Arc<dyn AssistantService>,
    chat: Arc<PgChatService>,
    caller: Caller,
}

async fn fixture(db: &Db, concurrency: usize) -> Fixture {
    let (bus, limits) = (Bus::local(), FieldLimits::default());
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let models = Models::start(ModelsConfig::default()).await.expect("models");
    let config = JobsConfig { lease: Duration::from_secs(2), heartbeat: Duration::from_millis(500), concurrency };
    let jobs = Jobs::new(db, &bus, Arc::clone(&clock), config, AccountId::generate().into());
    let realtime = Realtime::new(Arc::clone(&clock), Duration::from_millis(25), None);
    let egress = Egress::new(EgressRules::default()).expect("a client");
    let vault = Arc::new(Vault::new(MasterKey::generate(), Vec::new()));
    // Nothing here is written by clients.
    let children = Arc::new(ChildPool::new(Children::new("/nowhere", ""), 1));
    let tool_servers = PgToolServerService::new(ToolServerNeeds {
        db: db.clone(),
        bus: bus.clone(),
        clock: Arc::clone(&clock),
        vault,
        egress: egress.clone(),
        connections: Arc::new(()),
        expressions: Arc::clone(&children),
        documents: Arc::clone(&children),
        referrers: Referrers::new([]),
        limits,
    });
    let toolbox = Arc::new(Toolbox::new(vec![tool_servers]));
    let quotas = Arc::new(Quotas::new(db, &bus, Arc::clone(&models) as Arc<dyn Model>));
    let tenants = Arc::new(PgTenantService::new(db, &bus, Arc::clone(&clock), Arc::clone(&quotas)));
    let ports = Ports {
        db: db.clone(),
        clock,
        catalog: models,
        referrers: Referrers::new([]),
        budget: quotas,
        recall: Arc::new(()),
        memory: Arc::new(()),
        dictations: Arc::new(()),
        environments: Arc::new(()),
        audience: Arc::new(()),
        toolbox,
        children,
        attached: FairMemory::new(0, 0),
        realtime,
    };
    let assistants: Arc<dyn AssistantService> =
        Arc::new(PgAssistantService::new(&ports, &bus, Arc::new(()), Arc::clone(&jobs), limits));
    let config = ChatConfig {
        max_attempts: 3,
        client_tool_timeout: Duration::from_secs(30),
        sync_timeout: Duration::from_secs(30),
        frame_bytes: 8 << 20,
        limits,
    };
    let (ours, theirs) = (Arc::clone(&assistants), Arc::clone(&jobs));
    let files = PgFileService::new(db, Arc::clone(&ports.clock), Store::in_memory(), "http://localhost");
    let files = FileFetcher::new(&egress, Arc::new(files), Arc::new(()), 1 << 20);
    let chat = Arc::new(PgChatService::new(ports, Arc::new(()), theirs, ours, tenants, files, config));
    jobs.start(if concurrency == 0 { Vec::new() } else { chat.works() });
    Fixture { assistants, chat, caller: full_caller() }
}

fn message(text: &str) -> NewMessage {
    NewMessage { message: Some(text.to_owned()), ..NewMessage::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_that_nobody_here_works_is_answered_by_whoever_comes() {
    let test = TestDb::new().await;
    let (accepting, working) = (test.connect(), test.connect());
    let accepting = fixture(&accepting, 0).await;
    let accepted = accepting.chat.send(&accepting.caller, DEFAULT_ASSISTANT, message("Hello"), None, None).await;
    let uid = accepted.expect("accepted").chat_uid;
    let account = &accepting.caller.account;
    let (waiting, _) = accepting.chat.get(account, DEFAULT_ASSISTANT, &Id::named(&uid), true).await.expect("a chat");
    assert_eq!(waiting.status, "processing");
    let mut watcher = accepting.chat.watch(account, DEFAULT_ASSISTANT, &Id::named(&uid), true).await.expect("a state");
    let _worker = fixture(&working, 4).await;
    // The watcher of the first process sees the second one's commit through the store.
    while watcher.next().await.expect("a frame").is_some() {}
    let (chat, _) = accepting.chat.get(account, DEFAULT_ASSISTANT, &Id::named(&uid), false).await.expect("a chat");
    assert_eq!((chat.status.as_str(), chat.chat_content.map(|content| content.len())), ("completed", Some(2)));
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_page_exactly_and_belong_to_their_account() {
    let db = TestDb::new().await.connect();
    let fixture = fixture(&db, 4).await;
    for n in 0..7 {
        let sent =
            fixture.chat.send_and_wait(&fixture.caller, DEFAULT_ASSISTANT, message(&format!("chat {n}")), None, None);
        sent.await.expect("answered");
    }
    let page = |offset| ChatPage { page: Page { limit: 3, offset }, omit_content: true };
    let mut names = Vec::new();
    for offset in [0, 3, 6, 9] {
        let list = fixture.chat.list(&fixture.caller, ChatFilter::default(), page(offset)).await.expect("a page");
        assert_eq!(list.total, 7);
        names.extend(list.histories.into_iter().map(|chat| chat.name));
    }
    let expected: Vec<String> = (0..7).rev().map(|n| format!("chat {n}")).collect();
    assert_eq!(names, expected, "newest first, none twice, none left out");
    let stranger = Caller { account: AccountId::generate(), ..fixture.caller.clone() };
    let list = fixture.chat.list(&stranger, ChatFilter::default(), page(0)).await.expect("a page");
    assert_eq!(list.total, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_from_all_sides_wait_their_turn_and_each_is_answered_once() {
    let db = TestDb::new().await.connect();
    let fixture = Arc::new(fixture(&db, 4).await);
    let sends = (0..40).map(|n| {
        let fixture = Arc::clone(&fixture);
        async move {
            let chat_uid = Some("shared".to_owned());
            let new = NewMessage { chat_uid, ..message(&format!("/delay 1ms\n/say to {n}")) };
            fixture.chat.send(&fixture.caller, "wide", new, None, None).await.expect("taken in").message_uid
        }
    });
    let settings = AssistantSettings {
        identifier: Some("wide".into()),
        max_queued_messages: 100,
        ..AssistantSettings::named("Wide")
    };
    fixture.assistants.create(&fixture.caller, settings, None).await.expect("made");
    let mut uids = futures_util::future::join_all(sends).await;
    let account = &fixture.caller.account;
    let mut watcher = fixture.chat.watch(account, "wide", &Id::named("shared"), true).await.expect("a state");
    while watcher.next().await.expect("a frame").is_some() {}
    let (chat, _) = fixture.chat.get(account, "wide", &Id::named("shared"), false).await.expect("a chat");
    assert_eq!(chat.status, "completed");
    let content = serde_json::to_value(chat.chat_content).expect("JSON");
    let messages = content.as_array().expect("messages");
    let of = |role: &str| messages.iter().filter(|message| message["role"] == role).count();
    let mut asked: Vec<String> = messages
        .iter()
        .filter(|message| message["role"] == "user")
        .filter_map(|message| message["uid"].as_str().map(str::to_owned))
        .collect();
    asked.sort();
    uids.sort();
    assert_eq!(asked, uids);
    assert!(of("assistant") < 40 && of("assistant") > 0, "{} replies", of("assistant"));
    assert!(messages.windows(2).all(|pair| pair[0]["role"] == "user" || pair[1]["role"] == "user"));
    assert_eq!(messages.last().expect("a message")["role"], "assistant");
}
