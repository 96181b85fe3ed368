//! What a client has used of its limits.

use crate::config::MqttSettings;

use super::pauses::Pause;

/// A burst is what the rate allows in this time.
const BURST_US: u64 = 1_000_000;

/// Per limit: the monotonic time, in microseconds, at which a client sending exactly at the rate would have sent as
/// much. It may be ahead of the clock by one burst.
#[derive(Debug, Default)]
pub struct Pace {
    messages_us: u64,
    bytes_us: u64,
}

impl Pace {
    /// Charges a packet that may pass.
    ///
    /// # Errors
    /// The client is over this limit until this time.
    pub fn charge(
        &mut self,
        is_publish: bool,
        size: usize,
        limits: &MqttSettings,
        now_us: u64,
    ) -> Result<(), (u64, Pause)> {
        let messages = limits.max_messages_per_second.filter(|_| is_publish);
        let bytes = limits.max_bytes_per_second.map(|bytes| bytes.0);
        let waits = [
            messages.map(|_| (self.messages_us, Pause::MessageRate)),
            bytes.map(|_| (self.bytes_us, Pause::ByteRate)),
        ];
        let latest = waits.into_iter().flatten().max_by_key(|(us, _)| *us);
        if let Some((us, cause)) = latest
            && us > now_us + BURST_US
        {
            return Err((us - BURST_US, cause));
        }
        if let Some(rate) = messages {
            advance(&mut self.messages_us, now_us, 1, u64::from(rate));
        }
        if let Some(rate) = bytes {
            advance(&mut self.bytes_us, now_us, size as u64, rate);
        }
        Ok(())
    }
}

/// Advances a pace by the time that `amount` takes at `rate` per second.
fn advance(pace_us: &mut u64, now_us: u64, amount: u64, rate: u64) {
    let cost_us = amount.saturating_mul(1_000_000) / rate.max(1);
    *pace_us = (*pace_us).max(now_us).saturating_add(cost_us);
}

/// How many topics a client added to the table since it was last emptied.
#[derive(Debug, Clone, Copy, Default)]
pub struct TopicsMade {
    generation: u32,
    count: u32,
}

impl TopicsMade {
    pub fn in_table(self, generation: u32) -> u32 {
        if self.generation == generation {
            self.count
        } else {
            0
        }
    }

    pub fn add(&mut self, generation: u32) {
        *self = Self {
            generation,
            count: self.in_table(generation).saturating_add(1),
        };
    }
}
