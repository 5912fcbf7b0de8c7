//! What may happen next, and what it changes.

use crate::cell::{Ask, Cell, Is, Told, apply};
use crate::protocol::{Action, Message, Phase, Protocol, Variant, World};

/// Everything that may happen now.
pub(crate) fn possible(model: &Protocol, world: &World, actions: &mut Vec<Action>) {
    actions.extend(
        world
            .messages
            .iter()
            .map(|message| Action::Deliver(*message)),
    );
    for who in 0..model.contenders {
        let asks = |ask| world.messages.contains(&Message::ToStore(who, ask));
        match world.phases[usize::from(who)] {
            // They are all alike: one order of arrival stands for all.
            Phase::Fresh if is_next(world, who) => actions.push(Action::Arrive(who)),
            Phase::Claiming | Phase::TakingOver { .. } | Phase::Writing => {
                actions.push(Action::TimeOut(who));
            }
            Phase::Leased { stale, .. } => {
                actions.push(if stale {
                    Action::Renew(who)
                } else {
                    Action::Dispatch(who)
                });
                actions.push(Action::LetGo(who));
            }
            Phase::Renewing { attempt } => {
                if !asks(renewal(model, attempt, false)) {
                    actions.push(Action::SendAgain(who));
                }
            }
            Phase::Dispatched { attempt, known } => {
                actions.push(Action::BreakOff(who));
                if !known && !asks(renewal(model, attempt, true)) {
                    actions.push(Action::Renew(who));
                }
            }
            Phase::Settling { attempt, end, .. } => {
                if !asks(settling(attempt, end)) {
                    actions.push(Action::SendAgain(who));
                }
            }
            Phase::Withdrawing | Phase::LookingAgain => {
                if !asks(Ask::Abandon) {
                    actions.push(Action::SendAgain(who));
                }
            }
            Phase::Watching => {
                if !asks(Ask::Claim) {
                    actions.push(Action::LookAgain(who));
                }
            }
            Phase::Fresh | Phase::Done | Phase::Crashed => continue,
        }
        if world.crashes < model.faults.crashes {
            actions.push(Action::Crash(who));
        }
    }
    befalls_the_store(model, world, actions);
}

fn befalls_the_store(model: &Protocol, world: &World, actions: &mut Vec<Action>) {
    let ages = world.cell.is_some_and(|cell| cell.age < 2);
    if ages && world.lapses < model.faults.lapses {
        actions.push(Action::Lapse);
    }
    if world.losses < model.faults.losses {
        actions.push(Action::Lose);
    }
    if world.holds_off && everybody_wrote_again(world) {
        actions.push(Action::EndHoldOff);
    }
}

fn is_next(world: &World, who: u8) -> bool {
    let before = who.checked_sub(1).map(usize::from);
    before.is_none_or(|before| world.phases[before] != Phase::Fresh)
}

/// The hold-off is long enough for every dispatched owner that lives to renew.
fn everybody_wrote_again(world: &World) -> bool {
    world.phases.iter().all(|phase| match phase {
        Phase::Dispatched { known, .. } | Phase::Settling { known, .. } => *known,
        _ => true,
    })
}

fn renewal(model: &Protocol, attempt: u32, dispatched: bool) -> Ask {
    Ask::Renew {
        attempt,
        dispatched: dispatched || model.variant == Variant::AnybodyWritesAgain,
    }
}

fn settling(attempt: u32, end: Is) -> Ask {
    match end {
        Is::Completed(answer) => Ask::Complete { attempt, answer },
        Is::Unresolved => Ask::Unresolve { attempt },
        Is::Failed | Is::InFlight => Ask::Fail { attempt },
    }
}

pub(crate) fn happen(model: &Protocol, world: &mut World, action: Action) {
    match action {
        Action::Arrive(who) => world.ask(who, Ask::Claim, Phase::Claiming),
        Action::Deliver(message) => {
            world.messages.remove(&message);
            match message {
                Message::ToStore(who, ask) => at_the_store(model, world, who, ask),
                Message::ToContender(who, ask, told) => reply(model, world, who, ask, told),
                Message::ToUpstream(who) => {
                    world.executed.push(who);
                    let answer = u8::try_from(world.executed.len()).unwrap();
                    world.messages.insert(Message::FromUpstream(who, answer));
                }
                Message::FromUpstream(who, answer) => answered(world, who, answer),
            }
        }
        Action::TimeOut(who) if model.variant == Variant::NoWithdrawal => {
            world.phases[usize::from(who)] = Phase::Done;
        }
        Action::TimeOut(who) => match world.phases[usize::from(who)] {
            Phase::TakingOver { attempt } => {
                let phase = Phase::Settling {
                    attempt,
                    end: Is::Unresolved,
                    known: true,
                };
                world.ask(who, Ask::Unresolve { attempt }, phase);
            }
            _ => world.ask(who, Ask::Abandon, Phase::Withdrawing),
        },
        Action::LookAgain(who) => world.ask(who, Ask::Abandon, Phase::LookingAgain),
        Action::SendAgain(who) => send_again(model, world, who),
        Action::Dispatch(who) => {
            if let Phase::Leased { attempt, .. } = world.phases[usize::from(who)] {
                world.messages.insert(Message::ToUpstream(who));
                let known = !world.holds_off;
                world.phases[usize::from(who)] = Phase::Dispatched { attempt, known };
            }
        }
        Action::LetGo(who) => world.settle(who, Is::Failed),
        Action::BreakOff(who) if model.variant == Variant::ReleaseOnTimeout => {
            world.settle(who, Is::Failed);
        }
        Action::BreakOff(who) => world.settle(who, Is::Unresolved),
        Action::Renew(who) => match world.phases[usize::from(who)] {
            Phase::Leased { attempt, .. } => {
                let ask = renewal(model, attempt, false);
                world.ask(who, ask, Phase::Renewing { attempt });
            }
            Phase::Dispatched { attempt, .. } => {
                let ask = renewal(model, attempt, true);
                world.messages.insert(Message::ToStore(who, ask));
            }
            _ => {}
        },
        Action::Crash(who) => {
            world.crashes += 1;
            world.phases[usize::from(who)] = Phase::Crashed;
        }
        Action::Lapse => {
            world.lapses += 1;
            if let Some(cell) = &mut world.cell {
                cell.age += 1;
            }
        }
        Action::Lose => lose(model, world),
        Action::EndHoldOff => end_hold_off(world),
    }
}

/// The record is gone. What was settled already is nobody's to write again: the store did not keep
/// what it acknowledged, and nothing is promised then.
fn lose(model: &Protocol, world: &mut World) {
    world.losses += 1;
    let is_settled = |cell: Cell| matches!(cell.is, Is::Completed(_) | Is::Unresolved);
    world.excused |= world.cell.is_some_and(is_settled);
    world.cell = None;
    world.holds_off = model.variant != Variant::NoHoldOff;
    // The hold-off lasts for a renewal that was sent after the loss: what was confirmed before it does
    // not count.
    world
        .messages
        .retain(|message| !matches!(message, Message::ToContender(_, Ask::Renew { .. }, _)));
    for phase in &mut world.phases {
        match phase {
            Phase::Dispatched { known, .. } | Phase::Settling { known, .. } => *known = false,
            _ => {}
        }
    }
}

/// It lasts longer than any claim waits for its reply, and longer than a lease serves unrenewed.
fn end_hold_off(world: &mut World) {
    world.holds_off = false;
    for who in 0..u8::try_from(world.phases.len()).unwrap() {
        match &mut world.phases[usize::from(who)] {
            Phase::Leased { stale, .. } => *stale = true,
            Phase::Claiming => world.ask(who, Ask::Abandon, Phase::Withdrawing),
            // Absent it takes nothing over.
            Phase::TakingOver { .. } => world.phases[usize::from(who)] = Phase::Done,
            _ => {}
        }
    }
}

fn at_the_store(model: &Protocol, world: &mut World, who: u8, ask: Ask) {
    let cell = world.cell;
    let is_claim = matches!(ask, Ask::Claim | Ask::TakeOver { .. });
    if world.holds_off && is_claim && cell.is_none() {
        return world.tell(who, ask, Told::NotYet);
    }
    let (cell, told) = match (model.variant, ask, cell) {
        (Variant::CheckThenSet, Ask::Claim, None) => (None, Told::Absent),
        (Variant::CheckThenSet, Ask::Renew { attempt, .. }, _) => {
            let cell = Cell {
                owner: who,
                attempt,
                is: Is::InFlight,
                age: 0,
            };
            (Some(cell), Told::Acquired(attempt))
        }
        (Variant::LapsedIsFree, Ask::Claim, Some(cell)) if cell.lapsed() => apply(None, who, ask),
        (Variant::NoOwnerCheck, Ask::Complete { .. }, _) => apply(None, who, ask),
        _ => apply(cell, who, ask),
    };
    if let Some(Is::Completed(answer)) = cell.map(|cell| cell.is) {
        let first = *world.recorded.get_or_insert(answer);
        world.changed |= first != answer;
    }
    world.cell = cell;
    world.tell(who, ask, told);
}

fn reply(model: &Protocol, world: &mut World, who: u8, ask: Ask, told: Told) {
    let phase = world.phases[usize::from(who)];
    let next = match (phase, ask, told) {
        (Phase::Claiming, Ask::Claim, Told::Acquired(attempt))
        | (Phase::TakingOver { .. }, Ask::TakeOver { .. }, Told::Acquired(attempt))
        | (Phase::Writing, Ask::Renew { .. }, Told::Acquired(attempt))
        | (Phase::Renewing { attempt }, Ask::Renew { .. }, Told::Stored) => Phase::Leased {
            attempt,
            stale: false,
        },
        (Phase::Claiming, Ask::Claim, Told::Absent) => {
            let ask = renewal(model, 1, false);
            return world.ask(who, ask, Phase::Writing);
        }
        (Phase::Claiming, Ask::Claim, Told::Held(cell))
        | (Phase::TakingOver { .. }, Ask::TakeOver { .. }, Told::Held(cell)) => {
            match (cell.is, model.retries && cell.may_be_taken_over()) {
                (Is::Completed(answer), _) => {
                    world.released.insert(answer);
                    Phase::Done
                }
                (_, true) if matches!(ask, Ask::Claim) => {
                    let ask = Ask::TakeOver {
                        owner: cell.owner,
                        attempt: cell.attempt,
                    };
                    let attempt = cell.attempt + 1;
                    return world.ask(who, ask, Phase::TakingOver { attempt });
                }
                // 409, or the problem.
                _ => Phase::Done,
            }
        }
        (Phase::Claiming, Ask::Claim, Told::NotYet)
        | (Phase::TakingOver { .. }, Ask::TakeOver { .. }, Told::NotYet | Told::Absent)
        | (Phase::Renewing { .. }, Ask::Renew { .. }, Told::LeaseLost)
        | (Phase::LookingAgain, Ask::Abandon, _) => Phase::Done,
        (Phase::Dispatched { attempt, .. }, Ask::Renew { .. }, Told::Stored) => Phase::Dispatched {
            attempt,
            known: true,
        },
        (Phase::Settling { end, .. }, ask, told) if ends(ask) => {
            if let (Is::Completed(answer), Told::Stored) = (end, told) {
                world.released.insert(answer);
            }
            Phase::Done
        }
        (Phase::Withdrawing, Ask::Abandon, _) => Phase::Watching,
        (phase, ..) => phase,
    };
    world.phases[usize::from(who)] = next;
}

fn ends(ask: Ask) -> bool {
    matches!(
        ask,
        Ask::Complete { .. } | Ask::Unresolve { .. } | Ask::Fail { .. }
    )
}

fn answered(world: &mut World, who: u8, answer: u8) {
    if let Phase::Dispatched { .. } = world.phases[usize::from(who)] {
        world.settle(who, Is::Completed(answer));
    }
}

fn send_again(model: &Protocol, world: &mut World, who: u8) {
    let phase = world.phases[usize::from(who)];
    let ask = match phase {
        Phase::Settling { attempt, end, .. } => settling(attempt, end),
        Phase::Renewing { attempt } => renewal(model, attempt, false),
        _ => Ask::Abandon,
    };
    world.ask(who, ask, phase);
}

impl World {
    /// Replies that change nothing any more, whenever they come.
    pub(crate) fn forget_what_nobody_hears(&mut self) {
        let phases = &self.phases;
        self.messages.retain(|message| match *message {
            Message::ToContender(who, ask, _) => match phases[usize::from(who)] {
                Phase::Claiming => ask == Ask::Claim,
                Phase::TakingOver { .. } => matches!(ask, Ask::TakeOver { .. }),
                Phase::Writing | Phase::Renewing { .. } => matches!(ask, Ask::Renew { .. }),
                Phase::Dispatched { known, .. } => !known && matches!(ask, Ask::Renew { .. }),
                Phase::Settling { .. } => ends(ask),
                Phase::Withdrawing | Phase::LookingAgain => ask == Ask::Abandon,
                Phase::Watching
                | Phase::Fresh
                | Phase::Leased { .. }
                | Phase::Done
                | Phase::Crashed => false,
            },
            Message::FromUpstream(who, _) => {
                matches!(phases[usize::from(who)], Phase::Dispatched { .. })
            }
            Message::ToStore(..) | Message::ToUpstream(_) => true,
        });
    }

    fn ask(&mut self, who: u8, ask: Ask, phase: Phase) {
        self.messages.insert(Message::ToStore(who, ask));
        self.phases[usize::from(who)] = phase;
    }

    fn tell(&mut self, who: u8, ask: Ask, told: Told) {
        self.messages.insert(Message::ToContender(who, ask, told));
    }

    fn settle(&mut self, who: u8, end: Is) {
        let (attempt, known) = match self.phases[usize::from(who)] {
            Phase::Dispatched { attempt, known } => (attempt, known),
            Phase::Leased { attempt, .. } => (attempt, true),
            _ => return,
        };
        let phase = Phase::Settling {
            attempt,
            end,
            known,
        };
        self.ask(who, settling(attempt, end), phase);
    }
}
