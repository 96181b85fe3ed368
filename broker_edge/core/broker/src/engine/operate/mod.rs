//! What operators ask and see over the loop.

pub mod clients_api;
pub mod retain_request;
pub mod sys;
pub mod weigh_request;
