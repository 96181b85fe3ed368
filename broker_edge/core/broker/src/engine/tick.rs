//! What happens because time has passed: silent connections, wills, expired sessions, checkpoints.

use headwater_mqtt::ReasonCode;

use super::close::Cause;
use super::connection::Phase;
use super::session::NEVER_EXPIRES;
use super::timers::Timer;
use super::{ConnKey, Engine, SessionKey};

/// Cursors are checkpointed this often.
pub const CHECKPOINT_MS: u64 = 1000;
/// So many timers a turn: what is due at once of very many clients holds up nobody.
pub(super) const DUE_MAX: usize = 256;
/// So many timers are no reason to look for stale ones.
const TIMERS_KEPT: usize = 1024;

impl Engine {
    /// Does what is due. Is called before [`Engine::commit`], so that wills are appended in the same turn.
    pub fn tick(&mut self) {
        for done in 0.. {
            if done == DUE_MAX {
                // The rest is as late as this turn is long.
                self.more |= self.timers.is_due(self.now.mono_ms);
                return;
            }
            let Some(timer) = self.timers.pop_due(self.now.mono_ms) else {
                return;
            };
            match timer {
                Timer::Silence(key) => self.check_silence(key),
                Timer::Will(key) => self.check_will(key),
                Timer::Expiry(key) => self.check_expiry(key),
                Timer::Credentials(key) => self.check_credentials(key),
                Timer::Pace(key) => self.end_pause_of_rate(key),
                Timer::Sys => self.publish_sys(),
                // The catching up of this turn looks at who may be let on.
                Timer::ScheduleReads => self.batch_cache.watched = false,
                Timer::Cursors => self.checkpoint_some(),
                Timer::Checkpoint => {
                    self.take_from_silent();
                    self.begin_checkpoint();
                    self.forget_published_wills();
                    self.active_rates.look(&mut self.conns, self.now.mono_ms);
                    self.mark_qos2_inbound(false);
                    self.end_slow_packets();
                    self.close_waits_on_full();
                    self.read_again();
                    self.groups.read_again();
                    self.quotas.forget_claims(self.now.mono_ms);
                    self.drop_stale_timers();
                    self.timers
                        .set(self.now.mono_ms + CHECKPOINT_MS, Timer::Checkpoint);
                }
            }
        }
    }

    /// When the next turn is due at the latest, on the monotonic clock.
    pub fn next_deadline_ms(&self) -> Option<u64> {
        self.timers.next_due_ms()
    }

    /// Clients that come and go leave timers behind that may be due in weeks only.
    fn drop_stale_timers(&mut self) {
        if self.timers.len() < 4 * (self.conns.len() + self.sessions.len()) + TIMERS_KEPT {
            return;
        }
        let (conns, sessions) = (&self.conns, &self.sessions);
        self.timers.retain(|due_ms, timer| match timer {
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
        let now_ms = self.now.mono_ms;
        let Some(conn) = self.conns.get_mut(key) else {
            return;
        };
        if conn.silence_due_ms > now_ms {
            // The deadline has moved, and a timer was set for it.
            return;
        }
        match conn.phase {
            // It is the broker that has not looked at the credentials yet.
            Phase::New if conn.paused_on_auth => {
                conn.silence_due_ms = now_ms + self.settings.connect_timeout_ms;
                self.timers.set(conn.silence_due_ms, Timer::Silence(key));
            }
            Phase::New | Phase::Authenticating => self.close(key, Cause::Lost),
            Phase::Closed => {}
            Phase::Open => {
                let silence_ms = u64::from(conn.keep_alive_s) * 1500;
                if silence_ms == 0 {
                    return;
                }
                // The broker's own pauses are not the client's silence.
                let heard_ms = if conn.is_held_back() {
                    now_ms
                } else {
                    conn.last_read_ms
                };
                if heard_ms + silence_ms <= now_ms {
                    self.close(key, Cause::Reason(ReasonCode::KeepAliveTimeout));
                } else {
                    conn.silence_due_ms = heard_ms + silence_ms;
                    self.timers.set(conn.silence_due_ms, Timer::Silence(key));
                }
            }
        }
    }

    fn check_expiry(&mut self, key: SessionKey) {
        let now = self.now;
        let Some(session) = self.sessions.get_mut(key) else {
            return;
        };
        let Some(away) = &mut session.offline else {
            return;
        };
        if away.expiry_due_ms > now.mono_ms {
            // It went again since, and a timer was set for that.
            return;
        }
        let since_us = away.since_us;
        if session.expiry_s == NEVER_EXPIRES {
            return;
        }
        let away_ms = u64::try_from(now.wall_us - since_us).unwrap_or(0) / 1000;
        let left_ms = (u64::from(session.expiry_s) * 1000).saturating_sub(away_ms);
        // Both clocks are cut to whole milliseconds: a last one may be left on the one that the timer does not go by, and a
        // will that waited for this end has been published by now.
        if left_ms <= 1 {
            self.turn_metrics.sessions_expired += 1;
            self.end_session(key);
        } else {
            away.expiry_due_ms = now.mono_ms + left_ms;
            self.timers.set(away.expiry_due_ms, Timer::Expiry(key));
        }
    }
}
