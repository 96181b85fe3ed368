//! Asks for room before a Flight producer appends retained messages: they count for its user like those of MQTT
//! clients, and the loop owns the accounts.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot::Sender;

use crate::auth::Rights;
use crate::engine::env::Env;
use crate::engine::observe::{Count, Observe};
use crate::engine::quotas::{Kind, Quotas};
use crate::engine::retained::Retained;

/// Limit on the messages of one request, which is answered within a turn.
pub const MESSAGES_MAX: usize = 256;

/// Retained messages on their way into the log. The answer names the limit that they exceed, if any.
#[derive(Debug)]
pub struct RetainRequest {
    pub rights: Arc<Rights>,
    /// Topic and payload bytes of each record, at most [`MESSAGES_MAX`].
    pub messages: Vec<(String, usize)>,
    pub answer: Sender<Result<(), &'static str>>,
}

impl RetainRequest {
    /// Makes the claims and sends the answer. A requester that no longer waits is no error: claims of records that
    /// never arrive are dropped.
    pub(in crate::engine) fn serve(
        self,
        env: &Env,
        quotas: &mut Quotas,
        retained: &Mutex<Retained>,
        observe: &mut Observe,
    ) {
        let result = self.claim(env, quotas, &retained.lock());
        observe.count(Count::RetainedRefused, u64::from(result.is_err()));
        let _ = self.answer.send(result);
    }

    fn claim(
        &self,
        env: &Env,
        quotas: &mut Quotas,
        retained: &Retained,
    ) -> Result<(), &'static str> {
        let account = quotas.open(Some(&self.rights));
        let now_ms = env.now.mono_ms;
        let mut result = Ok(());
        for (topic, payload_bytes) in &self.messages {
            let message = (&**topic, *payload_bytes);
            let over = retained.over_quota(quotas, account, message);
            if over.is_some() || retained.is_full_for(topic, *payload_bytes) {
                result = Err(over.map_or("mqtt.max_retained", Kind::reason));
                break;
            }
            retained.claim(quotas, account, message, now_ms);
        }
        // The claims keep it open.
        quotas.close(account);
        result
    }
}
