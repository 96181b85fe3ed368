//! DoPut: messages become records.

mod ask;
pub mod produce;
pub mod put;
pub mod put_body;
pub mod rows;
mod weigh;
