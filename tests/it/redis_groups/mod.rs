//! Several Redis servers that belong together, and the loss of one of them: what was acknowledged,
//! what is refused meanwhile and for how long, and that nothing runs twice.

mod cluster;
mod ledger;
mod marks;
mod replicas;
mod sentinel;
mod votes;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use retrysafe::idempotency::{Operation, RecordKey};
use retrysafe::store::{RedisStores, Settings, Store, StoreError};

use crate::store_contract::bench::comparable;
use crate::store_contract::operations::words;
use crate::support::authority::Authority;
use crate::support::redis::{own_ip, settings_at};

/// A store at `url` whose writes `replicas` replicas must confirm.
fn stores(url: String, replicas: u32, timeout: Duration) -> RedisStores {
    let settings = Settings {
        wait_replicas: replicas,
        timeout,
        ..settings_at(url)
    };
    RedisStores::new(&settings, Arc::new(|_| {})).unwrap()
}

fn key(number: u32) -> RecordKey {
    let mut octets = [0x5a; 32];
    octets[..4].copy_from_slice(&number.to_be_bytes());
    RecordKey(octets)
}

/// Files for servers that speak TLS with everybody.
struct Certificates(tempfile::TempDir);

impl Certificates {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::new("store");
        let pair = authority.peer_named(&[&own_ip().to_string()]);
        pair.write(folder.path(), "server");
        std::fs::write(folder.path().join("ca.crt"), authority.certificate()).unwrap();
        Self(folder)
    }

    fn ca(&self) -> PathBuf {
        self.0.path().join("ca.crt")
    }

    /// As lines of a server's configuration.
    fn lines(&self) -> Vec<String> {
        let folder = self.0.path().display();
        vec![
            format!("tls-cert-file {folder}/server.crt"),
            format!("tls-key-file {folder}/server.key"),
            format!("tls-ca-cert-file {folder}/ca.crt"),
            "tls-auth-clients no".to_owned(),
            "tls-replication yes".to_owned(),
            "tls-cluster yes".to_owned(),
        ]
    }
}

/// The outcome in words.
async fn apply(
    store: &Arc<dyn Store>,
    number: u32,
    operation: Operation,
) -> Result<String, StoreError> {
    let outcome = store.apply(key(number), operation).await?;
    Ok(words(&comparable(outcome)))
}
