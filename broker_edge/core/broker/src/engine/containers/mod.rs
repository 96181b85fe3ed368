//! Containers that know nothing of MQTT.

pub mod inline_vec;
pub mod lazy_box;
pub mod once_queue;
pub mod slab;
