//! Which subscribers a topic reaches.

mod entries;
pub mod position;
pub mod router;
pub mod topics;

use router::Router;
use topics::Topics;

#[derive(Default)]
pub struct Routing {
    pub(super) router: Router,
    pub(super) topics: Topics,
}
