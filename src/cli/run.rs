//! `retrysafe run`: serves until SIGTERM or SIGINT, then drains (R31).

use std::path::Path;

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{CONFIG, FAILED, LEFT_BEHIND, OK, UNAVAILABLE};
use crate::app::{App, AppError, Options};
use crate::config::Environment;
use crate::telemetry;

/// Answers the exit code.
pub(super) fn run(path: Option<&Path>, env: &Environment, require_ready: bool) -> u8 {
    serve(path, env, require_ready).unwrap_or_else(|code| code)
}

fn serve(path: Option<&Path>, env: &Environment, require_ready: bool) -> Result<u8, u8> {
    let loaded = super::load(path, env)?;
    telemetry::log::init(&loaded.config.log).map_err(|error| {
        eprintln!("retrysafe: {error}");
        CONFIG
    })?;
    let options = Options { require_ready };
    super::runtime()?.block_on(async {
        let mut signals = Signals::new()?;
        // The address comes first, so that whoever started this can find it.
        let app = App::bind(loaded.config, options)
            .await
            .map_err(|error| report(&error))?;
        let warnings = loaded.warnings;
        let ending = app
            .run(async {
                for warning in &warnings {
                    tracing::warn!(event = "config_warning", "{}", warning.message);
                }
                signals.next().await;
                tokio::spawn(async move {
                    signals.next().await;
                    at_once();
                });
            })
            .await
            .map_err(|error| report(&error))?;
        Ok(if ending.left_behind == 0 {
            OK
        } else {
            LEFT_BEHIND
        })
    })
}

fn report(error: &AppError) -> u8 {
    tracing::error!(event = "start_failed", "{error}");
    match error {
        AppError::Unfit(_) => CONFIG,
        AppError::StoreUnreachable(_) => UNAVAILABLE,
        AppError::Failed(_) => FAILED,
    }
}

/// A second signal ends at once (R31). What runs is cut with the process.
#[allow(clippy::exit)]
fn at_once() {
    tracing::warn!(
        event = "ended_at_once",
        "a second signal came: ending at once"
    );
    std::process::exit(i32::from(LEFT_BEHIND));
}

/// SIGTERM and SIGINT.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> Result<Self, u8> {
        let listen = |kind| {
            signal(kind).map_err(|error| {
                eprintln!("retrysafe: no signal handler: {error}");
                FAILED
            })
        };
        let terminate = listen(SignalKind::terminate())?;
        let interrupt = listen(SignalKind::interrupt())?;
        Ok(Self {
            terminate,
            interrupt,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
