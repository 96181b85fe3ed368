//! The log of the process on stderr: as lines or as JSON, with a level that can be changed at run time.
//!
//! The environment sets the initial level, because the settings may be what is wrong. If an embedding program has
//! installed its own logging, nothing here applies.

use std::sync::OnceLock;

use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, fmt, reload};

use crate::config::LogFormat;

/// The level filter, for example `info` or `headwater_broker=debug`.
const LEVEL_VARIABLE: &str = "HEADWATER_LOG_LEVEL";
const LEVEL_DEFAULT: &str = "info";

type Level = reload::Handle<EnvFilter, Registry>;

static LEVEL: OnceLock<Level> = OnceLock::new();

/// Starts logging.
pub fn start(format: LogFormat) {
    let filter =
        EnvFilter::try_from_env(LEVEL_VARIABLE).unwrap_or_else(|_| EnvFilter::new(LEVEL_DEFAULT));
    let (filter, handle) = reload::Layer::new(filter);
    let lines = fmt::layer().with_writer(std::io::stderr).with_target(false);
    let registry = tracing_subscriber::registry().with(filter);
    // Only the first call in a process takes effect.
    let is_first = match format {
        LogFormat::Text => registry.with(lines).try_init().is_ok(),
        LogFormat::Json => registry
            .with(lines.json().flatten_event(true))
            .try_init()
            .is_ok(),
    };
    if is_first {
        let _ = LEVEL.set(handle);
    }
}

/// Changes the level.
///
/// # Errors
/// A sentence that says what is wrong with the level, or that the embedding program controls logging.
pub fn set_level(text: &str) -> Result<(), String> {
    let filter = EnvFilter::try_new(text).map_err(|error| format!("`{text}`: {error}"))?;
    let handle = LEVEL
        .get()
        .ok_or("the program that embeds this broker controls its own logging")?;
    handle.reload(filter).map_err(|error| error.to_string())
}

/// The current level.
pub fn level() -> Option<String> {
    LEVEL
        .get()?
        .with_current(std::string::ToString::to_string)
        .ok()
}
