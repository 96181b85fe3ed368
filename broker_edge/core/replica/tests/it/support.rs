//! What the simulated disk expects of the program that it is part of.

use std::time::Duration;

pub const PATIENCE: Duration = Duration::from_secs(60);
