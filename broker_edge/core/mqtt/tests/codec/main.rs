//! What the codec promises: what is written is read back, what is wrong is refused with the right code, and no input,
//! however broken, makes it panic.

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
