//! Turns over what they need, whose steps the test stores.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use platform_access::Referrers;
use platform_child::Children;
use platform_conversation::{
    AssistantSettings, Bounds, Compaction, Conversation, ConversationStore, Ports, Profile, Step, StepResult,
    TokenUsage, ToolUser, Turn, TurnRequest, TurnStore, insert_messages, turn_tools,
};
use platform_core::{AccountId, FairMemory, Object, Page, Result, SystemClock, Timestamp};
use platform_db::Db;
use platform_models::{Models, ModelsConfig};
use platform_realtime::Realtime;
use platform_runtime::{
    Budget, BuiltInAction, BuiltInCall, BuiltInGroup, BuiltInTool, BuiltInTools, Charge, ChildPool, Flow, Model,
    ModelSpec, Payer, Refusal, SecondaryCall, Spender, ToolResult, Toolbox, UsageLedger,
};
use serde_json::json;
use tokio_util::sync::CancellationToken;

/// Nobody counts what models take.
struct Unlimited(Arc<Models>);

#[async_trait]
impl Budget for Unlimited {
    fn model(&self, payer: &Payer, _ledger: Option<Arc<UsageLedger>>) -> Arc<dyn Model> {
        (Arc::clone(&self.0) as Arc<dyn Model>).of(&payer.account)
    }
    async fn charge(&self, _payer: &Payer, _model: &ModelSpec) -> Result<Option<Charge>> {
        Ok(None)
    }
    async fn spent(&self, _payer: &Payer) -> Result<Option<Refusal>> {
        Ok(None)
    }
}

/// A tool that says how many messages are stored while it runs, and notes that.
pub struct CountStored {
    pub db: Db,
    pub calls: Mutex<Vec<usize>>,
}

#[async_trait]
impl BuiltInAction for CountStored {
    async fn call(&self, call: BuiltInCall<'_>) -> ToolResult {
        let conn = self.db.read().await.expect("a connection");
        let stored = ConversationStore::of(call.account, "c")
            .content(conn.get(), Page { limit: 100, offset: 0 })
            .await
            .expect("read")
            .len();
        self.calls.lock().expect("lock").push(stored);
        ToolResult::of(&json!(stored))
    }
}

/// Stores steps as long as it holds its lease.
pub struct Leased {
    pub db: Db,
    pub is_held: bool,
}

#[async_trait]
impl TurnStore for Leased {
    async fn step(&self, conversation: &Conversation, step: Step) -> Result<StepResult> {
        if !self.is_held {
            return Ok(StepResult::Lost);
        }
        let rows: Vec<_> =
            step.messages.iter().map(|row| (ConversationStore::of(&conversation.account, "c"), row)).collect();
        insert_messages(&mut *self.db.conn().await?, &rows).await?;
        Ok(StepResult::At(step.revision, Flow::GoOn))
    }
    async fn charge(&self, _asked: &[SecondaryCall]) -> Result<()> {
        Ok(())
    }
    async fn compacted(&self, _known: usize, _compaction: &Compaction) -> Result<bool> {
        Ok(true)
    }
}

pub async fn ports(db: &Db, counter: &Arc<CountStored>) -> Ports {
    let models = Models::start(ModelsConfig::default()).await.expect("models");
    let does = Arc::clone(counter) as Arc<dyn BuiltInAction>;
    let tools = vec![BuiltInTool::new("count_stored", "Counts what is stored.", &json!({}), &[], does)];
    let group = BuiltInGroup { uid: "builtin-test", name: "Test", description: "", tools };
    // Nothing here is written by clients.
    let children = Arc::new(ChildPool::new(Children::new("/nowhere", ""), 1));
    let source = BuiltInTools::new(vec![group], Arc::clone(&children));
    let clock = Arc::new(SystemClock);
    Ports {
        db: db.clone(),
        clock: clock.clone(),
        catalog: Arc::clone(&models) as _,
        referrers: Referrers::new([]),
        budget: Arc::new(Unlimited(models)),
        recall: Arc::new(()),
        memory: Arc::new(()),
        dictations: Arc::new(()),
        environments: Arc::new(()),
        audience: Arc::new(()),
        toolbox: Arc::new(Toolbox::new(vec![Arc::new(source)])),
        children,
        attached: FairMemory::new(0, 0),
        realtime: Realtime::new(clock, Duration::from_millis(25), None),
    }
}

/// A conversation of so many messages, whose turn begins at the last one.
pub fn conversation(account: &AccountId, messages: i32) -> Conversation {
    let spender = Spender::Agent("a".into());
    Conversation {
        account: account.clone(),
        key: "c".into(),
        uid: "c".into(),
        open: Vec::new(),
        is_late: false,
        has_waited: false,
        newest: Timestamp(0),
        revision: 0,
        message_count: messages,
        turn_start: messages - 1,
        usage: TokenUsage::default(),
        metadata: Object::new(),
        guardrails: None,
        compactions: Vec::new(),
        memory_prompt: None,
        payer: Payer { account: account.clone(), tenant_id: None, subtenant_id: None, project_id: None, spender },
    }
}

/// Runs a turn and stores its end; what its answers took.
pub async fn run(ports: &Ports, store: &Leased, of: Conversation, settings: AssistantSettings) -> Result<TokenUsage> {
    let request = TurnRequest { user_uid: "apikey:test".into(), ..TurnRequest::default() };
    let (account, user) = (of.account.clone(), ToolUser { conversation: "c", ..ToolUser::default() });
    let tools = turn_tools(&ports.toolbox, &account, &settings, &request, user).await?;
    let bounds = Bounds { tool_calls: 10, input_tokens: u64::MAX, empty_answers: None };
    let mut turn = Turn::new(ports, store, of, &request, (account.clone(), "c".into()), 0, Arc::default());
    let stop = CancellationToken::new();
    let ending = turn.run(&Profile::new(settings), &tools, bounds, None, &stop).await.expect("nobody stops it")?;
    let rows = turn.last_words(&ending)?;
    let rows: Vec<_> = rows.iter().map(|row| (ConversationStore::of(&account, "c"), row)).collect();
    insert_messages(&mut *ports.db.conn().await?, &rows).await?;
    Ok(turn.conversation.usage.clone())
}
