//! What a store keeps going beside its calls: one task that is there once somebody needs it, and what
//! is undone when a call is given up.
//!
//! Invariant: there is at most one such task, and it ends with its owner.
//!
//! Deliberately absent: what the task does.

use std::sync::{Mutex, PoisonError};

use tokio::task::JoinHandle;

/// A task that runs from the first need on.
#[derive(Debug, Default)]
pub(super) struct Task(Mutex<Option<JoinHandle<()>>>);

impl Task {
    /// Starts it on the caller's runtime, or again if it ended with another runtime.
    pub(super) fn ensure<F>(&self, make: impl FnOnce() -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut task = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if task.as_ref().is_none_or(JoinHandle::is_finished) {
            *task = Some(tokio::spawn(make()));
        }
    }

    /// Ends it before its owner goes.
    pub(super) fn end(&self) {
        let mut task = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(task) = task.take() {
            task.abort();
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.end();
    }
}

/// Takes something back when it is dropped, unless it was kept.
pub(super) struct Undo<F: FnMut()> {
    undo: F,
    kept: bool,
}

impl<F: FnMut()> Undo<F> {
    pub(super) fn new(undo: F) -> Self {
        Self { undo, kept: false }
    }

    pub(super) fn keep(mut self) {
        self.kept = true;
    }
}

impl<F: FnMut()> Drop for Undo<F> {
    fn drop(&mut self) {
        if !self.kept {
            (self.undo)();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn there_is_one_task_and_it_ends_with_its_owner() {
        let task = Task::default();
        let (alive, mut ended) = tokio::sync::mpsc::channel::<()>(1);
        task.ensure(|| async move {
            let _alive = alive;
            std::future::pending::<()>().await;
        });
        let mut again = false;
        task.ensure(|| {
            again = true;
            std::future::ready(())
        });
        assert!(!again, "one is enough");
        drop(task);
        assert_eq!(ended.recv().await, None);
    }

    #[test]
    fn what_is_kept_is_not_undone() {
        let mut undone = 0;
        Undo::new(|| undone += 1).keep();
        drop(Undo::new(|| undone += 1));
        assert_eq!(undone, 1);
    }
}
