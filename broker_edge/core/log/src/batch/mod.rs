//! A batch of records: its bytes, how it is assembled from appends and how it is read.

pub(crate) mod assembler;
pub(crate) mod buffers;
pub(crate) mod by_name;
pub(crate) mod by_topic;
pub(crate) mod decode;
pub(crate) mod layout;
pub(crate) mod name_table;
pub(crate) mod payloads;
pub(crate) mod record_batch;
pub(crate) mod records;
pub(crate) mod view;
