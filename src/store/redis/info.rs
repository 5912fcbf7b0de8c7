//! What a server says about itself, and whether it is fit to be trusted with records.
//!
//! Invariant: a policy that may evict records is an error unless the operator took that on. `INFO`
//! is asked and not `CONFIG`: a user without rights of an administrator may ask it.
//!
//! Deliberately absent: reacting to it. `check` runs at start and every minute; the caller decides.

use std::time::Duration;

use redis::Value;

use super::address::Place;
use crate::store::OpenError;

/// The parts of `INFO` that matter here.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Info {
    /// Major and minor version of the Redis it is, or that Valkey says it stands for.
    pub(super) version: Option<(u32, u32)>,
    pub(super) policy: Option<String>,
    /// Another one with each start of a server.
    pub(super) run_id: Option<String>,
    /// It follows another one.
    pub(super) is_replica: bool,
    /// For how many whole seconds it has been there.
    pub(super) uptime: Option<Duration>,
    /// What its data is called, and replicas' copies of it; and what it was called before it became a
    /// master, or was started anew.
    pub(super) data: Option<String>,
    pub(super) data_before: Option<String>,
    /// Whether there is an append-only file.
    pub(super) appends: Option<bool>,
    /// Replicas that are connected, as the server knows them.
    pub(super) replicas: Vec<Place>,
}

impl Info {
    /// An answer to `INFO`; what cannot be read is unknown.
    pub(super) fn read(answer: &Value) -> Self {
        let text = match answer {
            Value::BulkString(octets) => String::from_utf8_lossy(octets).into_owned(),
            Value::VerbatimString { text, .. } => text.clone(),
            _ => String::new(),
        };
        let field = |name: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once(':'));
            lines
                .find(|(key, _)| *key == name)
                .map(|(_, value)| value.trim().to_owned())
        };
        Self {
            version: field("redis_version").as_deref().and_then(version),
            run_id: field("run_id"),
            is_replica: field("role").is_some_and(|role| role == "slave"),
            uptime: field("uptime_in_seconds")
                .and_then(|text| text.parse().ok())
                .map(Duration::from_secs),
            data: field("master_replid"),
            data_before: field("master_replid2"),
            policy: field("maxmemory_policy"),
            appends: field("aof_enabled").map(|enabled| enabled == "1"),
            replicas: text.lines().filter_map(replica).collect(),
        }
    }

    /// Lays what another section says beside it.
    pub(super) fn add(&mut self, other: Self) {
        self.version = self.version.or(other.version);
        self.policy = self.policy.take().or(other.policy);
        self.replicas.extend(other.replicas);
    }

    /// A warning where fewer replicas are there than have to confirm.
    pub(super) fn too_few(&self, address: &str, wanted: u32) -> Option<String> {
        let found = self.replicas.len();
        let short = u32::try_from(found).is_ok_and(|found| found < wanted);
        short.then(|| {
            format!(
                "Redis at {address} has {found} replicas and store.wait_replicas is {wanted}: \
                 nothing new is claimed until there are enough"
            )
        })
    }

    /// Whether the server knows `SET NX GET` and flags of scripts. An unknown one is treated as
    /// the oldest: that costs a little and is right everywhere.
    pub(super) fn is_modern(&self) -> bool {
        self.version.is_some_and(|version| version >= (7, 0))
    }

    /// Warnings, or why this server must not be used.
    pub(super) fn fit(
        &self,
        address: &str,
        allow_eviction: bool,
    ) -> Result<Vec<String>, OpenError> {
        let mut warnings = Vec::new();
        match self.version {
            Some(version) if version < (6, 2) => {
                let (major, minor) = version;
                return Err(OpenError::Unfit(format!(
                    "Redis at {address} is version {major}.{minor}; 6.2 or later is needed"
                )));
            }
            Some(_) => {}
            None => warnings.push(format!(
                "Redis at {address} does not say its version; it is treated as 6.2"
            )),
        }
        match self.policy.as_deref() {
            Some("noeviction") => {}
            Some(policy) if allow_eviction => warnings.push(format!(
                "Redis at {address} evicts records when its memory is full (maxmemory-policy \
                 {policy}), and a request whose record is gone RUNS TWICE. store.allow_eviction = \
                 true accepts that"
            )),
            Some(policy) => return Err(OpenError::Unfit(evicts(address, policy))),
            None => warnings.push(format!(
                "Redis at {address} does not say its maxmemory-policy; make sure that it is \
                 noeviction"
            )),
        }
        Ok(warnings)
    }
}

/// `slave0:ip=10.0.0.2,port=6379,state=online,offset=1,lag=0`
fn replica(line: &str) -> Option<Place> {
    let (name, fields) = line.trim().split_once(':')?;
    name.strip_prefix("slave")?.parse::<u32>().ok()?;
    let field = |name: &str| {
        let mut fields = fields.split(',').filter_map(|field| field.split_once('='));
        fields.find(|(key, _)| *key == name).map(|(_, value)| value)
    };
    field("state").filter(|state| *state == "online")?;
    Some(Place {
        host: field("ip")?.to_owned(),
        port: field("port")?.parse().ok()?,
    })
}

fn version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split('.').map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

fn evicts(address: &str, policy: &str) -> String {
    format!(
        "Redis at {address} evicts records when its memory is full (maxmemory-policy {policy}), \
         and a request whose record is gone runs twice. Mend it with\n    redis-cli -u {address} \
         CONFIG SET maxmemory-policy noeviction\nand in the server's own configuration, or accept \
         it with store.allow_eviction = true"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(text: &str) -> Info {
        Info::read(&Value::BulkString(text.as_bytes().to_vec()))
    }

    #[test]
    fn servers_are_told_apart() {
        let redis7 = info("# Server\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\n");
        assert_eq!(redis7.version, Some((7, 0)));
        assert!(redis7.is_modern());
        let valkey = info("redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:9.1.2\r\n");
        assert!(valkey.is_modern());
        assert!(!info("redis_version:6.2.5\r\n").is_modern());
        assert!(info("redis_version:10.0.0\r\n").is_modern());
        for unknown in ["", "redis_version:\r\n", "redis_version:x.y\r\n"] {
            assert_eq!(info(unknown).version, None);
            assert!(!info(unknown).is_modern());
        }
        assert_eq!(Info::read(&Value::Nil), Info::default());
    }

    #[test]
    fn replicas_that_are_there_are_counted() {
        let text = "role:master\r\nconnected_slaves:2\r\n\
                    slave0:ip=10.0.0.2,port=6379,state=online,offset=1,lag=0\r\n\
                    slave1:ip=::1,port=1,state=wait_bgsave,offset=0,lag=0\r\n\
                    slave_read_only:1\r\n";
        let read = info(text);
        assert_eq!(read.replicas.len(), 1, "{read:?}");
        assert_eq!(read.replicas[0].to_string(), "10.0.0.2:6379");
        assert_eq!(read.too_few("redis://h:1", 1), None);
        let warning = read.too_few("redis://h:1", 2).unwrap();
        assert!(warning.contains("has 1 replicas"), "{warning}");
    }

    #[test]
    fn only_a_server_that_keeps_records_is_fit() {
        let fit = |text: &str, allow| info(text).fit("redis://h:1", allow);
        let good = "redis_version:7.0.1\r\nmaxmemory_policy:noeviction\r\n";
        assert_eq!(fit(good, false).unwrap(), Vec::<String>::new());
        for policy in ["allkeys-lru", "volatile-ttl", "volatile-lru"] {
            let text = format!("redis_version:7.0.1\r\nmaxmemory_policy:{policy}\r\n");
            let Err(OpenError::Unfit(message)) = fit(&text, false) else {
                panic!("{policy} is refused");
            };
            let command = "redis-cli -u redis://h:1 CONFIG SET maxmemory-policy noeviction";
            assert!(message.contains(command), "{message}");
            let warnings = fit(&text, true).unwrap();
            assert!(warnings[0].contains("RUNS TWICE"), "{warnings:?}");
        }
        let old = "redis_version:6.0.9\r\nmaxmemory_policy:noeviction\r\n";
        assert!(matches!(fit(old, true), Err(OpenError::Unfit(_))));
        assert_eq!(fit("", false).unwrap().len(), 2, "what is unknown is said");
    }
}
