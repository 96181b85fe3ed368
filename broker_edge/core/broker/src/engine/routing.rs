//! Which subscribers a topic reaches.

use super::router::Router;
use super::topics::Topics;

#[derive(Default)]
pub struct Routing {
    pub(super) router: Router,
    pub(super) topics: Topics,
}
