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

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// The filter of the environment.
///
/// # Errors
/// A sentence that names the variable and what is wrong with its value.
pub fn level_of_environment() -> Result<String, String> {
    match std::env::var(LEVEL_VARIABLE) {
        Ok(text) if !text.is_empty() => {
            parse(&text).map_err(|reason| format!("{LEVEL_VARIABLE}: {reason}"))?;
            Ok(text)
        }
        Err(std::env::VarError::NotUnicode(_)) => {
            Err(format!("{LEVEL_VARIABLE}: the value is not UTF-8"))
        }
        _ => Ok(LEVEL_DEFAULT.to_owned()),
    }
}

/// The library takes any word for the name of a module, whose messages it then shows instead of all others. So a
/// mistyped level would mute the log.
fn parse(text: &str) -> Result<EnvFilter, String> {
    for directive in text.split(',') {
        let level = directive.rsplit('=').next().unwrap_or_default().trim();
        if !LEVELS.iter().any(|known| known.eq_ignore_ascii_case(level)) {
            return Err(format!(
                "`{directive}` is not a level; write {}, or MODULE=LEVEL such as headwater_broker=debug",
                LEVELS.join(", ")
            ));
        }
    }
    EnvFilter::try_new(text).map_err(|error| format!("`{text}`: {error}"))
}

/// Starts logging.
///
/// # Errors
/// The log level in the environment is not a level.
pub fn start(format: LogFormat) -> Result<(), String> {
    let filter = parse(&level_of_environment()?)?;
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
    Ok(())
}

/// Changes the level.
///
/// # Errors
/// A sentence that says what is wrong with the level, or that the embedding program controls logging.
pub fn set_level(text: &str) -> Result<(), String> {
    let filter = parse(text)?;
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

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn a_level_that_is_none_is_refused_by_name() {
        for text in [
            "info",
            "WARN",
            "info,headwater_broker=debug",
            "off",
            "headwater_log::write=trace",
        ] {
            assert!(parse(text).is_ok(), "{text}");
        }
        for (text, named) in [
            ("loud", "`loud`"),
            ("info,headwater_broker", "`headwater_broker`"),
            ("", "``"),
            ("a=b", "`a=b`"),
        ] {
            let reason = parse(text).expect_err(text);
            assert!(
                reason.starts_with(named) && reason.contains("warn"),
                "{reason}"
            );
        }
    }
}
