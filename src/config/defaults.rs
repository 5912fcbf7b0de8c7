//! What a configuration means when nothing is written: the one place of the defaults, with
//! `Policy::default()`. The texts in `schema/` and in the shipped file are compared with it.

use std::path::PathBuf;
use std::time::Duration;

use super::Config;
use crate::idempotency::Policy;
use crate::proxy::{HostHeader, HostPort, Underscores, UpstreamSettings, UpstreamUrl};
use crate::store::StoreUrl;
use crate::store::tier::Tier;
use crate::store::vault::VaultSettings;
use crate::telemetry::LogFormat;
use crate::tls::{ClientKeys, ClientSettings};
use crate::{admin, proxy, server, store, telemetry};

const fn seconds(number: u64) -> Duration {
    Duration::from_secs(number)
}

impl Default for Config {
    fn default() -> Self {
        Self {
            server: server::Settings {
                listen: ([0, 0, 0, 0], 4390).into(),
                threads: 0,
                max_connections: 10_000,
                header_timeout: seconds(10),
                idle_timeout: seconds(75),
                write_timeout: seconds(30),
                drain: seconds(25),
                preserve_header_case: false,
                tls: None,
            },
            proxy: proxy::Settings {
                upstream: UpstreamSettings {
                    url: UpstreamUrl::Http(HostPort {
                        host: "127.0.0.1".to_owned(),
                        port: 3000,
                    }),
                    connect_timeout: seconds(2),
                    answer_within: seconds(30),
                    give_up_after: seconds(600),
                    max_exchanges: 1024,
                    pool_idle_timeout: seconds(4),
                    pool_max_age: seconds(60),
                    host_header: HostHeader::Preserve,
                    tls: ClientSettings::plain(ClientKeys::UPSTREAM),
                },
                body_timeout: seconds(30),
                write_timeout: seconds(30),
                buffer_budget: 256 << 20,
                underscores: Underscores::Drop,
                upgrades: vec!["websocket".to_owned()],
                trusted_proxies: Vec::new(),
                preserve_header_case: false,
                tls: false,
            },
            store: store::Settings {
                url: StoreUrl::File(PathBuf::from("retrysafe.db")),
                namespace: "retrysafe".to_owned(),
                require_tier: Tier::T0,
                secret: None,
                vault: VaultSettings::default(),
                timeout: Duration::from_millis(250),
                wait_replicas: 0,
                single_replica: false,
                hold_off: Duration::from_secs(20),
                allow_eviction: false,
                max_records: 1_000_000,
                connections: 8,
                cache: None,
                tls: ClientSettings::plain(ClientKeys::STORE),
            },
            policy: Policy::default(),
            routes: Vec::new(),
            health: admin::Settings {
                listen: ([0, 0, 0, 0], 4391).into(),
                ready_requires_store: false,
            },
            log: telemetry::Settings {
                format: LogFormat::Auto,
                level: "info".to_owned(),
            },
        }
    }
}
