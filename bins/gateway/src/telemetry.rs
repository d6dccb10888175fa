//! Logs: one JSON object a line on stderr, each a sentence with its particulars.

use platform_models::ConfigError;
use tracing_subscriber::EnvFilter;

/// Starts logging with a filter such as `info` or `platform_chat=debug,warn`.
pub(crate) fn init(filter: &str) -> Result<(), ConfigError> {
    // The HTTP library's own start-up notes say nothing that ours do not.
    let filter = EnvFilter::try_new(format!("actix_server=warn,{filter}"))
        .map_err(|e| ConfigError(format!("PLATFORM_LOG: {e}.")))?;
    // A second start in one process (tests) keeps the first.
    let _ = tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_current_span(false)
        .with_span_list(false)
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .try_init();
    Ok(())
}
