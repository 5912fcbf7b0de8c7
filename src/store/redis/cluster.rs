//! What a process knows of a cluster: which node keeps which of the 16,384 slots.
//!
//! The table is only a hint: whoever is asked by mistake says who keeps the slot (MOVED), and that
//! is noted at once. The whole table is asked for anew in the background after such a hint, and
//! whenever a node cannot be had. Invariant: at most one such question is under way, it belongs to
//! nobody, and there is a pause between two of them.
//!
//! Deliberately absent: connections for records (`route.rs`).

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::{AsyncConnectionConfig, ServerError, Value};
use tokio::sync::watch;
use tokio::time::Instant;

use super::address::Place;
use super::errors;
use super::link::{Access, End};
use crate::store::{StoreError, StoreErrorKind};

/// Slots of every cluster.
const SLOTS: usize = 16_384;
/// Between two questions for the table that nobody waits for.
const PAUSE: Duration = Duration::from_millis(100);

/// A cluster, for one process.
#[derive(Debug)]
pub(super) struct Cluster {
    access: Arc<Access>,
    seeds: Vec<Place>,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    table: Table,
    /// The question under way.
    asking: Option<watch::Receiver<Asked>>,
    asked_at: Option<Instant>,
    /// Whom to ask first the next time.
    turn: usize,
}

type Asked = Option<Result<(), StoreError>>;

/// Who keeps what.
#[derive(Debug, Default, Clone)]
pub(super) struct Table {
    /// For each slot a number in `masters`; empty before the first answer.
    keepers: Vec<Option<usize>>,
    masters: Vec<Place>,
    replicas: Vec<Place>,
}

impl Cluster {
    pub(super) fn new(access: Arc<Access>, seeds: Vec<Place>) -> Arc<Self> {
        Arc::new(Self {
            access,
            seeds,
            known: Mutex::default(),
        })
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who keeps a slot, as far as is known; asks where nothing is.
    pub(super) async fn place_of(self: &Arc<Self>, slot: u16) -> Result<Place, StoreError> {
        if let Some(place) = self.known().table.keeper(slot) {
            return Ok(place);
        }
        self.ask().await?;
        let found = self.known().table.keeper(slot);
        found.ok_or_else(|| {
            let message = format!("no node of the cluster keeps slot {slot}");
            StoreError::not_sent(StoreErrorKind::Refused, message)
        })
    }

    /// Every node that keeps slots.
    pub(super) async fn masters(self: &Arc<Self>) -> Result<Vec<Place>, StoreError> {
        if self.known().table.masters.is_empty() {
            self.ask().await?;
        }
        Ok(self.known().table.kept_by())
    }

    /// Every node, those that keep slots first; asked anew.
    pub(super) async fn all(self: &Arc<Self>) -> Result<(Vec<Place>, Vec<Place>), StoreError> {
        self.ask().await?;
        let known = self.known();
        Ok((known.table.kept_by(), known.table.replicas.clone()))
    }

    /// How many nodes keep slots.
    pub(super) fn size(&self) -> usize {
        self.known().table.masters.len()
    }

    pub(super) fn knows(&self, place: &Place) -> bool {
        self.known().table.masters.contains(place)
    }

    /// Somebody to listen at: another one each time.
    pub(super) fn next(&self) -> Option<Place> {
        let mut known = self.known();
        let candidates = self.candidates(&known);
        known.turn = known.turn.wrapping_add(1);
        candidates.into_iter().next()
    }

    /// A node says that another one keeps the slot.
    pub(super) fn moved(self: &Arc<Self>, slot: u16, place: &Place) {
        self.known().table.note(slot, place);
        self.doubted();
    }

    /// What is known may be out of date: asks in the background.
    pub(super) fn doubted(self: &Arc<Self>) {
        let asked_at = self.known().asked_at;
        if asked_at.is_none_or(|at| at.elapsed() >= PAUSE) {
            let _under_way = self.begin();
        }
    }

    async fn ask(self: &Arc<Self>) -> Result<(), StoreError> {
        let mut asking = self.begin();
        let asked = asking.wait_for(Option::is_some).await;
        match asked.as_deref() {
            Ok(Some(asked)) => asked.clone(),
            _ => Err(errors::no_node()),
        }
    }

    /// Joins the question under way, or asks.
    fn begin(self: &Arc<Self>) -> watch::Receiver<Asked> {
        let mut known = self.known();
        // One whose runtime went down never ends; it is not waited for.
        let under_way = known
            .asking
            .as_ref()
            .filter(|asking| asking.has_changed().is_ok() && asking.borrow().is_none());
        if let Some(asking) = under_way {
            return asking.clone();
        }
        let (done, asking) = watch::channel(None);
        known.asking = Some(asking.clone());
        known.asked_at = Some(Instant::now());
        known.turn = known.turn.wrapping_add(1);
        let candidates = self.candidates(&known);
        drop(known);
        let cluster = Arc::clone(self);
        tokio::spawn(async move {
            let found = cluster.table(candidates).await;
            let mut known = cluster.known();
            known.asked_at = Some(Instant::now());
            let asked = found.map(|table| known.table = table);
            drop(known);
            done.send_replace(Some(asked));
        });
        asking
    }

    /// Whom to ask: everybody that is known and everybody that was named, another one first each
    /// time, so that one who is wrong or gone is not asked for ever.
    fn candidates(&self, known: &Known) -> Vec<Place> {
        let mut seen = HashSet::new();
        let table = &known.table;
        let all = table
            .masters
            .iter()
            .chain(&self.seeds)
            .chain(&table.replicas);
        let mut all: Vec<Place> = all.filter(|place| seen.insert(*place)).cloned().collect();
        if !all.is_empty() {
            let first = known.turn % all.len();
            all.rotate_left(first);
        }
        all
    }

    /// The table of the first who has one.
    async fn table(&self, candidates: Vec<Place>) -> Result<Table, StoreError> {
        let mut last = errors::no_node();
        for place in candidates {
            match self.table_of(&place).await {
                Ok(table) => return Ok(table),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    async fn table_of(&self, place: &Place) -> Result<Table, StoreError> {
        let end = End::Server(place.clone());
        let config = AsyncConnectionConfig::new();
        let login = &self.access.login;
        let (connection, _driver) = self.access.connect(&end, login, config).await?;
        let ask = redis::cmd("CLUSTER").arg("SLOTS").to_owned();
        let said = connection.clone().send_packed_command(&ask).await;
        let said = said.map_err(|error| errors::not_connected(&self.access.shown(&end), &error))?;
        match said {
            Value::ServerError(error) => Err(errors::answered(&error)),
            said => Table::read(&said, place).ok_or_else(|| errors::odd("CLUSTER SLOTS")),
        }
    }
}

impl Table {
    /// An answer to `CLUSTER SLOTS` of the node at `from`.
    fn read(said: &Value, from: &Place) -> Option<Self> {
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
            let keeper = place(keeper, from)?;
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
        Some(table)
    }

    fn note(&mut self, slot: u16, place: &Place) {
        let number = match self.masters.iter().position(|known| known == place) {
            Some(number) => number,
            None => {
                self.masters.push(place.clone());
                self.masters.len() - 1
            }
        };
        self.keepers.resize(SLOTS, None);
        if let Some(keeper) = self.keepers.get_mut(usize::from(slot)) {
            *keeper = Some(number);
        }
    }

    fn keeper(&self, slot: u16) -> Option<Place> {
        let number = self.keepers.get(usize::from(slot)).copied().flatten()?;
        self.masters.get(number).cloned()
    }

    fn kept_by(&self) -> Vec<Place> {
        self.masters.clone()
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
pub(super) enum Redirection {
    /// For good.
    Moved { slot: u16, place: Place },
    /// For this once: the slot is on its way.
    Ask { place: Place },
}

impl Redirection {
    /// `MOVED 3999 127.0.0.1:6381`, said by the node at `from`.
    pub(super) fn read(error: &ServerError, from: &Place) -> Option<Self> {
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
pub(super) fn slot_of(name: &str) -> u16 {
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
