//! Logs connections that fail before MQTT, at a limited rate: one line per kind and interval, then the number of lines
//! left out. Anybody who reaches the port can cause such failures.

use std::collections::HashMap;
use std::net::SocketAddr;

use crate::metrics::ConnectFailure;

const TELL_EVERY_MS: u64 = 10_000;

#[derive(Debug, Default)]
pub struct FailureLog {
    kinds: HashMap<ConnectFailure, LastLine>,
}

#[derive(Debug)]
struct LastLine {
    at_ms: u64,
    left_out: u64,
}

impl FailureLog {
    pub fn tell(
        &mut self,
        kind: ConnectFailure,
        detail: &str,
        listener: &'static str,
        address: SocketAddr,
        now_ms: u64,
    ) {
        if let Some(told) = self.kinds.get_mut(&kind)
            && told.at_ms + TELL_EVERY_MS > now_ms
        {
            told.left_out += 1;
            tracing::debug!(%address, listener, reason = kind.name(), "{detail}");
            return;
        }
        let told = LastLine {
            at_ms: now_ms,
            left_out: 0,
        };
        let before = self.kinds.insert(kind, told);
        say_left_out(kind, before.as_ref());
        tracing::warn!(%address, listener, reason = kind.name(), "{detail}");
    }

    /// Logs the number of lines left out, for kinds that have not occurred again.
    pub fn tell_left_out(&mut self, now_ms: u64) {
        self.kinds.retain(|kind, told| {
            let is_recent = told.at_ms + TELL_EVERY_MS > now_ms;
            if !is_recent {
                say_left_out(*kind, Some(told));
            }
            is_recent
        });
    }
}

fn say_left_out(kind: ConnectFailure, told: Option<&LastLine>) {
    if let Some(told) = told.filter(|told| told.left_out > 0) {
        tracing::warn!(
            reason = kind.name(),
            count = told.left_out,
            "further connections were closed for the same reason"
        );
    }
}
