//! The promises of the codec: encoded packets decode to the same values, invalid packets are refused with the right
//! code, and no input makes it panic.

mod bytes;
mod connect;
mod differential;
mod frame;
mod hostile;
mod properties;
mod publish;
mod refusals;
mod round_trip;
mod strategies;
mod topics;
