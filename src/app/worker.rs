//! A worker thread: a runtime with a listener, a store handle and an upstream pool of its own.
//!
//! Exchanges outlive the listener here: a worker ends only when it is told so (R31).

use std::net::TcpListener as StdListener;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};

use super::{AppError, failed};
use crate::proxy::{Proxy, Shared};
use crate::server::Front;
use crate::store::Store;
use crate::store::guarded::Breaker;

/// One thread: a runtime with everything of its own.
pub(super) struct Worker {
    pub(super) shared: Arc<Shared>,
    pub(super) store: Arc<dyn Store>,
    pub(super) breaker: Arc<Breaker>,
    pub(super) front: Front,
    pub(super) stopping: watch::Receiver<bool>,
    pub(super) served: mpsc::Sender<()>,
}

impl Worker {
    pub(super) fn start(
        self,
        number: usize,
        listener: StdListener,
    ) -> Result<JoinHandle<()>, AppError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let runtime = runtime.map_err(|error| failed("no runtime", &error))?;
        std::thread::Builder::new()
            .name(format!("retrysafe-{number}"))
            .spawn(move || runtime.block_on(self.work(listener)))
            .map_err(|error| failed("no thread", &error))
    }

    async fn work(mut self, listener: StdListener) {
        let Ok(listener) = TcpListener::from_std(listener) else {
            tracing::error!(event = "fault", "a listener could not be used");
            return;
        };
        let proxy = Proxy::new(self.shared, self.store, self.breaker);
        let pruned = proxy.clone();
        tokio::spawn(async move {
            let mut tick = tokio::time::interval(Duration::from_secs(1));
            loop {
                tick.tick().await;
                pruned.prune();
            }
        });
        let handler = move |request, peer| {
            let proxy = proxy.clone();
            async move { proxy.handle(request, peer).await }
        };
        self.front.serve(listener, handler).await;
        drop(self.served);
        // Detached exchanges go on here.
        let _stopped = self.stopping.wait_for(|stopping| *stopping).await.is_err();
    }
}

/// Waits for the threads, but not for long.
pub(super) async fn join(workers: Vec<JoinHandle<()>>) {
    let joined = tokio::task::spawn_blocking(move || {
        for worker in workers {
            let _panicked = worker.join().is_err();
        }
    });
    let _late = tokio::time::timeout(Duration::from_secs(2), joined)
        .await
        .is_err();
}
