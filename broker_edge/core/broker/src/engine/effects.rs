//! What one part of the engine asks of the turn.

#[derive(Default)]
pub struct Effects {
    /// A read stopped at its bound: the next turn must not sleep.
    pub(super) more: bool,
}
