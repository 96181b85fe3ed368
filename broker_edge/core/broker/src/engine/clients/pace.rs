//! Rate limits. A client over its rate is not closed: the rest of what it sent stays unparsed and its socket is not
//! read until it may continue.

use headwater_mqtt::packet::kind;

use crate::engine::ConnKey;
use crate::engine::env::Env;
use crate::engine::observe::Observe;
use crate::engine::session::connection::Phase;
use crate::engine::session::pauses::Pause;

use super::Clients;
use super::timers::Timer;

/// How long less is read at once after a connection was paused for its work.
const COSTLY_MS: u64 = 60_000;

impl Clients {
    /// Whether a packet has to wait because its client is over its rate. A packet that may pass is charged.
    pub fn is_over_rate(
        &mut self,
        key: ConnKey,
        (first_byte, size): (u8, usize),
        env: &Env,
        observe: &mut Observe,
    ) -> bool {
        let Some(conn) = self.conn_mut(key) else {
            return false;
        };
        if conn.phase != Phase::Open {
            return false;
        }
        let is_publish = first_byte >> 4 == kind::PUBLISH;
        let pace = conn.extras.pace.get_or_insert_default();
        let (limits, now_us) = (&env.settings.mqtt, env.now.mono_ms * 1000);
        let Err((due_us, cause)) = pace.charge(is_publish, size, limits, now_us) else {
            return false;
        };
        observe.pause(conn, cause);
        self.set_timer(due_us.div_ceil(1000), Timer::Pace(key));
        true
    }

    /// Pauses a connection whose packets cost much, until this time.
    pub fn pause_for_work(&mut self, key: ConnKey, due_ms: u64, env: &Env, observe: &mut Observe) {
        if let Some(conn) = self.conn_mut(key) {
            observe.pause(conn, Pause::Work);
            self.set_timer(due_ms, Timer::Pace(key));
            self.costly_until_ms = env.now.mono_ms + COSTLY_MS;
        }
    }

    /// Pauses a connection until what it waits for in the state store is durable. It may be paused often.
    pub fn pause_for_state(&mut self, key: ConnKey, env: &Env) {
        if let Some(conn) = self.conn_mut(key) {
            conn.pauses.begin(Pause::State);
            self.costly_until_ms = env.now.mono_ms + COSTLY_MS;
        }
    }

    /// Whether a connection was paused for its work not long ago. Others may be too, and keep what they have sent.
    pub fn was_costly(&self, env: &Env) -> bool {
        env.now.mono_ms < self.costly_until_ms
    }
}
