//! What a server says about itself, and whether it is fit to be trusted with records.
//!
//! Invariant: a policy that may evict records is an error unless the operator took that on. `INFO`
//! is asked and not `CONFIG`: a user without rights of an administrator may ask it.
//!
//! Deliberately absent: reacting to it. `check` runs at start and every minute; the caller decides.

use redis::Value;

use crate::store::OpenError;

/// The parts of `INFO` that matter here.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Info {
    /// Major and minor version of the Redis it is, or that Valkey says it stands for.
    pub(super) version: Option<(u32, u32)>,
    pub(super) policy: Option<String>,
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
            policy: field("maxmemory_policy"),
        }
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
