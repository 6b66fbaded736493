//! Which packets are lost.

use crate::Loss;

/// A way to lose packets, with what it remembers.
#[derive(Debug)]
pub(super) struct LossState {
    loss: Loss,
    /// Gilbert–Elliott: in the bad state.
    bad: bool,
}

impl LossState {
    pub(super) fn new(loss: Loss) -> Self {
        Self { loss, bad: false }
    }

    /// Whether the next packet is lost.
    pub(super) fn is_lost(&mut self, random: &mut fastrand::Rng) -> bool {
        match self.loss {
            Loss::Bernoulli(p) => p.happens(random),
            Loss::GilbertElliott {
                to_bad,
                to_good,
                in_bad,
                in_good,
            } => {
                // The state moves first, as in netem.
                let moves = if self.bad { to_good } else { to_bad };
                self.bad ^= moves.happens(random);
                let lost = if self.bad { in_bad } else { in_good };
                lost.happens(random)
            }
        }
    }
}
