//! `mark/received`: the stored values of all sessions cover all records below these offsets.

use serde::{Deserialize, Serialize};

use super::ByName;

pub const KEY: &str = "mark/received";

#[derive(Debug, Default, Serialize, Deserialize, PartialEq)]
pub struct Mark {
    pub applied: ByName,
}
