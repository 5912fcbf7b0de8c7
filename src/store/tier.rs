//! How far a store can be trusted: what a record that it acknowledged survives.
//!
//! Pure: the facts come from the live server (`check` of each store), the words are for people. Where a
//! fact is not to be had, the weaker answer counts.

use std::fmt;

/// The tiers, the weakest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// Nothing: a restart forgets.
    T0,
    /// The end of a proxy, not a crash of the store.
    T1,
    /// The same, and a failover but for what was not replicated yet.
    T2,
    /// A failover to a replica that confirmed.
    T3,
    /// A crash of the store.
    T4,
    /// The loss of the store's primary.
    T5,
}

impl Tier {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::T0, Self::T1, Self::T2, Self::T3, Self::T4, Self::T5];

    /// Its number.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// `T3`.
    pub fn name(self) -> &'static str {
        match self {
            Self::T0 => "T0",
            Self::T1 => "T1",
            Self::T2 => "T2",
            Self::T3 => "T3",
            Self::T4 => "T4",
            Self::T5 => "T5",
        }
    }

    /// What an acknowledged record survives.
    pub fn survives(self) -> &'static str {
        match self {
            Self::T0 => "nothing: a restart forgets every record",
            Self::T1 => "crashes of the proxy, not a crash of the store",
            Self::T2 => "crashes of the proxy; a failover may lose what was not replicated yet",
            Self::T3 => "a failover to a replica that confirmed",
            Self::T4 => "a crash of the store",
            Self::T5 => "a crash of the store, and the loss of its primary",
        }
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A tier with its reasons.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guarantee {
    /// Which.
    pub tier: Tier,
    /// What was found.
    pub found: String,
    /// What would make it more, if anything can.
    pub missing: Option<String>,
}

/// When Redis writes to its disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Persistence {
    /// Never, or now and then as a snapshot.
    None,
    /// Each second.
    EverySecond,
    /// Before it answers.
    Always,
    /// It would not say.
    Unknown,
}

/// What a Redis is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RedisFacts {
    /// `appendonly`, `appendfsync`.
    pub persistence: Persistence,
    /// Replicas are there, or others may take over (Sentinel, Cluster).
    pub has_replicas: bool,
    /// `store.wait_replicas`.
    pub wait_replicas: u32,
}

/// What a `PostgreSQL` is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PostgresFacts {
    /// `fsync`
    pub fsync: bool,
    /// `synchronous_commit`
    pub synchronous_commit: String,
    /// Standbys that confirm each commit.
    pub synchronous_standbys: bool,
}

/// `memory:`
pub fn of_memory() -> Guarantee {
    Guarantee {
        tier: Tier::T0,
        found: "records are in this process".to_owned(),
        missing: Some("write store.url = \"file:PATH\"".to_owned()),
    }
}

/// `file:PATH`
pub fn of_file() -> Guarantee {
    Guarantee {
        tier: Tier::T4,
        found: "each commit is on the disk before it is answered; one replica".to_owned(),
        missing: Some(
            "more than one disk: PostgreSQL with a synchronous standby (postgres://)".to_owned(),
        ),
    }
}

/// `redis://` of every kind.
pub fn of_redis(facts: RedisFacts) -> Guarantee {
    let disk = match facts.persistence {
        Persistence::None => "no append-only file",
        Persistence::EverySecond => "an append-only file synced each second",
        Persistence::Always => "an append-only file synced before each answer",
        Persistence::Unknown => "an append-only file whose appendfsync it does not tell",
    };
    let guarantee = |tier, found: String, missing: &str| Guarantee {
        tier,
        found,
        missing: Some(missing.to_owned()),
    };
    match (facts.has_replicas, facts.wait_replicas) {
        (true, 0) => guarantee(
            Tier::T2,
            format!("{disk}; replicas that confirm nothing"),
            "set store.wait_replicas = 1 or more",
        ),
        (true, wait) => guarantee(
            Tier::T3,
            format!("{disk}; {wait} of the replicas confirm each claim and each record"),
            "a store that survives the crash of all its servers: PostgreSQL (postgres://)",
        ),
        (false, _) if facts.persistence == Persistence::Always => guarantee(
            Tier::T4,
            format!("{disk}; no replica"),
            "a second server: PostgreSQL with a synchronous standby (postgres://)",
        ),
        (false, _) => guarantee(
            Tier::T1,
            format!("{disk}; no replica"),
            "set appendonly yes and appendfsync always in Redis, and let its user read them (+config|get); \
             or add replicas and set store.wait_replicas",
        ),
    }
}

/// `postgres://`, with or without a cache before it.
pub fn of_postgres(facts: &PostgresFacts) -> Guarantee {
    let commit = facts.synchronous_commit.as_str();
    let found = format!(
        "fsync = {}, synchronous_commit = {commit}, {} synchronous standby",
        if facts.fsync { "on" } else { "off" },
        if facts.synchronous_standbys {
            "a"
        } else {
            "no"
        },
    );
    let waits_for_disk = facts.fsync && commit != "off";
    let waits_for_standby = ["on", "remote_write", "remote_apply"].contains(&commit);
    let (tier, missing) = if !waits_for_disk {
        let missing = "set fsync and synchronous_commit to on in PostgreSQL";
        (Tier::T1, Some(missing.to_owned()))
    } else if facts.synchronous_standbys && waits_for_standby {
        (Tier::T5, None)
    } else {
        let missing = "name a standby in synchronous_standby_names, with synchronous_commit = on";
        (Tier::T4, Some(missing.to_owned()))
    };
    Guarantee {
        tier,
        found,
        missing,
    }
}

#[cfg(test)]
mod tests {
    use super::Persistence::{Always, EverySecond, None as Never, Unknown};
    use super::*;

    #[test]
    fn redis_is_as_good_as_its_disk_or_its_replicas() {
        let tier = |persistence, has_replicas, wait_replicas| {
            let facts = RedisFacts {
                persistence,
                has_replicas,
                wait_replicas,
            };
            of_redis(facts).tier
        };
        for weak in [Never, EverySecond, Unknown] {
            assert_eq!(tier(weak, false, 0), Tier::T1);
            assert_eq!(tier(weak, true, 0), Tier::T2);
            assert_eq!(tier(weak, true, 1), Tier::T3);
        }
        assert_eq!(tier(Always, false, 0), Tier::T4);
        // A failover forgets what the disk of the lost one holds.
        assert_eq!(tier(Always, true, 0), Tier::T2);
        assert_eq!(tier(Always, true, 2), Tier::T3);
    }

    #[test]
    fn postgresql_is_as_good_as_its_commit() {
        let tier = |fsync, commit: &str, synchronous_standbys| {
            let facts = PostgresFacts {
                fsync,
                synchronous_commit: commit.to_owned(),
                synchronous_standbys,
            };
            of_postgres(&facts).tier
        };
        assert_eq!(tier(true, "on", false), Tier::T4);
        assert_eq!(tier(true, "local", true), Tier::T4);
        assert_eq!(tier(true, "on", true), Tier::T5);
        assert_eq!(tier(true, "remote_apply", true), Tier::T5);
        assert_eq!(tier(true, "off", true), Tier::T1);
        assert_eq!(tier(false, "on", true), Tier::T1);
    }

    #[test]
    fn tiers_are_in_order_and_say_what_they_are() {
        for (number, tier) in Tier::ALL.into_iter().enumerate() {
            assert_eq!(usize::from(tier.number()), number);
            assert_eq!(tier.to_string(), format!("T{number}"));
            assert!(!tier.survives().is_empty());
        }
        assert!(Tier::ALL.is_sorted());
        assert_eq!(of_memory().tier, Tier::T0);
        assert_eq!(of_file().tier, Tier::T4);
    }
}
