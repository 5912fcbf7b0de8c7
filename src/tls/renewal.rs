//! New certificates while the program runs: the files are looked at again and again.
//!
//! Their contents are compared, not their dates, and nothing watches the folder: mounted secrets are
//! swapped by a symbolic link above them. Connections that stand keep what they began with.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::MissedTickBehavior;

use super::files::Contents;
use super::{Certificates, Side};
use crate::telemetry::Metrics;
use crate::telemetry::metrics::Label;

/// Between two looks.
const LOOK: Duration = Duration::from_secs(2);

impl<S: Side + Sync> Certificates<S> {
    /// Takes over what is fit; never returns.
    pub async fn renew(mut self, metrics: Arc<Metrics>) {
        let mut clock = tokio::time::interval(LOOK);
        clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last_seen = self.judged.clone();
        loop {
            clock.tick().await;
            let settings = self.settings.clone();
            let read = tokio::task::spawn_blocking(move || Contents::read(&settings));
            let Ok(now) = read.await else { continue };
            // Seen twice: whoever writes the files one by one has finished.
            let has_settled = now == last_seen;
            if has_settled && now != self.judged {
                self.replace(now.clone(), &metrics);
            }
            last_seen = now;
        }
    }

    fn replace(&mut self, contents: Contents, metrics: &Metrics) {
        let result = match self.settings.judge(&contents) {
            Ok((made, warning)) => {
                self.current.send_replace(made);
                tracing::info!(event = "certificate_reloaded");
                if let Some(warning) = warning {
                    tracing::warn!(event = "certificate_warning", "{warning}");
                }
                "ok"
            }
            Err(findings) => {
                for finding in findings {
                    tracing::error!(event = "certificate_refused", "{finding}");
                }
                "failed"
            }
        };
        self.judged = contents;
        let labels = Label([("result", result)]);
        metrics.certificate_reloads.get_or_create(&labels).inc();
    }
}
