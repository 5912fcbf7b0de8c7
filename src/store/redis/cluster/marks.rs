//! The marks of a cluster's nodes: one each, under names that lie in a slot which the node keeps.
//!
//! Invariant: what is known goes with the slot and not with the node: a slot that moves takes its mark
//! along, and a mark that another node keeps by now is still the same mark.
//!
//! Deliberately absent: what a mark tells (`mark.rs`), which slots a node keeps (`table.rs`).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::table::tag_of;
use crate::store::loss::Loss;
use crate::store::redis::mark::Mark;

/// The marks that this process has met.
#[derive(Debug)]
pub(super) struct Marks {
    namespace: String,
    loss: Arc<Loss>,
    met: Mutex<HashMap<u16, Arc<Mark>>>,
}

impl Marks {
    pub(super) fn new(namespace: &str, loss: Arc<Loss>) -> Self {
        Self {
            namespace: namespace.to_owned(),
            loss,
            met: Mutex::default(),
        }
    }

    /// The mark in that slot. `None`: nobody wants to know.
    pub(super) fn of(&self, slot: u16) -> Option<Arc<Mark>> {
        if !self.loss.is_watched() {
            return None;
        }
        let mut met = self.met();
        if let Some(mark) = met.get(&slot) {
            return Some(Arc::clone(mark));
        }
        let suffix = format!(":{{{}}}", tag_of(slot)?);
        let mark = Mark::new(&self.namespace, &suffix, Arc::clone(&self.loss))?;
        met.insert(slot, Arc::clone(&mark));
        Some(mark)
    }

    /// Of slots in which no node has its mark any more nothing is known: who keeps one of them later
    /// may have been emptied meanwhile, and that was noticed elsewhere.
    pub(super) fn keep(&self, slots: &[u16]) {
        self.met().retain(|slot, _| slots.contains(slot));
    }

    fn met(&self) -> MutexGuard<'_, HashMap<u16, Arc<Mark>>> {
        self.met.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
