//! Rows of records as Arrow: the schemas, and their encoding and decoding. It knows neither callers nor calls.

pub mod columns;
pub mod encoder;
pub mod headers;
pub mod ipc;
