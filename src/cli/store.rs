//! `retrysafe store init`: creates what a store needs before it is used, or prints it for people
//! who create tables by hand.
//!
//! Invariant: it changes nothing that is there.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use clap::{Args, Subcommand};

use super::{OK, USAGE};
use crate::clock::SystemClock;
use crate::config::Environment;
use crate::store::{Stores, postgres};

/// What to do with the store.
#[derive(Debug, Subcommand)]
pub(super) enum StoreCommand {
    /// Create the table of a postgres:// store, if it is not there
    Init(Init),
}

/// How.
#[derive(Debug, Args)]
pub(super) struct Init {
    /// Print the SQL instead; needs no configuration and connects to nothing
    #[arg(long)]
    print: bool,
}

/// Answers the exit code.
pub(super) fn store(path: Option<&Path>, env: &Environment, command: &StoreCommand) -> u8 {
    let StoreCommand::Init(init) = command;
    if init.print {
        // A reader that went away ends nothing.
        let _gone = std::io::stdout()
            .write_all(postgres::sql().as_bytes())
            .is_err();
        return OK;
    }
    let created = super::load_to_ask(path, env).and_then(|loaded| {
        let wake = Arc::new(|_| {});
        let stores = Stores::open(&loaded.config.store, Arc::new(SystemClock), wake);
        let stores = stores.map_err(|error| super::not_open(&error))?;
        let Some(stores) = stores.postgres() else {
            eprintln!(
                "retrysafe: {} needs nothing created; this is for postgres:// stores",
                loaded.config.store.url
            );
            return Err(USAGE);
        };
        super::runtime()?.block_on(async {
            stores
                .init()
                .await
                .map_err(|error| super::not_open(&error))?;
            println!("the table retrysafe_records is there: {}", stores.address());
            for warning in stores
                .check()
                .await
                .map_err(|error| super::not_open(&error))?
            {
                eprintln!("warning: {warning}");
            }
            Ok(OK)
        })
    });
    created.unwrap_or_else(|code| code)
}
