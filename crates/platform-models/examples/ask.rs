//! Asks a model and prints its answer as it comes, with what it took.
//!
//! `cargo run -p platform-models --example ask -- "Hello"` asks the offline demo model. With a providers file
//! (docs/API.md) it asks its first one: `… -- "Hello" providers.yaml`.

use std::io::Write;

use platform_models::{Models, ModelsConfig, read_providers_file};
use platform_runtime::{Catalog, Delta, Message, Model, Prompt};

#[expect(clippy::disallowed_methods, reason = "the file names the variables that hold its keys")]
fn key(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let question = arguments.next().unwrap_or_else(|| "Hello".to_owned());
    let mut config = ModelsConfig::default();
    if let Some(file) = arguments.next() {
        config.providers = read_providers_file(file.as_ref(), config.providers, key)?;
    }
    let models = Models::start(config).await?;

    let model = models.choose(None, None)?;
    let prompt = Prompt { messages: vec![Message::user(question)], ..Prompt::new(model) };
    let mut show = |delta: Delta<'_>| {
        if let Delta::Text(more) = delta {
            print!("{more}");
            let _ = std::io::stdout().flush();
        }
    };
    let answer = models.answer(&prompt, &mut show).await.map_err(|fault| fault.message)?;

    println!("\n{} tokens in, {} out", answer.usage.input_tokens, answer.usage.output_tokens);
    println!("{} by {}: {} nano-dollars", answer.model.llm, answer.model.provider, answer.cost.total_cost.nanos());
    Ok(())
}

#[test]
fn it_runs() {
    main().expect("an answer of the demo model");
}
