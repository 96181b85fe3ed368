//! What an operator sees of a broker and does to it: clients, figures, limits of the admin listener.

#[path = "../common/mod.rs"]
mod common;

mod clients;
mod http;
