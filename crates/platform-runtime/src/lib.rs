//! The agent loop and its ports: what a model, and whoever follows a turn, must offer.
//!
//! **Owns** no table and no endpoint; knows neither SQL nor HTTP. **Needs** a [`Model`], which a
//! [`Budget`] gives to who pays, a [`Toolbox`] over its [`ToolSource`]s and a [`Listener`]; chats and agents run the same
//! [`run_turn`].
//!
//! **Invariants**: a model call and its result reach the listener in order; text that was
//! streamed before a failure is never lost, the [`Ending`] carries it; usage is counted by
//! the rules of contract 00 §13 whatever the provider reports; the loop makes at most
//! [`Limits::tool_calls`] tool calls; a call reaches the listener before it is made, its result
//! before the model sees it, and what may not be repeated is made once, whoever dies.
//!
//! ```
//! # use platform_runtime::*;
//! # async fn example(model: &dyn Model, listener: &mut dyn Listener) -> platform_core::Result<()> {
//! let spec = model.catalog().choose(None, None)?;
//! let prompt = Prompt { system: "Be brief.".into(), messages: vec![Message::user("Hello")], ..Prompt::new(spec) };
//! let ending = run_turn(model, &[], prompt, Limits::default(), Resumed::default(), listener).await?;
//! println!("{:?}", ending.reason);
//! # Ok(()) }
//! ```
//!
//! `examples/turn.rs` is a whole turn, with a model and a tool of one's own.

mod budget;
mod built_in;
mod children;
pub mod code;
mod earlier;
mod memory;
mod model;
mod names;
mod schema;
mod scope;
mod structured;
mod toolbox;
mod tools;
mod trace;
mod turn;
mod usage;

pub use budget::{Budget, Charge, Note, Payer, Refusal, Spender, UsageLedger};
pub use built_in::{BuiltInAction, BuiltInCall, BuiltInGroup, BuiltInTool, BuiltInTools, finish_tools, time_tools};
pub use children::{ChildPool, json_work, no_answer};
pub use earlier::{EarlierTurn, EarlierTurns, SaidOnce, WordHash};
pub use memory::{
    CoreMemoryBlock, MEMORY_TOOLS, Memory, MemoryBucket, MemoryPrompt, RecalledTurns, ToldMemories, TurnMemory,
};
pub use model::{
    Answer, Attachment, Audio, Capabilities, Catalog, Delta, Embedding, Fault, FaultCode, Message, Model, ModelSpec,
    Operation, Prices, Prompt, Role, SecondaryCall, Segment, StopReason, Tool, ToolCall, ToolFunction, Transcription,
    ask, embed_soon,
};
pub use schema::{SCHEMA_WORKS, Schema, check_schema, check_schemas, compile as compile_schema};
pub use scope::{
    ChatStates, DocumentReader, KNOWLEDGE_TOOLS, Recall, RecallBudget, Recalled, SANDBOX_TOOLS, SKILL_TOOLS,
    TENANT_APPS, TENANT_MCP, TenantAppOffer, ThreadStates, TurnScope, TurnSkill,
};
pub use structured::{Checked, OutputSchema, StructuredOutput};
pub use toolbox::{Approval, NamePrefix, SourceTool, ToolChoice, ToolSource, ToolTurn, Toolbox};
pub use tools::{
    Action, CallResult, CallState, Callbacks, FINISH_TOOL, Finish, GroupTool, Later, OpenCall, ToolGroup, ToolResult,
    TurnTool, fit, fit_bytes, is_function_name,
};
pub use turn::{Ending, Flow, Limits, Listener, Resumed, Verdict, run_turn};
pub use usage::{Cost, Usage};
