//! The live stream.

use headwater_log::Offset;

use super::template::Templates;

#[derive(Default)]
pub struct Delivery {
    /// Per partition, the end of what was dispatched to the live sessions.
    pub(super) dispatched: Vec<Offset>,
    pub(super) templates: Templates,
}
