//! The commands: thin, each prints for people. Results on standard output, messages on standard
//! error.
//!
//! | exit code | meaning |
//! |---|---|
//! | 0 | done, healthy, or drained |
//! | 1 | ran and failed; unhealthy; a port or the store's file is in use |
//! | 2 | wrong usage |
//! | 3 | drained, but records were left unresolved or unsettled |
//! | 69 | the store is needed (`--require-ready`, `key`, `store`) and out of reach |
//! | 78 | the configuration is invalid, or the store it names is not fit |

pub mod check;
mod demo;
mod doctor;
mod healthcheck;
mod key;
mod run;
mod store;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::store::OpenError;

/// Done.
pub const OK: u8 = 0;
/// Ran and failed.
pub const FAILED: u8 = 1;
/// Wrong usage.
pub const USAGE: u8 = 2;
/// Records were left unresolved or unsettled.
pub const LEFT_BEHIND: u8 = 3;
/// The store is out of reach.
pub const UNAVAILABLE: u8 = 69;
/// The configuration is invalid.
pub const CONFIG: u8 = 78;

/// Makes the API behind it safe to retry.
#[derive(Debug, Parser)]
#[command(version, about, after_help = EXAMPLES, max_term_width = 100)]
struct Cli {
    /// The configuration file [default: `RETRYSAFE_CONFIG`, else `./config.toml`]
    #[arg(long, short, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    run: RunArgs,
    #[command(subcommand)]
    command: Option<Command>,
}

const EXAMPLES: &str = "\
Examples:
  retrysafe demo                        see what it does, nothing needed
  retrysafe check --config config.toml  every mistake at once
  retrysafe --config config.toml        serve
  retrysafe key show KEY                look a key up";

#[derive(Debug, Args, Clone, Copy)]
struct RunArgs {
    /// Exit with 69 if the store cannot be reached at the start
    #[arg(long)]
    require_ready: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve (the default)
    Run(RunArgs),
    /// Check the configuration and exit
    Check,
    /// Ask the own health port; exit 0 if ready
    Healthcheck,
    /// How far the store can be trusted, and what is missing for more
    Doctor,
    /// Play what goes wrong in real life; needs no file
    Demo {
        /// Leave it running afterwards, with commands to try
        #[arg(long)]
        keep: bool,
    },
    /// Look a key up, or resolve one whose outcome is unknown
    #[command(subcommand)]
    Key(key::KeyCommand),
    /// Prepare a store
    #[command(subcommand)]
    Store(store::StoreCommand),
}

/// Runs the command of this process's arguments; answers the exit code.
pub fn main() -> u8 {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version come this way too, with code 0.
            let _unwritable = error.print().is_err();
            return u8::try_from(error.exit_code()).unwrap_or(2);
        }
    };
    if cli.run.require_ready && !matches!(cli.command, None | Some(Command::Run(_))) {
        eprintln!("retrysafe: --require-ready belongs to run");
        return USAGE;
    }
    let env = crate::config::environment();
    let path = cli.config.as_deref();
    match cli.command {
        None => run::run(path, &env, cli.run.require_ready),
        Some(Command::Run(args)) => {
            run::run(path, &env, args.require_ready || cli.run.require_ready)
        }
        Some(Command::Check) => check::check(path, &env, &mut std::io::stdout()),
        Some(Command::Healthcheck) => healthcheck::healthcheck(path, &env),
        Some(Command::Doctor) => doctor::doctor(path, &env),
        Some(Command::Demo { keep }) => demo::demo(keep),
        Some(Command::Key(command)) => key::key(path, &env, &command),
        Some(Command::Store(command)) => store::store(path, &env, &command),
    }
}

/// The configuration, or what is wrong with it on standard error.
fn load(
    path: Option<&std::path::Path>,
    env: &crate::config::Environment,
) -> Result<crate::config::Loaded, u8> {
    or_say(crate::config::load(path, env))
}

/// The same for a command that serves nobody.
fn load_to_ask(
    path: Option<&std::path::Path>,
    env: &crate::config::Environment,
) -> Result<crate::config::Loaded, u8> {
    or_say(crate::config::load_to_ask(path, env))
}

fn or_say(
    loaded: Result<crate::config::Loaded, crate::config::ConfigErrors>,
) -> Result<crate::config::Loaded, u8> {
    loaded.map_err(|errors| {
        eprintln!("{errors}");
        CONFIG
    })
}

/// A runtime on this thread.
fn runtime() -> Result<tokio::runtime::Runtime, u8> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| {
            eprintln!("retrysafe: no runtime: {error}");
            FAILED
        })
}

/// Says why the store cannot be used; the exit code of that.
fn not_open(error: &OpenError) -> u8 {
    eprintln!("retrysafe: {error}");
    match error {
        OpenError::Unfit(_) => CONFIG,
        OpenError::InUse(_) => FAILED,
        OpenError::Unreachable(_) => UNAVAILABLE,
    }
}
