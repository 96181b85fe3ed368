//! Rate limits. A client over its rate is not closed: the rest of what it sent stays unparsed and its socket is not
//! read until it may continue.

use headwater_mqtt::packet::kind;

use crate::engine::ConnKey;
use crate::engine::env::Env;
use crate::engine::observe::Observe;
use crate::engine::session::connection::Phase;

use super::Clients;
use super::timers::Timer;

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
}
