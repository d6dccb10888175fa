//! Messages and turns as chats and threads use them, with the demo model, on a real PostgreSQL.

mod turns;

use std::sync::{Arc, Mutex};

use futures_util::TryStreamExt;
use platform_conversation::{
    AssistantSettings, ChatMessage, Content, ContentPages, ContextManagement, ConversationStore, LeaseLost,
    MessageContent, MessageRow, NewFeedback, Queued, StoredJson, awaited, insert_messages,
};
use platform_core::{AccountId, Page, Timestamp};
use platform_runtime::Role;
use platform_testing::TestDb;
use serde_json::{Value, json};

use turns::{CountStored, Leased, conversation, ports, run};

fn message(position: i32, role: Role, text: &str, at: i64) -> MessageRow {
    let content = MessageContent { message: text.to_owned(), ..MessageContent::default() };
    let new = ChatMessage::new(format!("m{position}"), "c", "apikey:test", Timestamp(at));
    MessageRow::new(position, &ChatMessage { role, content, ..new }, None).expect("JSON")
}

fn values(messages: &[StoredJson]) -> Vec<Value> {
    messages.iter().map(|message| serde_json::from_str(message.as_str()).expect("JSON")).collect()
}

fn texts(messages: &[StoredJson]) -> Vec<String> {
    values(messages).iter().map(|message| message["content"]["message"].as_str().expect("a text").to_owned()).collect()
}

#[tokio::test]
async fn messages_are_read_in_their_order_by_their_account_alone_and_a_position_is_given_once() {
    const COUNT: i32 = 450;
    let db = TestDb::new().await.connect();
    let (ours, theirs) = (AccountId::generate(), AccountId::generate());
    let (our_store, their_store) = (ConversationStore::of(&ours, "c"), ConversationStore::of(&theirs, "c"));
    let mut conn = db.conn().await.expect("a connection");
    let role = |n| if n % 3 == 0 { Role::User } else { Role::Assistant };
    let rows: Vec<MessageRow> = (0..COUNT).rev().map(|n| message(n, role(n), &format!("{n}%"), 1)).collect();
    let said: Vec<_> = rows.iter().map(|row| (our_store, row)).collect();
    insert_messages(&mut conn, &said).await.expect("stored");
    their_store.insert(&mut conn, &message(0, Role::User, "theirs 7%", 1)).await.expect("stored");

    let (next, taken) = (message(COUNT, Role::User, "late", 1), message(7, Role::User, "again", 1));
    let refused = insert_messages(&mut conn, &[(our_store, &next), (our_store, &taken)]).await;
    refused.expect_err("one of the positions is taken");

    let all: Vec<String> = (0..COUNT).map(|n| format!("{n}%")).collect();
    let (whole, pages) = Content::read(&db, &ours, "c").await.expect("read").apart();
    assert_eq!(
        (texts(&whole.expect("in memory")), pages.is_none()),
        (all.clone(), true),
        "nothing of what was refused"
    );
    let slices: Vec<_> = ContentPages::new(&db, &ours, "c").into_stream().try_collect().await.expect("read");
    assert_eq!((slices.len() > 1, texts(&slices.concat())), (true, all.clone()));
    let page = our_store.content(&conn, Page { limit: 3, offset: 448 }).await.expect("a page");
    assert_eq!(texts(&page), all[448..]);
    let found = our_store.search(&conn, "7%", 2).await.expect("found");
    let places: Vec<i32> = found.matches.iter().map(|found| found.position).collect();
    assert_eq!((found.total, places), (45, vec![7, 17]), "the oldest first, and no message of another account");
    let (first, turn, answered) = our_store.turn_of(&conn, "m6").await.expect("read").expect("a turn");
    assert_eq!((first, texts(&turn).len(), answered), (6, 3, true));
    assert!(their_store.turn_of(&conn, "m6").await.expect("read").is_none());
}

#[tokio::test]
async fn what_waits_keeps_its_order_and_goes_with_feedback_when_its_conversation_is_deleted() {
    let db = TestDb::new().await.connect();
    let (ours, theirs) = (AccountId::generate(), AccountId::generate());
    let (our_store, their_store) = (ConversationStore::of(&ours, "c"), ConversationStore::of(&theirs, "c"));
    let mut conn = db.conn().await.expect("a connection");
    for store in [our_store, their_store] {
        store.insert(&mut conn, &message(0, Role::User, "first", 10)).await.expect("stored");
        // The clock of the second went back.
        for (n, at) in [(1, 30), (2, 20)] {
            let MessageRow { uid, body, .. } = message(n, Role::User, "waits", at);
            let waiting = Queued { uid, body, request: json!({}), created_ms: at };
            store.enqueue(&mut conn, &waiting).await.expect("stored");
        }
    }
    assert_eq!(our_store.first_queued(&mut conn).await.expect("read"), Timestamp(30));
    let waiting = our_store.queued(&mut conn).await.expect("read");
    let (mut newest, mut uids) = (Timestamp(10), Vec::new());
    for (position, waiting) in (1..).zip(waiting) {
        let row = waiting.into_message(position, newest).expect("JSON");
        assert!(row.created_ms >= newest.0, "no message is earlier than the one before it");
        assert!(row.body.contains(&format!("\"timestamp\":{}", row.created_ms)), "{}", row.body);
        (newest, uids) = (Timestamp(row.created_ms), [uids, vec![row.uid]].concat());
    }
    assert_eq!((newest, uids), (Timestamp(30), vec!["m1".to_owned(), "m2".to_owned()]));

    let about = |id: &str, good: bool| NewFeedback {
        message_id: id.to_owned(),
        feedback: good,
        feedback_comment: None,
        feedback_data: None,
    };
    let now = Timestamp(40);
    let unknown = our_store.give_feedback(&mut conn, "u", &about("m1", true), now).await.expect_err("it waits yet");
    assert_eq!(unknown.code().as_str(), "MESSAGE_NOT_FOUND");
    for (store, good, is_first) in [(our_store, true, true), (their_store, true, true), (our_store, false, false)] {
        let given = store.give_feedback(&mut conn, "u", &about("m0", good), now).await.expect("given");
        assert_eq!((given.0, given.1.feedback), (is_first, good));
    }
    assert_eq!(our_store.feedback(&conn).await.expect("read").len(), 1, "in place of the first");

    our_store.delete(&mut conn).await.expect("deleted");
    let all = Page { limit: 10, offset: 0 };
    for (store, left) in [(our_store, 0), (their_store, 1)] {
        assert_eq!(store.content(&conn, all).await.expect("read").len(), left);
        assert_eq!(store.feedback(&conn).await.expect("read").len(), left);
        assert_eq!(awaited(&conn, &[store]).await.expect("read").len(), left);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_is_stored_before_the_next_begins_and_nothing_is_done_once_the_lease_is_lost() {
    let test = TestDb::new().await;
    let db = test.connect();
    let counter = Arc::new(CountStored { db: db.clone(), calls: Mutex::default() });
    let (ports, account) = (ports(&db, &counter).await, AccountId::generate());
    let settings = AssistantSettings {
        available_tools_groups_uids: vec!["builtin-test".into()],
        ..AssistantSettings::named("Test")
    };
    let asked = message(0, Role::User, "/tool count_stored\n/say one two three", 1);
    ConversationStore::of(&account, "c")
        .insert(&mut db.conn().await.expect("a connection"), &asked)
        .await
        .expect("stored");
    let (lost, held) = (Leased { db: db.clone(), is_held: false }, Leased { db: db.clone(), is_held: true });

    let failed = run(&ports, &lost, conversation(&account, 1), settings.clone()).await.expect_err("it was lost");
    assert!(LeaseLost::is_in(&failed), "{failed}");
    assert!(counter.calls.lock().expect("lock").is_empty(), "the answer that asks for the call was not stored");

    let usage = run(&ports, &held, conversation(&account, 1), settings.clone()).await.expect("answered");
    assert_eq!(*counter.calls.lock().expect("lock"), [2_usize], "the question, and the answer that asks for the call");
    let conn = db.read().await.expect("a connection");
    let said =
        ConversationStore::of(&account, "c").content(conn.get(), Page { limit: 100, offset: 0 }).await.expect("read");
    assert_eq!(texts(&said)[1..], ["", "2", "one two three"]);
    let said = values(&said);
    let roles: Vec<&str> = said.iter().filter_map(|message| message["role"].as_str()).collect();
    assert_eq!(roles, ["user", "assistant", "tool", "assistant"]);
    assert_eq!(said[2]["tool_call_id"], said[1]["tool_calls"][0]["id"]);
    let took = |message: &Value| message["messageTokenUsage"]["totalTokens"].as_u64().unwrap_or(0);
    assert_eq!(said.iter().map(took).sum::<u64>(), usage.tokens.total_tokens);

    // The next turn: the demo model counts the words that it gets.
    let next = message(4, Role::User, "Again", 1);
    ConversationStore::of(&account, "c")
        .insert(&mut db.conn().await.expect("a connection"), &next)
        .await
        .expect("stored");
    let brief = ContextManagement { full_context_turn_depth: 1, always_include_user_messages: true };
    let brief = AssistantSettings { context_management: brief, ..settings.clone() };
    let newest = AssistantSettings { max_chat_messages: 1, ..settings.clone() };
    for (settings, words, what) in [
        (newest, 4, "the newest message before the turn"),
        (brief, 10, "no results of older turns"),
        (settings, 11, "all"),
    ] {
        test.run("DELETE FROM messages WHERE position > 4").await;
        let usage = run(&ports, &held, conversation(&account, 5), settings).await.expect("answered");
        assert_eq!(usage.tokens.input_tokens, words, "{what}");
    }
}
