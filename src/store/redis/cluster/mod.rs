//! What a process knows of a cluster: which node keeps which of the 16,384 slots.
//!
//! The table is only a hint: whoever is asked by mistake says who keeps the slot (MOVED), and that
//! is noted at once. The whole table is asked for anew in the background after such a hint, and
//! whenever a node cannot be had. Invariant: at most one such question is under way, it belongs to
//! nobody, and there is a pause between two of them.
//!
//! Deliberately absent: connections for records (`route.rs`).

mod marks;
mod table;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Value};
use tokio::sync::watch;
use tokio::time::Instant;

use super::address::Place;
use super::errors;
use super::link::{Access, End};
use super::mark::{Looked, Mark, Seen};
use crate::store::loss::Loss;
use crate::store::{StoreError, StoreErrorKind};
use marks::Marks;
use table::{Ids, Table};
pub(super) use table::{Redirection, slot_of};

/// Between two questions for the table that nobody waits for.
const PAUSE: Duration = Duration::from_millis(100);

/// A cluster, for one process.
#[derive(Debug)]
pub(super) struct Cluster {
    access: Arc<Access>,
    seeds: Vec<Place>,
    known: Mutex<Known>,
    loss: Arc<Loss>,
    marks: Marks,
}

#[derive(Debug, Default)]
struct Known {
    table: Table,
    /// The question under way.
    asking: Option<watch::Receiver<Asked>>,
    asked_at: Option<Instant>,
    /// Whom to ask first the next time.
    turn: usize,
    /// The table as it was answered, without hints.
    asked: Table,
    /// Nodes without slots that get some, by their names.
    importing: HashSet<Vec<u8>>,
    /// Which run of each node, by its name, was last connected to.
    runs: HashMap<Vec<u8>, String>,
}

type Asked = Option<Result<(), StoreError>>;

impl Known {
    /// An answer to the question for the table.
    fn take_in(&mut self, table: Table) {
        let everybody = table.masters.iter().chain(&table.replicas);
        let names: HashSet<_> = everybody.map(|place| table.name_of(place)).collect();
        self.importing.retain(|name| !names.contains(name));
        let importing = &self.importing;
        self.runs
            .retain(|name, _| names.contains(name) || importing.contains(name));
        self.asked = table.clone();
        self.table = table;
    }
}

impl Cluster {
    pub(super) fn new(
        access: Arc<Access>,
        seeds: Vec<Place>,
        namespace: &str,
        loss: Arc<Loss>,
    ) -> Arc<Self> {
        Arc::new(Self {
            access,
            seeds,
            known: Mutex::default(),
            marks: Marks::new(namespace, Arc::clone(&loss)),
            loss,
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
        // A hole was there a moment ago: the question is not worth a connection for each request.
        let fresh = self.known().asked_at.is_some_and(|at| at.elapsed() < PAUSE);
        if !fresh || self.size() == 0 {
            self.ask().await?;
        }
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
        Ok(self.known().table.masters.clone())
    }

    /// Every node, those that keep slots first; asked anew.
    pub(super) async fn all(self: &Arc<Self>) -> Result<(Vec<Place>, Vec<Place>), StoreError> {
        self.ask().await?;
        let known = self.known();
        Ok((known.table.masters.clone(), known.table.replicas.clone()))
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

    /// Whether a node that was connected to is still what it was.
    pub(super) async fn look(
        self: &Arc<Self>,
        place: &Place,
        connection: &MultiplexedConnection,
        run_id: Option<&str>,
    ) -> Result<Seen, StoreError> {
        if !self.loss.is_watched() {
            return Ok(Seen::Open);
        }
        for round in 0..3 {
            // Its first slot may be on its way to somebody else.
            for mark in self.marks_of(place) {
                if let Looked::Here(seen) = mark.look(connection, None).await? {
                    self.met(place, run_id, true);
                    return Ok(seen);
                }
                self.doubted();
            }
            // The first question may have been under way before that.
            if round < 2 {
                self.ask().await?;
            }
        }
        // All its slots are on their way, or it gets its first ones; else it is a replica by now: that
        // forgot nothing which counts, and gets no claim before it was asked as a master.
        let gives_out = {
            let known = self.known();
            let gets_slots = known.importing.contains(&known.asked.name_of(place));
            gets_slots || known.asked.masters.contains(place)
        };
        self.met(place, run_id, gives_out);
        Ok(if gives_out { Seen::Open } else { Seen::Nothing })
    }

    /// A node was connected to. `counts`: one that was started anew may have forgotten something.
    fn met(&self, place: &Place, run_id: Option<&str>, counts: bool) {
        let Some(run_id) = run_id else { return };
        let before = {
            let mut known = self.known();
            let name = known.asked.name_of(place);
            known.runs.insert(name, run_id.to_owned())
        };
        let is_another = before.is_some_and(|before| before != run_id);
        if is_another && counts && !self.loss.restart_keeps() {
            self.lost("a node of the cluster was started anew");
        }
    }

    /// The marks that this node keeps, if it keeps any slot.
    fn marks_of(&self, place: &Place) -> Vec<Arc<Mark>> {
        let slots = self.known().table.slots_kept_by(place);
        slots
            .into_iter()
            .filter_map(|slot| self.marks.of(slot))
            .collect()
    }

    fn lost(&self, how: &'static str) {
        if self.loss.is_watched() {
            self.loss.notice(how);
        }
    }

    /// A node says that another one keeps the slot.
    pub(super) async fn moved(
        self: &Arc<Self>,
        slot: u16,
        place: &Place,
    ) -> Result<(), StoreError> {
        if !self.is_vouched_for(place).await? {
            let message = format!("the cluster does not say yet that {place} keeps slot {slot}");
            return Err(StoreError::not_sent(StoreErrorKind::Refused, message));
        }
        self.known().table.note(slot, place);
        self.doubted();
        Ok(())
    }

    /// A node says that another one gets the slot. That may keep none yet, but it is no replica.
    pub(super) async fn asked_to(self: &Arc<Self>, place: &Place) -> Result<(), StoreError> {
        let is_known = {
            let known = self.known();
            known.importing.contains(&known.asked.name_of(place))
        };
        if is_known || self.is_vouched_for(place).await? {
            return Ok(());
        }
        let mut known = self.known();
        if known.asked.replicas.contains(place) {
            let message = format!("the cluster does not say yet that {place} is no replica");
            return Err(StoreError::not_sent(StoreErrorKind::Refused, message));
        }
        let name = known.asked.name_of(place);
        known.importing.insert(name);
        Ok(())
    }

    /// One that nobody has heard of may have taken the place of somebody who knew more: only the
    /// whole table tells.
    async fn is_vouched_for(self: &Arc<Self>, place: &Place) -> Result<bool, StoreError> {
        if !self.loss.is_watched() {
            return Ok(true);
        }
        // The first question may have been under way before that.
        for _ in 0..2 {
            if self.known().asked.masters.contains(place) {
                return Ok(true);
            }
            self.ask().await?;
        }
        Ok(self.known().asked.masters.contains(place))
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
        let before = known.table.ids.clone();
        drop(known);
        let cluster = Arc::clone(self);
        tokio::spawn(async move {
            let found = cluster.table(candidates, &before).await;
            let mut known = cluster.known();
            known.asked_at = Some(Instant::now());
            let asked = found.map(|table| {
                if table.has_promoted(&known.asked) && !cluster.loss.failover_keeps() {
                    cluster.lost("a replica of the cluster took over");
                }
                let masters = table.masters.iter();
                let slots = masters.flat_map(|place| table.slots_kept_by(place));
                cluster.marks.keep(&slots.collect::<Vec<_>>());
                known.take_in(table);
            });
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

    /// The table of the first who has one of the cluster that was known before.
    async fn table(&self, candidates: Vec<Place>, before: &Ids) -> Result<Table, StoreError> {
        let mut last = errors::no_node();
        for place in candidates {
            match self.table_of(&place).await {
                Ok(table) if table.follows(before) => return Ok(table),
                Ok(_) => {
                    tracing::error!(event = "foreign_cluster", node = %place);
                    last = errors::foreign_cluster(&place.to_string());
                }
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
