//! Stand-in for the flows of a session in a build without the feature `mqtt-next`: it keeps none.

#![expect(
    clippy::unused_self,
    reason = "the methods are those of a build with flows"
)]

/// Flows of a session, of which there are none.
#[derive(Clone, Debug, Default)]
pub(super) struct Flows;

impl Flows {
    pub(super) fn is_empty(&self) -> bool {
        true
    }

    pub(super) fn clear(&mut self) {}

    pub(super) fn forget_unacknowledged(&mut self) {}

    pub(super) fn bytes(&self) -> usize {
        0
    }
}
