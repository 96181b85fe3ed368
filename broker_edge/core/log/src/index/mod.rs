//! What is known about a segment without reading it: its index, in memory or in a file, and the topics of all.

pub(crate) mod builder;
pub(crate) mod catalog;
pub(crate) mod catalog_file;
pub(crate) mod format;
pub(crate) mod model;
pub(crate) mod rebuild;
pub(crate) mod saved;
pub(crate) mod store;
