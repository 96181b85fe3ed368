//! Flight's promises to producers and consumer groups.

mod groups;
mod requests;
mod rows;
