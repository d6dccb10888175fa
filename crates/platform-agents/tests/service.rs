//! Agents and threads through the traits, with the demo model, on a real PostgreSQL.

mod fixture;

use platform_agents::{
    AgentFilter, AgentService, NewPause, NewResume, NewThread, Thread, ThreadFilter, ThreadMessage, ThreadService,
    ThreadState, ThreadView,
};
use platform_core::{AccountId, Caller, Error, Id, Object, Page, Precondition, Result};
use platform_testing::TestDb;
use serde_json::json;

use fixture::fixture;

const ALL: Page = Page { limit: 100, offset: 0 };

fn says(text: &str) -> NewThread {
    NewThread { message: Some(text.to_owned()), ..NewThread::default() }
}

fn code<T>(outcome: Result<T>) -> String {
    outcome.err().as_ref().map(Error::code).expect("refused").as_str().to_owned()
}

fn states(thread: &Thread) -> Vec<&'static str> {
    thread.thread_states_changes.iter().map(|change| change.state.as_str()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thread_is_worked_to_its_end_and_paid_once_and_another_account_sees_nothing_of_it() {
    let db = TestDb::new().await.connect();
    let fixture = fixture(&db).await;
    let (agent, caller) = (fixture.agent(json!({"name": "Worker"})).await, &fixture.caller);
    let id = fixture.start(&agent, says("/say done")).await.expect("started");
    let thread = fixture.reach(&id, ThreadState::Completed).await;
    assert_eq!(states(&thread), ["queued", "processing", "completed"]);
    assert_eq!(thread.result.expect("a result").message, "done");
    let more = ThreadMessage { message: Some("/say more".into()), files: Vec::new() };
    fixture.threads.say(caller, &Id::named(&id), more, None).await.expect("taken in");
    let thread = fixture.reach(&id, ThreadState::Completed).await;
    let content = json!(thread.thread_content.expect("messages"));
    let messages = || content.as_array().into_iter().flatten();
    let said: Vec<_> = messages().filter_map(|message| message["content"]["message"].as_str()).collect();
    assert_eq!(said, ["/say done", "done", "/say more", "more"]);
    let took = |field: &str| messages().filter_map(|message| message["messageTokenUsage"][field].as_i64()).sum();
    let costs = fixture.agents.cost_summary(&caller.account, &Id::named(&agent.id)).await.expect("costs").today;
    assert_eq!((costs.input_tokens, costs.output_tokens), (took("inputTokens"), took("outputTokens")));
    assert_eq!((costs.thread_count, costs.input_tokens > 0, thread.total_tokens), (1, true, took("totalTokens")));

    let stranger = Caller { account: AccountId::generate(), ..caller.clone() };
    let theirs = &stranger.account;
    let (agents, threads) = (&fixture.agents, &fixture.threads);
    assert_eq!(code(agents.get(theirs, &Id::named(&agent.id)).await), "AGENT_NOT_FOUND");
    assert_eq!(
        code(agents.update(theirs, &Id::named(&agent.id), Object::new(), &Precondition::None).await),
        "AGENT_NOT_FOUND"
    );
    assert_eq!(code(agents.delete(&stranger, &Id::named(&agent.id), &Precondition::None).await), "AGENT_NOT_FOUND");
    assert_eq!(code(agents.cost_summary(theirs, &Id::named(&agent.id)).await), "AGENT_NOT_FOUND");
    assert_eq!(
        code(threads.start(&stranger, &Id::named(&agent.id), says("hi"), None, false, None).await),
        "AGENT_NOT_FOUND"
    );
    assert_eq!(agents.list(theirs, &AgentFilter::default(), ALL).await.expect("a page").total, 0);
    assert_eq!(code(threads.get(theirs, &Id::named(&id), ThreadView::default()).await), "THREAD_NOT_FOUND");
    assert_eq!(code(threads.watch(theirs, &Id::named(&id), true).await), "THREAD_NOT_FOUND");
    assert_eq!(code(threads.search(theirs, &Id::named(&id), "done", 10).await), "THREAD_NOT_FOUND");
    assert_eq!(code(threads.delete(theirs, &Id::named(&id)).await), "THREAD_NOT_FOUND");
    let list = |account| threads.list(account, ThreadFilter::default(), &[], ALL);
    assert_eq!(list(theirs).await.expect("a page").total, 0);
    assert_eq!(list(&caller.account).await.expect("a page").total, 1);
    threads.delete(&caller.account, &Id::named(&id)).await.expect("deleted");
    assert_eq!(code(threads.get(&caller.account, &Id::named(&id), ThreadView::default()).await), "THREAD_NOT_FOUND");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_works_no_more_threads_than_it_may_and_makes_the_call_of_a_paused_one_once() {
    let db = TestDb::new().await.connect();
    let fixture = fixture(&db).await;
    let agent = json!({"name": "Worker", "concurrentExecutionLimit": 1,
        "assistantSpecialization": {"availableToolsGroupsUids": ["builtin-test"]}});
    let agent = fixture.agent(agent).await;
    let first = fixture.start(&agent, says("/tool pass_gate\n/say first")).await.expect("started");
    fixture.gate.called().await;
    let second = fixture.start(&agent, says("/say second")).await.expect("started");
    let waiting = fixture.thread(&second).await;
    assert_eq!((waiting.queued_reason, waiting.queue_position), (Some("CONCURRENCY_LIMIT"), Some(1)));
    let third =
        fixture.threads.start(&fixture.caller, &Id::named(&agent.id), says("/say third"), None, true, None).await;
    assert_eq!(code(third), "AGENT_BUSY");

    let pause = NewPause { mode: Some("graceful".into()), until: None, reason: Some("lunch".into()) };
    let pausing = fixture.threads.pause(&fixture.caller, &Id::named(&first), pause, None).await.expect("taken in");
    assert_eq!((pausing.state, pausing.pause_requested), (ThreadState::Processing, true));
    fixture.gate.is_open.send_replace(true);
    let paused = fixture.reach(&first, ThreadState::Paused).await;
    assert_eq!(paused.paused_reason.as_deref(), Some("lunch"));
    fixture.reach(&second, ThreadState::Completed).await;

    fixture.threads.resume(&fixture.caller, &Id::named(&first), NewResume::default(), None).await.expect("resumed");
    let ended = fixture.reach(&first, ThreadState::Completed).await;
    assert_eq!(states(&ended), ["queued", "processing", "paused", "queued", "processing", "completed"]);
    assert_eq!((*fixture.gate.calls.borrow(), ended.thread_content.map(|content| content.len())), (1, Some(4)));
    assert_eq!(ended.result.expect("a result").message, "first");
    let late = fixture.threads.resume(&fixture.caller, &Id::named(&first), NewResume::default(), None).await;
    assert_eq!(code(late), "THREAD_STATE_CONFLICT");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_archived_agent_starts_nothing_until_it_is_archived_no_longer() {
    let db = TestDb::new().await.connect();
    let fixture = fixture(&db).await;
    let (agent, other) =
        (fixture.agent(json!({"name": "Archived"})).await, fixture.agent(json!({"name": "Other"})).await);
    let (account, version) = (&fixture.caller.account, Precondition::Versions(vec![agent.version]));
    let paused = || NewThread { state: Some("paused".into()), ..says("/say late") };
    let (waiting, never) = (fixture.start(&agent, paused()).await, fixture.start(&agent, paused()).await);
    let (waiting, never) = (waiting.expect("started"), never.expect("started"));
    fixture.change(&agent, json!({"archived": true}), &version).await.expect("archived");
    assert_eq!(code(fixture.change(&agent, json!({"archived": false}), &version).await), "PRECONDITION_FAILED");
    let shown = |archived| AgentFilter { archived: Some(archived), ..AgentFilter::default() };
    assert_eq!(fixture.agents.list(account, &shown(false), ALL).await.expect("a page").total, 1);
    assert_eq!(fixture.agents.list(account, &shown(true), ALL).await.expect("a page").total, 2);

    assert_eq!(code(fixture.start(&agent, says("/say no")).await), "AGENT_ARCHIVED");
    fixture.threads.resume(&fixture.caller, &Id::named(&waiting), NewResume::default(), None).await.expect("resumed");
    let later = fixture.start(&other, says("/say other")).await.expect("started");
    fixture.reach(&later, ThreadState::Completed).await;
    let thread = fixture.thread(&waiting).await;
    assert_eq!((states(&thread), thread.queued_reason), (vec!["paused", "queued"], Some("AGENT_ARCHIVED")));

    fixture.change(&agent, json!({"archived": false}), &Precondition::None).await.expect("changed");
    fixture.reach(&waiting, ThreadState::Completed).await;
    fixture.agents.delete(&fixture.caller, &Id::named(&agent.id), &Precondition::None).await.expect("deleted");
    let ended = fixture.reach(&never, ThreadState::Terminated).await;
    assert_eq!(states(&ended), ["paused", "terminated"]);
    assert_eq!(ended.thread_content.map(|content| content.len()), Some(1), "it stays readable");
    assert_eq!(code(fixture.agents.get(account, &Id::named(&agent.id)).await), "AGENT_NOT_FOUND");
}
