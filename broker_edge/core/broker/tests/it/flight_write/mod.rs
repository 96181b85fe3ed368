//! Flight's promises to producers and consumer groups.

mod costly_topics;
mod groups;
mod requests;
mod rows;
