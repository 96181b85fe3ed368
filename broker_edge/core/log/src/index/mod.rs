//! Indexes of segments, the topics of all sealed segments, and the store that holds them.

pub(crate) mod builder;
pub(crate) mod catalog;
pub(crate) mod catalog_file;
pub(crate) mod file;
pub(crate) mod format;
pub(crate) mod key_lookup;
pub(crate) mod key_pages;
pub(crate) mod keys;
pub(crate) mod model;
pub(crate) mod rebuild;
pub(crate) mod segment;
pub(crate) mod segment_info;
pub(crate) mod shared;
pub(crate) mod store;
