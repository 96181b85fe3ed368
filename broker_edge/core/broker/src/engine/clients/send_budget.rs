//! The budget for what waits for the sockets of all connections.
//!
//! It is shared like the buffer of a network switch. A connection may fill its own buffer while at most half of the
//! budget is used; beyond that, what each may hold shrinks with the rest, but never below a small part. So clients that
//! do not read leave room for those that do. Whoever has no room goes behind and reads from the log later.

use crate::config::MqttSettings;
use crate::engine::Connection;
use crate::engine::env::Env;

/// What a connection may always hold.
pub const OUT_BYTES_MIN: usize = 16 << 10;

#[derive(Debug, Default)]
pub struct SendBudget {
    /// What the sockets did not take when it was last sent, of all connections.
    waiting_bytes: usize,
    /// What was copied to the buffers of connections in this turn.
    copied_bytes: u64,
}

impl SendBudget {
    pub fn waiting_bytes(&self) -> usize {
        self.waiting_bytes
    }

    /// Counts what waits for the socket of a connection now.
    #[inline]
    pub fn recount(&mut self, conn: &mut Connection, left: usize) {
        let counted = u32::try_from(left).unwrap_or(u32::MAX);
        if counted != conn.waiting_bytes {
            self.waiting_bytes -= conn.waiting_bytes as usize;
            self.waiting_bytes += counted as usize;
            conn.waiting_bytes = counted;
        }
    }

    /// A connection gets more to send while less than this waits for its socket.
    #[inline]
    pub fn room(&self, env: &Env) -> usize {
        let mqtt = &env.settings.mqtt;
        let left = mqtt
            .send_budget_bytes
            .as_usize()
            .saturating_sub(self.waiting_bytes);
        if left >= mqtt.send_budget_bytes.as_usize() / 2 {
            return mqtt.out_buffer_bytes.as_usize();
        }
        scarce_room(mqtt, left)
    }

    #[inline]
    pub fn note_copied(&mut self, bytes: usize) {
        self.copied_bytes += bytes as u64;
    }

    /// The bytes copied in this turn.
    pub fn copied_bytes(&self) -> u64 {
        self.copied_bytes
    }

    pub fn begin_turn(&mut self) {
        self.copied_bytes = 0;
    }
}

/// With less than half of the budget left.
#[cold]
fn scarce_room(mqtt: &MqttSettings, left: usize) -> usize {
    let (own, half) = (
        mqtt.out_buffer_bytes.as_usize(),
        mqtt.send_budget_bytes.as_usize() / 2,
    );
    let share = own.saturating_mul(left) / half.max(1);
    share.max(OUT_BYTES_MIN.min(own))
}
