//! What an operator sees of a broker and does to it: clients, figures, talk, limits of the admin listener.

mod admin;
mod browser;
mod clients;
mod figures;
mod http;
mod talk;
