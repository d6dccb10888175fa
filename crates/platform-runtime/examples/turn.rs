//! The agent loop with a model and a tool of one's own: `cargo run -p platform-runtime --example turn`.
//!
//! The model wants to know the weather, is told it by a tool, and answers. Whoever follows the turn sees each step
//! before the next one is taken, and can store it.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use platform_core::{AccountId, Object, Result};
use platform_runtime::{
    Action, Answer, CallResult, Capabilities, Catalog, Cost, Delta, Fault, Flow, Limits, Listener, Message, Model,
    ModelSpec, OpenCall, Prices, Prompt, Resumed, Role, StopReason, Tool, ToolCall, ToolFunction, ToolResult, TurnTool,
    Usage, run_turn,
};
use serde_json::json;

/// A model that asks for the weather once and then says what it heard.
struct Forecaster;

impl Catalog for Forecaster {
    fn choose(&self, _provider: Option<&str>, _llm: Option<&str>) -> Result<ModelSpec> {
        Ok(ModelSpec {
            provider: "example".into(),
            llm: "forecaster".into(),
            context_window: 8000,
            max_output_tokens: 1000,
            prices: Prices::default(),
            capabilities: Capabilities::default(),
        })
    }
}

#[async_trait]
impl Model for Forecaster {
    fn catalog(&self) -> &dyn Catalog {
        self
    }

    fn of(self: Arc<Self>, _account: &AccountId) -> Arc<dyn Model> {
        self
    }

    async fn answer(
        &self,
        prompt: &Prompt,
        on: &mut (dyn for<'d> FnMut(Delta<'d>) + Send),
    ) -> std::result::Result<Answer, Fault> {
        let heard = prompt.messages.iter().rfind(|message| message.role == Role::Tool);
        let (text, tool_calls) = match heard {
            Some(heard) => (format!("In Oslo it is {}.", heard.text), Vec::new()),
            None => {
                let function =
                    ToolFunction { name: "weather".to_owned(), arguments: json!({"city": "Oslo"}).to_string() };
                (String::new(), vec![ToolCall { id: ToolCall::new_id(), r#type: "function".to_owned(), function }])
            }
        };
        on(Delta::Text(&text));
        let stop = if tool_calls.is_empty() { StopReason::EndTurn } else { StopReason::ToolUse };
        let model = prompt.model.clone();
        let (usage, cost, latency) = (Usage::default(), Cost::default(), Duration::ZERO);
        Ok(Answer { text, tool_calls, stop, usage, cost, model, latency })
    }
}

/// A tool that knows the weather everywhere.
struct Weather;

#[async_trait]
impl Action for Weather {
    async fn call(&self, _id: &str, arguments: Object) -> ToolResult {
        println!("tool    weather({})", arguments["city"]);
        ToolResult::of(&json!("snowing"))
    }
}

/// Prints where another would store.
struct Printer;

#[async_trait]
impl Listener for Printer {
    fn delta(&mut self, delta: Delta<'_>) {
        if let Delta::Text(text) = delta
            && !text.is_empty()
        {
            println!("model   {text}");
        }
    }

    async fn asked(&mut self, answer: &Answer, _open: &[OpenCall]) -> Result<Flow> {
        for call in &answer.tool_calls {
            println!("model   wants {}", call.function.name);
        }
        Ok(Flow::GoOn)
    }

    async fn settled(&mut self, results: &[CallResult], _open: &[OpenCall]) -> Result<Flow> {
        for result in results {
            println!("result  {}", result.result.text);
        }
        Ok(Flow::GoOn)
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let tool = Tool {
        name: "weather".to_owned(),
        description: "The weather in a city.".to_owned(),
        parameters: Arc::new(
            json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}),
        ),
    };
    let action: Arc<dyn Action> = Arc::new(Weather);
    let weather = TurnTool { tool, is_alias: false, needs_approval: false, is_repeatable: true, action: Some(action) };
    let question = Message::user("How is the weather in Oslo?");
    let prompt = Prompt {
        messages: vec![question],
        tools: vec![weather.tool.clone()],
        ..Prompt::new(Forecaster.choose(None, None)?)
    };
    let ending = run_turn(&Forecaster, &[weather], prompt, Limits::default(), Resumed::default(), &mut Printer).await?;
    let answer = ending.answer.expect("it answered");
    println!("ended   {}", ending.reason);
    assert_eq!(answer.text, "In Oslo it is snowing.");
    Ok(())
}

#[test]
fn it_runs() {
    main().expect("a turn");
}
