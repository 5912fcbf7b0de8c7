//! The table of a cluster's slots, and how its nodes speak of them. Pure: nobody is asked here.

use std::collections::{BTreeSet, HashMap};

use redis::{ServerError, Value};

use crate::store::redis::address::Place;

/// Slots of every cluster.
const SLOTS: usize = 16_384;

/// What nodes call themselves.
pub(super) type Ids = BTreeSet<Vec<u8>>;

/// Who keeps what.
#[derive(Debug, Default, Clone)]
pub(super) struct Table {
    /// For each slot a number in `masters`; empty before the first answer.
    keepers: Vec<Option<usize>>,
    pub(super) masters: Vec<Place>,
    pub(super) replicas: Vec<Place>,
    /// What all of them call themselves; no two nodes do so alike.
    pub(super) ids: Ids,
    /// The same by where they are.
    names: HashMap<Place, Vec<u8>>,
}

impl Table {
    /// An answer to `CLUSTER SLOTS` of the node at `from`.
    pub(super) fn read(said: &Value, from: &Place) -> Option<Self> {
        let Value::Array(ranges) = said else {
            return None;
        };
        let mut table = Self {
            keepers: vec![None; SLOTS],
            ..Self::default()
        };
        for range in ranges {
            let Value::Array(parts) = range else {
                return None;
            };
            let [Value::Int(first), Value::Int(last), keeper, replicas @ ..] = parts.as_slice()
            else {
                return None;
            };
            let (first, last) = (u16::try_from(*first).ok()?, u16::try_from(*last).ok()?);
            table
                .ids
                .extend([keeper].into_iter().chain(replicas).filter_map(id));
            let (name, keeper) = (id(keeper), place(keeper, from)?);
            table.names.extend(name.map(|name| (keeper.clone(), name)));
            for slot in first..=last {
                table.note(slot, &keeper);
            }
            for replica in replicas {
                let replica = place(replica, from)?;
                if !table.replicas.contains(&replica) {
                    table.replicas.push(replica);
                }
            }
        }
        // A node that was taken out of its cluster knows of no slot.
        (!table.masters.is_empty()).then_some(table)
    }

    /// Whether this speaks of the cluster that was known before. Nodes come and go, not most of them
    /// at once: a table of others is that of a node which joined another cluster, or has the address
    /// of one that is gone. What is recorded is not there.
    pub(super) fn follows(&self, before: &Ids) -> bool {
        self.ids.intersection(before).count() * 2 >= before.len()
    }

    /// Whether somebody took the place of another who kept slots `before`: a replica, most likely.
    /// Nodes do not tell of replicas that have received nothing yet. A node that was started anew at
    /// another place calls itself as before.
    pub(super) fn has_promoted(&self, before: &Self) -> bool {
        let names = |table: &Self| -> BTreeSet<Vec<u8>> {
            let masters = table.masters.iter();
            masters.map(|place| table.name_of(place)).collect()
        };
        let (before, now) = (names(before), names(self));
        now.difference(&before).next().is_some() && before.difference(&now).next().is_some()
    }

    /// What a node calls itself; where that is not said, where it is.
    pub(super) fn name_of(&self, place: &Place) -> Vec<u8> {
        let name = self.names.get(place).cloned();
        name.unwrap_or_else(|| place.to_string().into_bytes())
    }

    pub(super) fn note(&mut self, slot: u16, place: &Place) {
        let known = self.masters.iter().position(|known| known == place);
        let number = known.unwrap_or(self.masters.len());
        if known.is_none() {
            self.masters.push(place.clone());
        }
        self.keepers.resize(SLOTS, None);
        if let Some(keeper) = self.keepers.get_mut(usize::from(slot)) {
            *keeper = Some(number);
        }
    }

    /// The first and the last slot that a node keeps: whoever has this table takes the same.
    pub(super) fn slots_kept_by(&self, place: &Place) -> Vec<u16> {
        let Some(number) = self.masters.iter().position(|known| known == place) else {
            return Vec::new();
        };
        let is_its = |keeper: &Option<usize>| *keeper == Some(number);
        let first = self.keepers.iter().position(is_its);
        let last = self
            .keepers
            .iter()
            .rposition(is_its)
            .filter(|last| Some(*last) != first);
        let slots = [first, last].into_iter().flatten();
        slots.filter_map(|slot| u16::try_from(slot).ok()).collect()
    }

    pub(super) fn keeper(&self, slot: u16) -> Option<Place> {
        let number = self.keepers.get(usize::from(slot)).copied().flatten()?;
        self.masters.get(number).cloned()
    }
}

/// What stands between braces in names of this slot.
pub(super) fn tag_of(slot: u16) -> Option<String> {
    let mut tags = (0_u32..=u32::MAX).map(|number| number.to_string());
    tags.find(|tag| slot_of(tag) == slot)
}

/// The name of a node in `CLUSTER SLOTS`.
fn id(node: &Value) -> Option<Vec<u8>> {
    let Value::Array(parts) = node else {
        return None;
    };
    match parts.get(2) {
        Some(Value::BulkString(id)) => Some(id.clone()),
        _ => None,
    }
}

/// Host and port of a node in `CLUSTER SLOTS`; a host that is not said is that of whom was asked.
fn place(node: &Value, from: &Place) -> Option<Place> {
    let Value::Array(parts) = node else {
        return None;
    };
    let [host, Value::Int(port), ..] = parts.as_slice() else {
        return None;
    };
    let host = match host {
        Value::BulkString(host) => std::str::from_utf8(host).ok()?,
        Value::Nil => "",
        _ => return None,
    };
    Some(Place {
        host: named(host, from),
        port: u16::try_from(*port).ok()?,
    })
}

fn named(host: &str, from: &Place) -> String {
    match host {
        "" | "?" => from.host.clone(),
        host => host.to_owned(),
    }
}

/// A node that sends us to another one.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::store::redis) enum Redirection {
    /// For good.
    Moved { slot: u16, place: Place },
    /// For this once: the slot is on its way.
    Ask { place: Place },
}

impl Redirection {
    /// `MOVED 3999 127.0.0.1:6381`, said by the node at `from`.
    pub(in crate::store::redis) fn read(error: &ServerError, from: &Place) -> Option<Self> {
        let mut words = error.details()?.split_ascii_whitespace();
        let slot = words.next()?.parse().ok()?;
        let (host, port) = words.next()?.rsplit_once(':')?;
        let host = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
            .unwrap_or(host);
        let place = Place {
            host: named(host, from),
            port: port.parse().ok()?,
        };
        match error.code() {
            "MOVED" if usize::from(slot) < SLOTS => Some(Self::Moved { slot, place }),
            "ASK" => Some(Self::Ask { place }),
            _ => None,
        }
    }
}

/// The slot of a key: of the part in braces, if there is one, else of all of it.
pub(in crate::store::redis) fn slot_of(name: &str) -> u16 {
    let tag = name.split_once('{').and_then(|(_, rest)| {
        let (tag, _) = rest.split_once('}')?;
        Some(tag).filter(|tag| !tag.is_empty())
    });
    crc16(tag.unwrap_or(name).as_bytes()) & 0x3fff
}

/// CRC-16/XMODEM.
fn crc16(octets: &[u8]) -> u16 {
    octets.iter().fold(0, |crc, octet| {
        let mut crc: u16 = crc ^ (u16::from(*octet) << 8);
        for _ in 0..8 {
            let carry = crc & 0x8000 != 0;
            crc <<= 1;
            if carry {
                crc ^= 0x1021;
            }
        }
        crc
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(host: &str, port: u16) -> Place {
        let host = host.to_owned();
        Place { host, port }
    }

    fn parsed(text: &str) -> Value {
        redis::parse_redis_value(text.as_bytes()).unwrap()
    }

    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        for (name, slot) in [
            ("", 0),
            ("123456789", 0x31c3),
            ("foo", 12_182),
            ("{user1000}.following", 3_443),
            ("{user1000}.followers", 3_443),
            ("a{user1000}{x}", 3_443),
            ("foo{}{bar}", crc16(b"foo{}{bar}") & 0x3fff),
            ("foo{{bar}}zap", crc16(b"{bar") & 0x3fff),
            ("foo{bar", crc16(b"foo{bar") & 0x3fff),
        ] {
            assert_eq!(slot_of(name), slot, "{name}");
        }
    }

    #[test]
    fn every_slot_has_a_tag() {
        for slot in [0, 1, 5_461, 10_923, 16_383] {
            let name = format!("retrysafe:mark:{{{}}}", tag_of(slot).unwrap());
            assert_eq!(slot_of(&name), slot, "{name}");
        }
        assert_eq!(tag_of(5), tag_of(5), "the same for every process");
    }

    #[test]
    fn redirections_are_read_and_nothing_else_is() {
        let from = place("10.0.0.1", 7_000);
        let read = |line: &str| match parsed(&format!("-{line}\r\n")) {
            Value::ServerError(error) => Redirection::read(&error, &from),
            other => panic!("{other:?}"),
        };
        for (line, host, port) in [
            ("MOVED 3999 10.0.0.2:6381", "10.0.0.2", 6_381),
            ("MOVED 3999 :6381", "10.0.0.1", 6_381),
            ("MOVED 3999 ?:6381", "10.0.0.1", 6_381),
            ("MOVED 3999 ::1:6381", "::1", 6_381),
            ("MOVED 3999 [::1]:6381", "::1", 6_381),
            ("MOVED 3999 node-2.internal:6381", "node-2.internal", 6_381),
        ] {
            let place = place(host, port);
            let moved = Redirection::Moved { slot: 3_999, place };
            assert_eq!(read(line), Some(moved), "{line}");
        }
        let ask = Redirection::Ask {
            place: place("h", 1),
        };
        assert_eq!(read("ASK 3999 h:1"), Some(ask));
        for line in [
            "MOVED",
            "MOVED 1",
            "MOVED x h:1",
            "MOVED 16384 h:1",
            "MOVED 1 h",
            "MOVED 1 h:x",
            "MOVED 1 h:65536",
            "ERR 1 h:1",
        ] {
            assert_eq!(read(line), None, "{line}");
        }
    }

    #[test]
    fn a_table_says_who_keeps_what_and_takes_hints() {
        let from = place("10.0.0.9", 7_000);
        let text = "*2\r\n\
            *4\r\n:0\r\n:8191\r\n\
            *3\r\n$8\r\n10.0.0.1\r\n:7000\r\n$1\r\na\r\n\
            *3\r\n$8\r\n10.0.0.2\r\n:7000\r\n$1\r\nb\r\n\
            *3\r\n:8192\r\n:16382\r\n\
            *3\r\n$-1\r\n:7001\r\n$1\r\nc\r\n";
        let mut table = Table::read(&parsed(text), &from).unwrap();
        assert_eq!(table.keeper(8_191), Some(place("10.0.0.1", 7_000)));
        assert_eq!(table.keeper(8_192), Some(place("10.0.0.9", 7_001)));
        assert_eq!(table.keeper(16_383), None);
        assert_eq!(table.slots_kept_by(&place("10.0.0.1", 7_000)), [0, 8_191]);
        assert_eq!(
            table.slots_kept_by(&place("10.0.0.9", 7_001)),
            [8_192, 16_382]
        );
        assert!(table.slots_kept_by(&place("10.0.0.2", 7_000)).is_empty());
        assert_eq!(table.masters.len(), 2);
        assert_eq!(table.replicas, [place("10.0.0.2", 7_000)]);
        table.note(0, &place("10.0.0.3", 7_000));
        assert_eq!(table.keeper(0), Some(place("10.0.0.3", 7_000)));
        assert_eq!(table.keeper(1), Some(place("10.0.0.1", 7_000)));
        table.note(u16::MAX, &place("10.0.0.3", 7_000));
        assert_eq!(table.keeper(u16::MAX), None);
        for text in [
            "+OK\r\n",
            "*1\r\n:1\r\n",
            "*1\r\n*2\r\n:0\r\n:1\r\n",
            "*1\r\n*3\r\n:0\r\n:1\r\n*1\r\n$1\r\na\r\n",
            "*1\r\n*3\r\n:-1\r\n:1\r\n*2\r\n$1\r\na\r\n:1\r\n",
        ] {
            assert!(Table::read(&parsed(text), &from).is_none(), "{text}");
        }
    }

    /// `CLUSTER SLOTS` of a master with all slots and its replicas, by their names.
    fn table(names: &[&str]) -> Option<Table> {
        let node = |name: &&str| format!("*3\r\n$1\r\nh\r\n:1\r\n${}\r\n{name}\r\n", name.len());
        let nodes = names.iter().map(node).collect::<Vec<_>>().concat();
        let said = format!("*1\r\n*{}\r\n:0\r\n:16383\r\n{nodes}", names.len() + 2);
        Table::read(&parsed(&said), &place("h", 1))
    }

    #[test]
    fn a_table_follows_one_of_the_same_nodes_mostly() {
        let before = table(&["a", "b", "c", "d"]).unwrap();
        let follows = |names: &[&str]| table(names).unwrap().follows(&before.ids);
        assert!(before.follows(&Ids::new()), "whoever comes first");
        assert!(follows(&["a", "b", "c", "d"]));
        assert!(follows(&["b", "c"]), "half of them are gone");
        assert!(follows(&["a", "b", "x", "y", "z"]), "it grew");
        assert!(!follows(&["a", "x", "y"]));
        assert!(!follows(&["x"]));
    }

    #[test]
    fn who_was_taken_out_of_its_cluster_has_no_table() {
        assert!(Table::read(&parsed("*0\r\n"), &place("h", 1)).is_none());
    }

    #[test]
    fn who_takes_the_place_of_another_was_promoted() {
        let keeps = |hosts: &[&str]| {
            let mut table = Table::default();
            for (slot, host) in (0..).zip(hosts) {
                table.note(slot, &place(host, 1));
            }
            table
        };
        let before = keeps(&["a", "b"]);
        assert!(keeps(&["a", "c"]).has_promoted(&before));
        assert!(!keeps(&["b", "a"]).has_promoted(&before));
        assert!(!keeps(&["a", "b", "c"]).has_promoted(&before), "it grew");
        assert!(!keeps(&["a"]).has_promoted(&before), "it shrank");
        assert!(!keeps(&["a"]).has_promoted(&Table::default()), "the first");
        // The same node at another place.
        let mut named = [keeps(&["a", "b"]), keeps(&["a", "c"])];
        for (table, host) in named.iter_mut().zip(["b", "c"]) {
            table.names.insert(place(host, 1), b"id".to_vec());
        }
        assert!(!named[1].has_promoted(&named[0]));
    }
}
