//! The table: made where the role may, else by whoever runs `retrysafe store init`.
//!
//! Invariant: a table that this process has seen and that is gone is an error. It held the keys of
//! requests that were carried out; an empty one in its place would let them run again.

use std::sync::atomic::{AtomicBool, Ordering};

use super::pool::{Lent, Trouble};
use super::statements::{CREATE, CREATE_LOCK};
use super::{Shared, errors};
use crate::store::{StoreError, StoreErrorKind};

/// Whether this process has seen the table.
#[derive(Debug, Default)]
pub(super) struct Table(AtomicBool);

impl Table {
    pub(super) fn has_been_seen(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_known(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// What `--print` prints: for people who create tables by hand.
pub fn sql() -> String {
    format!(
        "-- Records of Retrysafe, for PostgreSQL 14 and later. Run it in the database of store.url,\n\
         -- as the owner of the schema that comes first in the search_path of Retrysafe's role.\n\
         BEGIN;\n{CREATE}COMMIT;\n\
         -- Retrysafe's role needs no more than this:\n\
         -- GRANT SELECT, INSERT, UPDATE, DELETE ON retrysafe_records TO ROLE;\n"
    )
}

/// Creates the table, if it is not there.
pub(super) async fn create(lent: &mut Lent) -> Result<(), Trouble> {
    lent.batch(&format!("{CREATE_LOCK}{CREATE}")).await
}

/// The same for a call that found none.
pub(super) async fn create_if_never_seen(
    shared: &Shared,
    lent: &mut Lent,
) -> Result<(), StoreError> {
    if shared.table.is_known() {
        let message = "the table retrysafe_records is gone, and with it what was recorded; \
                       `retrysafe store init` makes a new one, under which retries run again";
        return Err(StoreError::not_sent(StoreErrorKind::Refused, message));
    }
    match create(lent).await {
        Ok(()) => {
            tracing::info!(
                event = "store_created",
                "the table retrysafe_records was created"
            );
            Ok(())
        }
        Err(Trouble::Answered(error)) if errors::is_forbidden(&error) => Err(StoreError::not_sent(
            StoreErrorKind::Refused,
            missing(&shared.pool.target.shown),
        )),
        Err(trouble) => Err(trouble.into()),
    }
}

/// What to do where the role may not create it.
pub(super) fn missing(shown: &str) -> String {
    format!(
        "the table retrysafe_records is missing at {shown}, and this role may not create it: run \
         `retrysafe store init` as one that may, or the SQL that `retrysafe store init --print` \
         prints"
    )
}
