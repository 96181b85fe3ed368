//! The live stream.

pub mod deliver;
pub mod encode;
pub mod template;

use headwater_log::Offset;

use template::Templates;

#[derive(Default)]
pub struct Delivery {
    /// Per partition, the end of what was dispatched to the live sessions.
    pub(super) dispatched: Vec<Offset>,
    pub(super) templates: Templates,
}
