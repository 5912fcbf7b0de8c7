//! Always some fault: between the replicas and the store, or the store itself killed and restarted.

use std::time::Duration;

use crate::support::faulty::{Fault, Faulty};

/// A sequence that a seed repeats.
#[derive(Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn below(&mut self, limit: usize) -> usize {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let high = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33;
        usize::try_from(high % limit as u64).unwrap()
    }
}

pub(super) struct Nemesis {
    random: Random,
    kill: Box<dyn FnMut() + Send>,
    pub(super) strikes: usize,
}

impl Nemesis {
    /// `kill` ends the store, and brings it back.
    pub(super) fn new(seed: u64, kill: impl FnMut() + Send + 'static) -> Self {
        Self {
            random: Random::new(seed),
            kill: Box::new(kill),
            strikes: 0,
        }
    }

    /// One fault for a while. The time is the fault's own: how long something stays broken.
    pub(super) fn strike(&mut self, links: &[Faulty]) {
        self.strikes += 1;
        let link = &links[self.random.below(links.len())];
        let octets = self.random.below(2_000) as u64;
        let fault = match self.random.below(8) {
            0 => return (self.kill)(),
            1 => Fault::Delay(Duration::from_millis(60)),
            2 => Fault::LosesReplies,
            3 => Fault::LosesRequests,
            4 | 5 => Fault::CutsRepliesAfter(octets),
            6 => Fault::CutsRequestsAfter(octets),
            _ => Fault::Refuses,
        };
        link.set(fault);
        std::thread::sleep(Duration::from_millis(50 + self.random.below(350) as u64));
        link.set(Fault::None);
    }
}
