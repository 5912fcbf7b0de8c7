//! The protocol explored: every order of messages, crashes and lapsed leases that a few contenders
//! for one key can meet, through the program's own `transition`.
//!
//! Wrong variants, each a mistake that is found in the wild, must be found violating: the checker is
//! checked too.

// Helpers of tests are tests too; clippy's exception knows only functions marked as such.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

mod cell;
mod protocol;
mod steps;

use protocol::{Faults, Protocol, Variant};
use stateright::{Checker, Model as _};

fn explored(model: Protocol) -> impl Checker<Protocol> {
    let name = format!("{model:?}");
    let checker = model.checker().threads(2).spawn_bfs().join();
    let states = checker.unique_state_count();
    println!("{states} states: {name}");
    assert!(states > 100, "{states}");
    checker
}

/// Every property holds.
fn holds(model: Protocol) {
    explored(model).assert_properties();
}

/// The variant breaks this one.
fn breaks(model: Protocol, property: &'static str) {
    assert!(
        explored(model).discovery(property).is_some(),
        "{property} was not found to be violated"
    );
}

#[test]
fn three_contenders_are_one_execution_under_hold() {
    let lapses = if std::env::var_os("RETRYSAFE_TEST_LONG").is_some() {
        2
    } else {
        1
    };
    holds(Protocol::hold(
        3,
        Faults {
            crashes: 1,
            lapses,
            losses: 0,
        },
    ));
}

#[test]
fn under_retry_a_recorded_answer_never_changes() {
    holds(Protocol::retry(
        2,
        Faults {
            crashes: 1,
            lapses: 2,
            losses: 0,
        },
    ));
}

#[test]
fn a_store_that_forgets_is_told_again_by_those_who_were_dispatched() {
    holds(Protocol::hold(
        2,
        Faults {
            crashes: 0,
            lapses: 1,
            losses: 2,
        },
    ));
}

#[test]
fn check_then_set_executes_twice() {
    let model = Protocol::hold(2, Faults::NONE).with(Variant::CheckThenSet);
    breaks(model, "at most one execution");
}

#[test]
fn releasing_on_a_timeout_executes_twice() {
    let model = Protocol::hold(2, Faults::NONE).with(Variant::ReleaseOnTimeout);
    breaks(model, "at most one execution");
}

#[test]
fn a_lapsed_lease_that_frees_the_key_executes_twice() {
    let lapses = Faults {
        lapses: 1,
        ..Faults::NONE
    };
    let model = Protocol::hold(2, lapses).with(Variant::LapsedIsFree);
    breaks(model, "at most one execution");
}

#[test]
fn completing_without_looking_at_the_owner_changes_a_recorded_answer() {
    let lapses = Faults {
        lapses: 2,
        ..Faults::NONE
    };
    let model = Protocol::retry(2, lapses).with(Variant::NoOwnerCheck);
    breaks(model, "a recorded answer never changes");
}

#[test]
fn a_claim_that_nobody_withdraws_holds_its_key_for_nothing() {
    let model = Protocol::hold(2, Faults::NONE).with(Variant::NoWithdrawal);
    breaks(model, "no key is stuck");
}

#[test]
fn an_owner_that_writes_its_record_again_before_it_dispatched_executes_twice() {
    let loss = Faults {
        losses: 2,
        ..Faults::NONE
    };
    let model = Protocol::hold(2, loss).with(Variant::AnybodyWritesAgain);
    breaks(model, "at most one execution");
}

#[test]
fn a_key_given_out_right_after_the_store_forgot_executes_twice() {
    let loss = Faults {
        losses: 1,
        ..Faults::NONE
    };
    let model = Protocol::hold(2, loss).with(Variant::NoHoldOff);
    breaks(model, "at most one execution");
}
