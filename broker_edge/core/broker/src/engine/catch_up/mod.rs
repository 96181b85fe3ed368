//! Who reads behind the live stream, and from which caches.

mod batch_cache;
mod candidate_cache;
pub mod read_retry;
pub mod readers;
mod replays;
mod resend;
mod scheduler;
pub mod send_retained;

use std::collections::VecDeque;

use super::SessionKey;
use super::routing::topics::OptionsCache;

use batch_cache::BatchCache;
use candidate_cache::CandidateCache;

#[derive(Default)]
pub struct CatchUp {
    /// Sessions with something to send besides the live stream, each at most once.
    pub(super) runnable: VecDeque<SessionKey>,
    /// Sessions that wait to repeat a read that failed temporarily.
    pub(super) read_retries: Vec<SessionKey>,
    pub(super) batch_cache: BatchCache,
    pub(super) candidate_cache: CandidateCache,
    /// For sessions that catch up.
    pub(super) options_cache: OptionsCache,
}
