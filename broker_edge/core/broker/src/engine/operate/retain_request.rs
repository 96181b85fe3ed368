//! Asks for room before a Flight producer appends retained messages: they count for its user like those of MQTT
//! clients, and the loop owns the accounts.

use std::sync::Arc;

use tokio::sync::oneshot::Sender;

use crate::auth::Rights;
use crate::engine::Engine;
use crate::engine::quotas::Kind;

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

impl Engine {
    /// A requester that no longer waits is no error: claims of records that never arrive are dropped.
    pub fn answer_retain(&mut self, request: RetainRequest) {
        let result = self.claim_for(&request.rights, &request.messages);
        self.observe.turn_metrics.retained_refused += u64::from(result.is_err());
        let _ = request.answer.send(result);
    }

    fn claim_for(
        &mut self,
        rights: &Arc<Rights>,
        messages: &[(String, usize)],
    ) -> Result<(), &'static str> {
        let account = self.quotas.open(Some(rights));
        let now_ms = self.env.now.mono_ms;
        let retained = self.retained.lock();
        let mut result = Ok(());
        for (topic, payload_bytes) in messages {
            let message = (&**topic, *payload_bytes);
            let over = retained.over_quota(&self.quotas, account, message);
            if over.is_some() || retained.is_full_for(topic, *payload_bytes) {
                result = Err(over.map_or("mqtt.max_retained", Kind::reason));
                break;
            }
            retained.claim(&mut self.quotas, account, message, now_ms);
        }
        // The claims keep it open.
        self.quotas.close(account);
        result
    }
}
