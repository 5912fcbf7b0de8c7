//! The commands: thin, each prints for people. Results on standard output, messages on standard
//! error.
//!
//! | exit code | meaning |
//! |---|---|
//! | 0 | done, healthy, or drained |
//! | 1 | ran and failed; unhealthy; the file store is in use |
//! | 2 | wrong usage |
//! | 3 | drained, but records were left unresolved or unsettled |
//! | 69 | the store is needed (`--require-ready`, `key`) and out of reach |
//! | 78 | the configuration is invalid, or the store unfit |

pub mod check;
mod demo;
mod healthcheck;
mod key;
mod run;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// Done.
pub const OK: u8 = 0;
/// Ran and failed.
pub const FAILED: u8 = 1;
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
    /// Play what goes wrong in real life; needs no file
    Demo {
        /// Leave it running afterwards, with commands to try
        #[arg(long)]
        keep: bool,
    },
    /// Look a key up, or resolve one whose outcome is unknown
    #[command(subcommand)]
    Key(key::KeyCommand),
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
    let env = crate::config::environment();
    let path = cli.config.as_deref();
    match cli.command {
        None => run::run(path, &env, cli.run.require_ready),
        Some(Command::Run(args)) => {
            run::run(path, &env, args.require_ready || cli.run.require_ready)
        }
        Some(Command::Check) => check::check(path, &env, &mut std::io::stdout()),
        Some(Command::Healthcheck) => healthcheck::healthcheck(path, &env),
        Some(Command::Demo { keep }) => demo::demo(keep),
        Some(Command::Key(command)) => key::key(path, &env, &command),
    }
}

/// The configuration, or what is wrong with it on standard error.
fn load(
    path: Option<&std::path::Path>,
    env: &crate::config::Environment,
) -> Result<crate::config::Loaded, u8> {
    crate::config::load(path, env).map_err(|errors| {
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
