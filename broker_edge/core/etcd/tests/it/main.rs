//! The client against etcd itself, started as a child. Debian: apt-get install etcd-server.

mod access;
mod contract;
mod limits;
mod members;
mod proxy;
mod strangers;
mod support;
mod watching;
