//! Who takes part, what may happen to them, and what must never be.
//!
//! A contender is one request with the key in a process of its own. Messages between it, the store and
//! the upstream are lost, late, or outlive their sender: a message that is under way is taken out at
//! any time, or never.

use std::collections::BTreeSet;

use stateright::{Model, Property};

use crate::cell::{Ask, Cell, Is, Told};
use crate::steps;

/// How often what may happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Faults {
    /// Processes that end.
    pub(crate) crashes: u8,
    /// A whole lease goes by in the store.
    pub(crate) lapses: u8,
    /// The store forgets everything.
    pub(crate) losses: u8,
}

impl Faults {
    pub(crate) const NONE: Self = Self {
        crashes: 0,
        lapses: 0,
        losses: 0,
    };
}

/// The protocol, or one of the mistakes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Variant {
    Right,
    /// A claim looks first, and writes later whatever is there by then.
    CheckThenSet,
    /// What nobody answered is taken for not carried out.
    ReleaseOnTimeout,
    /// A lease that ended gives the key to the next.
    LapsedIsFree,
    /// The record is written by whoever comes.
    NoOwnerCheck,
    /// A claim without a reply is forgotten.
    NoWithdrawal,
    /// An owner that was not dispatched writes its lost record again.
    AnybodyWritesAgain,
    /// A store that forgot gives keys out at once.
    NoHoldOff,
}

#[derive(Debug, Clone)]
pub(crate) struct Protocol {
    pub(crate) contenders: u8,
    /// Whether an unknown outcome may be run again.
    pub(crate) retries: bool,
    pub(crate) faults: Faults,
    pub(crate) variant: Variant,
}

/// Where a contender is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    Fresh,
    Claiming,
    /// Claims what it found unresolved, as this attempt.
    TakingOver {
        attempt: u32,
    },
    /// Only of `CheckThenSet`: nothing was there when it looked.
    Writing,
    /// The lease is there and nothing went out. `stale`: it must be renewed before anything does.
    Leased {
        attempt: u32,
        stale: bool,
    },
    /// Such a renewal is under way.
    Renewing {
        attempt: u32,
    },
    Dispatched {
        attempt: u32,
        /// The store has the record as it stands after a loss.
        known: bool,
    },
    Settling {
        attempt: u32,
        end: Is,
        known: bool,
    },
    /// Takes back its claim.
    Withdrawing,
    /// Has taken it back, and looks once more when that claim can be under way no longer.
    Watching,
    LookingAgain,
    Done,
    Crashed,
}

/// A message under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Message {
    ToStore(u8, Ask),
    ToContender(u8, Ask, Told),
    ToUpstream(u8),
    FromUpstream(u8, u8),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) phases: Vec<Phase>,
    pub(crate) cell: Option<Cell>,
    pub(crate) messages: BTreeSet<Message>,
    /// Executions so far, and whose.
    pub(crate) executed: Vec<u8>,
    /// Answers that clients were given as the key's.
    pub(crate) released: BTreeSet<u8>,
    /// The answer that was recorded first.
    pub(crate) recorded: Option<u8>,
    pub(crate) crashes: u8,
    pub(crate) lapses: u8,
    pub(crate) losses: u8,
    /// The store forgot, and gives out no absent key.
    pub(crate) holds_off: bool,
    /// The store forgot what was settled: nothing is promised of that.
    pub(crate) excused: bool,
    pub(crate) changed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    Arrive(u8),
    Deliver(Message),
    /// No reply to a claim in time.
    TimeOut(u8),
    /// A message of this contender was lost: it is sent again.
    SendAgain(u8),
    Dispatch(u8),
    /// Nobody wants the answer any more, and nothing went out.
    LetGo(u8),
    /// The exchange broke: nobody knows.
    BreakOff(u8),
    /// It withdraws its claim a second time.
    LookAgain(u8),
    /// It renews its lease; after a loss that writes its record again.
    Renew(u8),
    Crash(u8),
    Lapse,
    Lose,
    EndHoldOff,
}

impl Protocol {
    pub(crate) fn hold(contenders: u8, faults: Faults) -> Self {
        Self {
            contenders,
            retries: false,
            faults,
            variant: Variant::Right,
        }
    }

    pub(crate) fn retry(contenders: u8, faults: Faults) -> Self {
        Self {
            retries: true,
            ..Self::hold(contenders, faults)
        }
    }

    pub(crate) fn with(self, variant: Variant) -> Self {
        Self { variant, ..self }
    }
}

impl Model for Protocol {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World {
            phases: vec![Phase::Fresh; usize::from(self.contenders)],
            cell: None,
            messages: BTreeSet::new(),
            executed: Vec::new(),
            released: BTreeSet::new(),
            recorded: None,
            crashes: 0,
            lapses: 0,
            losses: 0,
            holds_off: false,
            excused: false,
            changed: false,
        }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        steps::possible(self, world, actions);
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut next = world.clone();
        steps::happen(self, &mut next, action);
        next.forget_what_nobody_hears();
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("at most one execution", |model: &Self, world: &World| {
                model.retries || world.excused || world.executed.len() <= 1
            }),
            Property::always("a recorded answer never changes", |_, world: &World| {
                world.excused || !world.changed
            }),
            Property::always("all answers are equal", |model: &Self, world: &World| {
                model.retries || world.excused || world.released.len() <= 1
            }),
            // Under retry whatever is there may be taken over one day.
            Property::always("no key is stuck", |model: &Self, world: &World| {
                model.retries || !world.is_stuck()
            }),
            Property::sometimes("the operation is carried out", |_, world: &World| {
                world.executed.len() == 1 && world.released.len() == 1
            }),
        ]
    }
}

impl World {
    /// Everybody is done and nobody crashed, nothing was carried out and nothing will be: then the
    /// next request must be let through.
    fn is_stuck(&self) -> bool {
        let over = self.phases.iter().all(|phase| *phase == Phase::Done);
        let blocked = self.cell.is_some_and(|cell| cell.is != Is::Failed);
        over && self.messages.is_empty() && self.executed.is_empty() && blocked
    }
}
