//! Loss of packets: the state of each loss model.

use crate::{Loss, Probability};

/// A way to lose packets, with its state.
#[derive(Debug)]
pub(super) struct LossState {
    loss: Loss,
    /// `true` if the model is in Gilbert–Elliott's bad state, or in a burst of the Markov model.
    bad: bool,
    /// `true` if the Markov model lost the last packet.
    lost: bool,
}

impl LossState {
    pub(super) fn new(loss: Loss) -> Self {
        Self {
            loss,
            bad: false,
            lost: false,
        }
    }

    /// Returns `true` if the next packet is lost, and moves the state on by one packet.
    pub(super) fn is_lost(&mut self, random: &mut fastrand::Rng) -> bool {
        match self.loss {
            Loss::Bernoulli(p) => p.happens(random),
            Loss::GilbertElliott {
                to_bad,
                to_good,
                in_bad,
                in_good,
            } => {
                // The packet meets the state that its predecessor left, as in netem.
                let (lost, moves) = if self.bad {
                    (in_bad, to_good)
                } else {
                    (in_good, to_bad)
                };
                self.bad ^= moves.happens(random);
                lost.happens(random)
            }
            Loss::Markov {
                p13,
                p31,
                p32,
                p23,
                p14,
            } => {
                let [p13, p31, p32, p23, p14] = [p13, p31, p32, p23, p14].map(Probability::share);
                let chance = random.f64();
                // As netem's loss_4state: the state changes first, and the new state decides.
                (self.bad, self.lost) = match (self.bad, self.lost) {
                    (false, false) if chance < p14 => (false, true),
                    (false, false) => {
                        let burst = chance < p14 + p13;
                        (burst, burst)
                    }
                    (false, true) => (false, false),
                    (true, true) if chance < p32 => (true, false),
                    (true, true) => {
                        let stays = chance >= p32 + p31;
                        (stays, stays)
                    }
                    (true, false) => (true, chance < p23),
                };
                self.lost
            }
        }
    }
}
