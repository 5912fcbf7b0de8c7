//! `retrysafe doctor`: how far the store can be trusted, what is missing for more, and how to get it.
//!
//! Invariant: it changes nothing, and shows no password.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::{FAILED, OK, UNAVAILABLE};
use crate::clock::SystemClock;
use crate::config::{Config, Environment};
use crate::store::tier::{self, Guarantee};
use crate::store::{Settings, StoreUrl, Stores};

/// Answers the exit code.
pub(super) fn doctor(path: Option<&Path>, env: &Environment) -> u8 {
    let looked = super::load_to_ask(path, env)
        .and_then(|loaded| super::runtime()?.block_on(look(&loaded.config)));
    looked.unwrap_or_else(|code| code)
}

async fn look(config: &Config) -> Result<u8, u8> {
    println!("store      {}", config.store.url);
    let (found, warnings) = match &config.store.url {
        // Opening the file would make it, and another process may have it.
        StoreUrl::File(_) => (tier::of_file(), Vec::new()),
        StoreUrl::Memory | StoreUrl::Redis(_) | StoreUrl::Postgres(_) => ask(config).await?,
    };
    let required = config.store.require_tier;
    let (tier, survives) = (found.tier, found.tier.survives());
    println!("guarantee  {tier}: what is recorded survives {survives}");
    println!("found      {}", found.found);
    if let Some(missing) = &found.missing {
        println!("for more   {missing}");
    }
    let is_met = tier >= required;
    let met = if is_met { "met" } else { "NOT MET" };
    println!("required   {required} (policy.require_tier): {met}");
    for warning in warnings {
        println!("warning    {warning}");
    }
    Ok(if is_met { OK } else { FAILED })
}

async fn ask(config: &Config) -> Result<(Guarantee, Vec<String>), u8> {
    let settings = Settings {
        hold_off: Duration::ZERO,
        ..config.store.clone()
    };
    let stores = Stores::open(&settings, Arc::new(SystemClock), Arc::new(|_| {}));
    let stores = stores.map_err(|error| super::not_open(&error))?;
    let warnings = stores
        .check()
        .await
        .map_err(|error| super::not_open(&error))?;
    let Some(found) = stores.guarantee().await else {
        eprintln!("retrysafe: the store cannot be asked how it keeps records");
        return Err(UNAVAILABLE);
    };
    Ok((found, warnings))
}
