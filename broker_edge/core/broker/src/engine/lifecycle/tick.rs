//! Work that is due by time: keep-alive timeouts, wills, expired sessions, checkpoints.

use headwater_mqtt::ReasonCode;

use crate::engine::clients::timers::Timer;
use crate::engine::effects::Cause;
use crate::engine::observe::Count;
use crate::engine::qos2::Acknowledging;
use crate::engine::session::NEVER_EXPIRES;
use crate::engine::session::connection::Phase;
use crate::engine::session::pauses::Pause;
use crate::engine::session_store::checkpoint::Checkpointing;
use crate::engine::shared_groups::membership::Membership;
use crate::engine::{ConnKey, SessionKey};

use super::Lifecycle;

/// Cursors are checkpointed this often.
pub const CHECKPOINT_MS: u64 = 1000;

impl Lifecycle<'_> {
    /// Does what is due by this timer.
    pub fn due(&mut self, timer: Timer) {
        match timer {
            Timer::Silence(key) => self.check_silence(key),
            Timer::Will(key) => self.check_will(key),
            Timer::Expiry(key) => self.check_expiry(key),
            Timer::Credentials(key) => {
                self.clients.check_credentials(key, self.env, self.effects);
            }
            Timer::Pace(key) => {
                for pause in [Pause::MessageRate, Pause::ByteRate, Pause::Work] {
                    self.clients.resume(key, pause, self.env);
                }
            }
            // The catch-up of this turn checks which sessions may read.
            Timer::ScheduleReads => self.catch_up.look_again(),
            Timer::Cursors => lend!(self => Checkpointing).checkpoint_some(),
            Timer::Checkpoint => self.checkpoint(),
            Timer::Sys => unreachable!("`$SYS` is published before"),
        }
    }

    /// What is done once a second.
    fn checkpoint(&mut self) {
        lend!(self => Membership).take_from_silent();
        lend!(self => Checkpointing).begin_checkpoint();
        self.drain();
        self.store.forget_settled_wills(self.clients, self.env);
        lend!(self => Checkpointing).mark_received(false);
        let now_ms = self.env.now.mono_ms;
        self.clients.look_at_rates(now_ms);
        self.clients.end_slow_packets(self.env, self.effects);
        lend!(self => Acknowledging).close_waits_on_full();
        self.catch_up.read_again(self.clients, self.groups);
        self.quotas.forget_claims(now_ms);
        self.clients.drop_stale_timers();
        self.clients
            .set_timer(now_ms + CHECKPOINT_MS, Timer::Checkpoint);
    }

    fn check_silence(&mut self, key: ConnKey) {
        let now_ms = self.env.now.mono_ms;
        let Some(conn) = self.clients.conn_mut(key) else {
            return;
        };
        if conn.silence_due_ms > now_ms {
            // The deadline has moved, and a timer was set for it.
            return;
        }
        let due_ms = match conn.phase {
            // The broker has not checked the credentials yet.
            Phase::New if conn.pauses.has(Pause::Auth) => {
                now_ms + self.env.settings.mqtt.connect_timeout.as_ms()
            }
            Phase::New | Phase::Authenticating => return self.close(key, Cause::Lost),
            Phase::Closed => return,
            Phase::Open => {
                let silence_ms = u64::from(conn.keep_alive_s) * 1500;
                // Pauses caused by the broker do not count as silence of the client.
                let heard_ms = if conn.pauses.is_held_back() {
                    now_ms
                } else {
                    conn.last_read_ms
                };
                if silence_ms == 0 {
                    return;
                }
                if heard_ms + silence_ms <= now_ms {
                    return self.close(key, Cause::Reason(ReasonCode::KeepAliveTimeout));
                }
                heard_ms + silence_ms
            }
        };
        conn.silence_due_ms = due_ms;
        self.clients.set_timer(due_ms, Timer::Silence(key));
    }

    fn check_expiry(&mut self, key: SessionKey) {
        let now = self.env.now;
        let Some(session) = self.clients.session_mut(key) else {
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
            self.observe.count(Count::SessionsExpired, 1);
            self.observe.note_ended(session, "expired");
            self.end_session(key);
        } else {
            let due_ms = now.mono_ms + left_ms;
            away.expiry_due_ms = due_ms;
            self.clients.set_timer(due_ms, Timer::Expiry(key));
        }
    }
}
