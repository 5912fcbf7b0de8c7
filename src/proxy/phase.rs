//! R31: the phases of a process's end, as every task sees them.

use tokio::sync::watch;

/// Where the process stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Serving.
    Running,
    /// SIGTERM: no new connections, waiters get 409, exchanges finish.
    Draining,
    /// The drain is over: what still runs is cut.
    Cut,
}

/// Announces phases.
#[derive(Debug, Clone)]
pub struct Phases(watch::Sender<Phase>);

impl Default for Phases {
    fn default() -> Self {
        Self(watch::Sender::new(Phase::Running))
    }
}

impl Phases {
    /// Moves on; never back.
    pub fn advance(&self, to: Phase) {
        self.0.send_if_modified(|phase| {
            let later = to > *phase;
            if later {
                *phase = to;
            }
            later
        });
    }

    /// The phase now.
    pub fn now(&self) -> Phase {
        *self.0.borrow()
    }

    /// A view for one task.
    pub fn watch(&self) -> PhaseWatch {
        PhaseWatch(self.0.subscribe())
    }
}

/// One task's view.
#[derive(Debug, Clone)]
pub struct PhaseWatch(watch::Receiver<Phase>);

impl PhaseWatch {
    /// Returns once `phase` is reached.
    pub async fn reached(&mut self, phase: Phase) {
        if self.0.wait_for(|now| *now >= phase).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
