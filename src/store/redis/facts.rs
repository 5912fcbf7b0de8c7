//! What a Redis is made of, as far as it says so: its disk, its replicas.

use std::sync::atomic::Ordering;

use redis::{Cmd, Value};

use super::RedisStores;
use super::address::Place;
use super::connection::{Slot, Trouble};
use super::info::Info;
use super::link::{End, Finder, Target};
use super::mark::Watch;
use crate::store::StoreError;
use crate::store::tier::{Guarantee, Persistence, RedisFacts, of_redis};

impl RedisStores {
    /// How far it can be trusted: of several masters the weakest counts.
    pub async fn guarantee(&self) -> Result<Guarantee, StoreError> {
        let (masters, others_may_take_over) = match &self.shared.target.finder {
            Finder::Fixed(end) => (vec![end.clone()], false),
            Finder::Sentinels(sentinels) => (vec![End::Server(sentinels.master().await?)], true),
            Finder::AnyNode(cluster) => {
                let (masters, replicas) = cluster.all().await?;
                let ends = |places: Vec<Place>| places.into_iter().map(End::Server).collect();
                (ends(masters), !replicas.is_empty())
            }
        };
        let wait_replicas = self.replicas.as_ref().map_or(0, |replicas| replicas.wanted);
        let mut weakest: Option<Guarantee> = None;
        let (mut all_on_disk, mut all_confirm) = (true, wait_replicas > 0);
        for end in masters {
            let (persistence, replicas) = self.asked(&end).await?;
            all_on_disk &= persistence == Persistence::Always;
            // Of more than are waited for, one that has not confirmed may take over; one that is away
            // now too.
            let most = self.most_replicas.fetch_max(replicas, Ordering::Relaxed);
            all_confirm &= most.max(replicas) <= wait_replicas;
            let found = of_redis(RedisFacts {
                persistence,
                has_replicas: replicas > 0 || others_may_take_over,
                wait_replicas,
            });
            let weaker = weakest
                .as_ref()
                .is_none_or(|weakest| found.tier < weakest.tier);
            if weaker {
                weakest = Some(found);
            }
        }
        let weakest = weakest.ok_or_else(|| super::errors::odd("a cluster"))?;
        // A master that starts anew has what its disk has, whatever its replicas confirmed.
        // What looks like a start anew may be the second of two failovers.
        let alone = !others_may_take_over && self.most_replicas.load(Ordering::Relaxed) == 0;
        let restart_keeps = all_on_disk && (alone || all_confirm);
        self.shared.loss.set_keeps(restart_keeps, all_confirm);
        Ok(weakest)
    }

    async fn asked(&self, end: &End) -> Result<(Persistence, u32), StoreError> {
        let target = Target {
            access: self.shared.target.access.clone(),
            finder: Finder::Fixed(end.clone()),
            watch: Watch::Nobody,
        };
        let slot = Slot::new(std::sync::Arc::new(target));
        let live = slot.live().await?;
        let ask = |words: [&str; 2]| -> Cmd {
            let mut ask = redis::cmd(words[0]);
            ask.arg(words[1]);
            ask
        };
        let said = slot.command(&live, &ask(["INFO", "persistence"])).await?;
        let appends = Info::read(&said).appends;
        let said = slot.command(&live, &ask(["INFO", "replication"])).await?;
        let replicas = Info::read(&said).replicas.len();
        let replicas = u32::try_from(replicas).unwrap_or(u32::MAX);
        let persistence = match appends {
            Some(false) => Persistence::None,
            None => Persistence::Unknown,
            Some(true) => {
                let mut policy = ask(["CONFIG", "GET"]);
                policy.arg("appendfsync");
                match slot.command(&live, &policy).await {
                    Ok(said) => synced(&said),
                    // Whom it is not allowed: the weaker answer counts.
                    Err(Trouble::Answered(_) | Trouble::Replica) => Persistence::Unknown,
                    Err(Trouble::Lost(error)) => return Err(error),
                }
            }
        };
        Ok((persistence, replicas))
    }
}

/// The answer to `CONFIG GET appendfsync`, in either protocol.
fn synced(said: &Value) -> Persistence {
    let value = match said {
        Value::Map(pairs) => pairs.first().map(|(_, value)| value),
        Value::Array(parts) => parts.get(1),
        _ => None,
    };
    let text = match value {
        Some(Value::BulkString(octets)) => octets.as_slice(),
        Some(Value::SimpleString(text)) => text.as_bytes(),
        _ => b"",
    };
    match text {
        b"always" => Persistence::Always,
        b"everysec" => Persistence::EverySecond,
        b"no" => Persistence::None,
        _ => Persistence::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_protocols_tell_when_the_disk_is_synced() {
        let bulk = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let list = |text| Value::Array(vec![bulk("appendfsync"), bulk(text)]);
        assert_eq!(synced(&list("always")), Persistence::Always);
        assert_eq!(synced(&list("everysec")), Persistence::EverySecond);
        assert_eq!(synced(&list("no")), Persistence::None);
        let map = Value::Map(vec![(bulk("appendfsync"), bulk("always"))]);
        assert_eq!(synced(&map), Persistence::Always);
        assert_eq!(synced(&Value::Array(Vec::new())), Persistence::Unknown);
    }
}
