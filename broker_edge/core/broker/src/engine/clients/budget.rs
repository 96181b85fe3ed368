//! The budget for large packets that are being received. Such a packet is read only when room for all of it is
//! reserved, so that a packet once begun can be completed.

use std::collections::VecDeque;

use headwater_mqtt::ReasonCode;

use crate::engine::ConnKey;
use crate::engine::effects::{Cause, Effects};
use crate::engine::env::Env;
use crate::engine::observe::Observe;
use crate::engine::session::connection::Unparsed;
use crate::engine::session::pauses::Pause;

use super::Clients;

/// How long a large packet may take to arrive while others wait for the budget.
const PACKET_MS_MAX: u64 = 30_000;

#[derive(Debug, Default)]
pub struct Budget {
    reserved_bytes: usize,
    waits: VecDeque<ConnKey>,
    /// Some was freed since the connections that wait were last resumed.
    is_freed: bool,
}

impl Clients {
    #[cfg(test)]
    pub fn reserved_bytes(&self) -> usize {
        self.budget.reserved_bytes
    }

    /// Whether connections wait for the budget.
    pub fn is_budget_scarce(&self) -> bool {
        !self.budget.waits.is_empty()
    }

    /// Reserves room for the packet at the front of what a connection received, or pauses the connection. Returns
    /// whether there is room.
    pub fn reserve(&mut self, key: ConnKey, env: &Env, observe: &mut Observe) -> bool {
        let (budget, conn) = (&mut self.budget, self.conns.get_mut(key));
        let Some(conn) = conn else {
            return false;
        };
        let unparsed = &mut *conn.unparsed;
        let more = unparsed.needs.saturating_sub(unparsed.reserved);
        if more == 0 {
            return true;
        }
        let bytes_max = env.settings.mqtt.receive_budget_bytes.as_usize();
        if budget.reserved_bytes + more > bytes_max {
            budget.waits.push_back(key);
            observe.pause(conn, Pause::Budget);
            return false;
        }
        unparsed.reserved += more;
        unparsed.reserved_at_ms = env.now.mono_ms;
        budget.reserved_bytes += more;
        let rest = unparsed.needs - unparsed.bytes.len();
        unparsed.bytes.reserve_exact(rest);
        true
    }

    /// Frees the room reserved for a packet that is complete or abandoned.
    pub fn give_back(&mut self, reserved: usize) {
        self.budget.reserved_bytes -= reserved;
        self.budget.is_freed |= reserved > 0;
    }

    /// Lets connections that wait for the budget try again after some was freed.
    pub fn wake_budget_waits(&mut self, env: &Env) {
        if self.is_budget_scarce() && std::mem::take(&mut self.budget.is_freed) {
            for key in std::mem::take(&mut self.budget.waits) {
                self.resume(key, Pause::Budget, env);
            }
        }
    }

    /// While others wait for the budget, closes connections that reserve part of it for a packet that does not arrive.
    pub fn end_slow_packets(&mut self, env: &Env, effects: &mut Effects) {
        if !self.is_budget_scarce() {
            return;
        }
        let now_ms = env.now.mono_ms;
        let is_slow = |unparsed: &Unparsed| {
            unparsed.reserved > 0 && unparsed.reserved_at_ms + PACKET_MS_MAX <= now_ms
        };
        let conns = self.conns.iter();
        let slow = conns.filter(|(_, conn)| is_slow(&conn.unparsed));
        let slow: Vec<ConnKey> = slow.map(|(key, _)| key).collect();
        for key in slow {
            tracing::debug!(
                "a large packet takes too long while others wait for the budget, so its connection is closed"
            );
            self.close(key, Cause::Reason(ReasonCode::QuotaExceeded), env, effects);
        }
    }
}
