//! Sets up the log: text on a terminal, one JSON object a line elsewhere. Control characters in
//! values are escaped by the formatter.

use std::io::{self, IsTerminal};

use thiserror::Error;
use tracing_subscriber::EnvFilter;

use super::{LogFormat, Settings};

/// A log that cannot be set up.
#[derive(Debug, Error)]
pub enum LogError {
    /// Not a filter.
    #[error("log level {0:?} is no filter: write a level such as \"info\", or \"retrysafe=debug\"")]
    Filter(String),
    /// There is a logger already.
    #[error("the log is set up already")]
    Twice,
}

/// Sends events to standard error.
pub fn init(settings: &Settings) -> Result<(), LogError> {
    let filter = EnvFilter::try_new(&settings.level)
        .map_err(|_| LogError::Filter(settings.level.clone()))?;
    let terminal = io::stderr().is_terminal();
    let text = match settings.format {
        LogFormat::Auto => terminal,
        LogFormat::Text => true,
        LogFormat::Json => false,
    };
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr);
    let result = if text {
        builder.with_ansi(terminal).with_target(false).try_init()
    } else {
        builder
            .json()
            .flatten_event(true)
            .with_target(false)
            .try_init()
    };
    result.map_err(|_| LogError::Twice)
}
