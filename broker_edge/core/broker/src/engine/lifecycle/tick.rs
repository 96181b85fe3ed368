//! Work that is due by time: keep-alive timeouts, wills, expired sessions, checkpoints.

use headwater_mqtt::ReasonCode;

use crate::engine::clients::timers::Timer;
use crate::engine::effects::Cause;
use crate::engine::session::NEVER_EXPIRES;
use crate::engine::session::connection::Phase;
use crate::engine::{ConnKey, Engine, SessionKey};

/// Cursors are checkpointed this often.
pub const CHECKPOINT_MS: u64 = 1000;
/// Limit on timers per turn, so that timers of very many clients due at once do not block the loop.
pub(in crate::engine) const DUE_MAX: usize = 256;
/// Below this count, skip the removal of stale timers.
const TIMERS_KEPT: usize = 1024;

impl Engine {
    /// Does the work that is due. Called before [`Engine::commit`], so that wills are appended in the same turn.
    pub fn tick(&mut self) {
        for done in 0.. {
            if done == DUE_MAX {
                // The remaining timers run in the next turn.
                self.effects.more |= self.clients.timers.is_due(self.env.now.mono_ms);
                return;
            }
            let Some(timer) = self.clients.timers.pop_due(self.env.now.mono_ms) else {
                return;
            };
            match timer {
                Timer::Silence(key) => self.check_silence(key),
                Timer::Will(key) => self.check_will(key),
                Timer::Expiry(key) => self.check_expiry(key),
                Timer::Credentials(key) => self.check_credentials(key),
                Timer::Pace(key) => self.end_pause_of_rate(key),
                Timer::Sys => self.publish_sys(),
                // The catch-up of this turn checks which sessions may read.
                Timer::ScheduleReads => self.catch_up.batch_cache.watched = false,
                Timer::Cursors => self.checkpoint_some(),
                Timer::Checkpoint => {
                    self.take_from_silent();
                    self.begin_checkpoint();
                    self.forget_published_wills();
                    self.observe
                        .active_rates
                        .look(&mut self.clients.conns, self.env.now.mono_ms);
                    self.mark_qos2_inbound(false);
                    self.end_slow_packets();
                    self.close_waits_on_full();
                    self.read_again();
                    self.groups.read_again();
                    self.quotas.forget_claims(self.env.now.mono_ms);
                    self.drop_stale_timers();
                    self.clients
                        .timers
                        .set(self.env.now.mono_ms + CHECKPOINT_MS, Timer::Checkpoint);
                }
            }
            self.drain();
        }
    }

    /// When the next turn is due at the latest, on the monotonic clock.
    pub fn next_deadline_ms(&self) -> Option<u64> {
        self.clients.timers.next_due_ms()
    }

    /// Clients that connect and disconnect leave timers behind that may not be due for weeks.
    fn drop_stale_timers(&mut self) {
        if self.clients.timers.len()
            < 4 * (self.clients.conns.len() + self.clients.sessions.len()) + TIMERS_KEPT
        {
            return;
        }
        let (conns, sessions) = (&self.clients.conns, &self.clients.sessions);
        self.clients.timers.retain(|due_ms, timer| match timer {
            Timer::Credentials(key) => conns.get(key).is_some(),
            Timer::Checkpoint | Timer::Cursors | Timer::Sys | Timer::ScheduleReads => true,
            Timer::Pace(key) => conns.get(key).is_some_and(|conn| conn.paused_on_rate),
            Timer::Silence(key) => conns
                .get(key)
                .is_some_and(|conn| conn.phase != Phase::Open || conn.silence_due_ms == due_ms),
            Timer::Will(key) => sessions
                .get(key)
                .and_then(|session| session.offline.as_ref()?.will.as_ref())
                .is_some_and(|(at, _)| *at == due_ms),
            Timer::Expiry(key) => sessions
                .get(key)
                .and_then(|session| session.offline.as_ref())
                .is_some_and(|away| away.expiry_due_ms == due_ms),
        });
    }

    fn check_silence(&mut self, key: ConnKey) {
        let now_ms = self.env.now.mono_ms;
        let Some(conn) = self.clients.conns.get_mut(key) else {
            return;
        };
        if conn.silence_due_ms > now_ms {
            // The deadline has moved, and a timer was set for it.
            return;
        }
        match conn.phase {
            // The broker has not checked the credentials yet.
            Phase::New if conn.paused_on_auth => {
                conn.silence_due_ms = now_ms + self.env.settings.mqtt.connect_timeout.as_ms();
                self.clients
                    .timers
                    .set(conn.silence_due_ms, Timer::Silence(key));
            }
            Phase::New | Phase::Authenticating => self.close(key, Cause::Lost),
            Phase::Closed => {}
            Phase::Open => {
                let silence_ms = u64::from(conn.keep_alive_s) * 1500;
                if silence_ms == 0 {
                    return;
                }
                // Pauses caused by the broker do not count as silence of the client.
                let heard_ms = if conn.is_held_back() {
                    now_ms
                } else {
                    conn.last_read_ms
                };
                if heard_ms + silence_ms <= now_ms {
                    self.close(key, Cause::Reason(ReasonCode::KeepAliveTimeout));
                } else {
                    conn.silence_due_ms = heard_ms + silence_ms;
                    self.clients
                        .timers
                        .set(conn.silence_due_ms, Timer::Silence(key));
                }
            }
        }
    }

    fn check_expiry(&mut self, key: SessionKey) {
        let now = self.env.now;
        let Some(session) = self.clients.sessions.get_mut(key) else {
            return;
        };
        let Some(away) = &mut session.offline else {
            return;
        };
        if away.expiry_due_ms > now.mono_ms {
            // The client disconnected again since, and a timer was set for that.
            return;
        }
        let since_us = away.since_us;
        if session.expiry_s == NEVER_EXPIRES {
            return;
        }
        let away_ms = u64::try_from(now.wall_us - since_us).unwrap_or(0) / 1000;
        let left_ms = (u64::from(session.expiry_s) * 1000).saturating_sub(away_ms);
        // Both clocks are rounded down to milliseconds, so one millisecond may be left on the clock that the timer does
        // not use. A will that waited for the session's end has been published by now.
        if left_ms <= 1 {
            self.observe.turn_metrics.sessions_expired += 1;
            self.end_session(key);
        } else {
            away.expiry_due_ms = now.mono_ms + left_ms;
            self.clients
                .timers
                .set(away.expiry_due_ms, Timer::Expiry(key));
        }
    }
}
