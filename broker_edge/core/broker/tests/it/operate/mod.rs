//! What an operator sees and does: clients, metrics, logs, limits of the admin listener.

mod admin;
mod browser;
mod clients;
mod console;
mod events;
mod figures;
mod segments;
mod session;
mod slow_requests;
mod streams;
mod talk;
