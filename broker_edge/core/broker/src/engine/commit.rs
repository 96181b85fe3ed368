//! The end of a turn's protocol work: staged records go to the log, and records that became durable are acknowledged.

use headwater_log::{Offset, PartitionState, failpoint};
use headwater_mqtt::{PacketId, Property, ReasonCode, encode};

use crate::engine::effects::Cause;
use crate::engine::ingest::stage::{Outcome, Stage};
use crate::engine::observe::turn_metrics::Gauges;
use crate::engine::protocol::receive::PENDING_REPLIES_MAX;
use crate::engine::session::ack::{AckKind, PacketKind, Reply, Settled};
use crate::engine::session::connection::{Connection, Phase};

use super::ids::{CommitSeq, PartitionIndex, Ticket};
use super::{ConnKey, Engine};

/// The settled state of the log, as the acknowledgements of one connection see it.
struct SettledView<'a> {
    stages: &'a [Stage],
    state: Offset,
    commit_seq: CommitSeq,
}

impl Settled for SettledView<'_> {
    #[inline]
    fn tickets(&self, partition: PartitionIndex) -> Ticket {
        self.stages[partition.index()].settled()
    }
    #[inline]
    fn state(&self) -> Offset {
        self.state
    }
    #[inline]
    fn commit_seq(&self) -> CommitSeq {
        self.commit_seq
    }
}

/// Limit on the bytes appended by a turn that commits on this thread. With more, the writer's thread builds larger
/// batches while the loop reads on.
const INLINE_BYTES_MAX: usize = 32 << 10;
/// How long an accepted record may wait for disk space before its connection is closed.
const FULL_WAIT_MS: u64 = 5_000;

impl Engine {
    /// The whole commit of a turn. Afterwards the connections hold what is to be sent.
    pub fn commit(&mut self) {
        self.commit_live();
        self.commit_late();
    }

    /// Appends, settles and dispatches: the work that publishers and the live stream wait for.
    pub fn commit_live(&mut self) {
        self.append_all();
        let marks: Vec<Offset> = self
            .ingest
            .stages
            .iter()
            .map(|stage| self.mark_of(stage))
            .collect();
        // As in Mosquitto, a publisher that also subscribes gets its message before the PUBACK of QoS 1, and after the
        // PUBREC of QoS 2.
        if self.ingest.stages.iter().any(Stage::settles_qos2) {
            self.settle(&marks);
            self.dispatch();
        } else {
            self.dispatch();
            self.settle(&marks);
        }
    }

    /// Lets sessions that are behind catch up, and does the rest of a turn's work.
    pub fn commit_late(&mut self) {
        self.catch_up();
        // Receipts and wills staged above need not wait for another turn.
        self.append_all();
        self.release_receipted();
        self.write_state_commit();
        self.copy_held_payloads();
        self.wake_budget_waits();
        self.send_pending_sys();
        self.drain_some();
        self.observe.connection_gauges.publish(&self.env.metrics);
        let present = Gauges {
            connections: self.clients.conns.len(),
            sessions: self.clients.sessions.len(),
            session_bytes: self.quotas.session_bytes,
            subscriptions: self.routing.router.len(),
            shared_groups: self.groups.len(),
        };
        self.observe.turn_metrics.shared_rights_checks += self.groups.take_looks();
        self.observe
            .turn_metrics
            .publish(&self.env.metrics, present);
    }

    /// Number of publishers and bytes staged in all partitions.
    fn staged(&self) -> (usize, usize) {
        let stages = self.ingest.stages.iter().filter(|s| !s.records.is_empty());
        stages.fold((0, 0), |(publishers, bytes), stage| {
            let staged = stage.publishers().len();
            (publishers + staged, bytes + stage.records.bytes())
        })
    }

    fn is_small(&self, (publishers, bytes): (usize, usize)) -> bool {
        publishers <= self.env.settings.inline_publishers_max && bytes <= INLINE_BYTES_MAX
    }

    /// Whether the staged records of more than one publisher would be committed on this thread: then others may be
    /// about to publish as well.
    pub fn will_hold_up_several(&self) -> bool {
        let staged = self.staged();
        staged.0 > 1 && self.is_small(staged)
    }

    /// Appends the staged records to the log. A small turn commits on this thread, because waking another thread and
    /// being woken by it costs more than a fast sync. If several partitions have records, the last is committed here
    /// while the others' threads sync.
    fn append_all(&mut self) {
        let Some(last) = self
            .ingest
            .stages
            .iter()
            .rposition(|s| !s.records.is_empty())
        else {
            return;
        };
        let is_small = self.is_small(self.staged());
        for index in 0..=last {
            if !self.ingest.stages[index].records.is_empty() {
                let inline = is_small && index == last;
                self.append(PartitionIndex(index as u16), inline);
                self.drain();
            }
        }
    }

    /// Appends one partition's staged records to the log.
    pub(super) fn append(&mut self, partition: PartitionIndex, inline: bool) {
        let was_stalled = self.ingest.stages[partition.index()].stalled;
        let stamp = self.ingest.next_stamp;
        self.ingest.next_stamp += 1;
        let end = self.ingest.stages[partition.index()].next_ticket().0;
        self.ingest
            .latency
            .appended(partition.index(), end, self.observe.turn_at);
        match self.ingest.stages[partition.index()].append(inline, stamp) {
            Outcome::Nothing | Outcome::Stalled => return,
            Outcome::Accepted { first, base } => {
                let stage = &mut self.ingest.stages[partition.index()];
                if std::mem::take(&mut stage.refusing) {
                    tracing::info!(
                        partition = stage.partition.name(),
                        "publishes are accepted again"
                    );
                }
                self.locate(partition, first, base);
            }
            Outcome::Refused {
                first,
                conns,
                publishes,
                exactly_once,
                error,
            } => {
                let reason = match error {
                    headwater_log::AppendError::TooLarge { .. } => ReasonCode::PacketTooLarge,
                    headwater_log::AppendError::ReadOnly { .. } => ReasonCode::UnspecifiedError,
                    _ => ReasonCode::QuotaExceeded,
                };
                if !std::mem::replace(&mut self.ingest.stages[partition.index()].refusing, true) {
                    tracing::warn!(%error, "publishes are refused");
                }
                self.observe.turn_metrics.publishes_refused += publishes;
                self.observe
                    .turn_metrics
                    .refuse_several("puback", reason, publishes);
                self.free_refused(exactly_once);
                self.refuse(partition, first, reason, conns);
            }
        }
        if was_stalled {
            self.resume_publishers(partition);
        }
    }

    /// Tells publishers that asked for it the offsets of their records.
    fn locate(&mut self, partition: PartitionIndex, first: Ticket, base: Offset) {
        for conn in self.ingest.stages[partition.index()].last_publishers() {
            if let Some(conn) = self.clients.conn_mut(*conn)
                && conn.stream_ack
            {
                conn.acks.locate(partition, first, base);
            }
        }
    }

    fn refuse(
        &mut self,
        partition: PartitionIndex,
        first: Ticket,
        reason: ReasonCode,
        mut conns: Vec<ConnKey>,
    ) {
        self.unstage_receipts(partition, first);
        conns.sort_unstable();
        conns.dedup();
        for key in conns {
            let Some(conn) = self.clients.conn_mut(key) else {
                continue;
            };
            let can_refuse = conn.is_v5();
            conn.acks.refuse(partition, first, reason, can_refuse);
            self.send_ready(key);
        }
    }

    /// The partition accepts records again: handles what its publishers sent meanwhile.
    fn resume_publishers(&mut self, partition: PartitionIndex) {
        let paused: Vec<ConnKey> = self
            .clients
            .conns
            .iter()
            .filter(|(_, conn)| conn.paused_on == Some(partition))
            .map(|(key, _)| key)
            .collect();
        for key in paused {
            if let Some(conn) = self.clients.conn_mut(key) {
                conn.paused_on = None;
                conn.last_read_ms = self.env.now.mono_ms;
            }
            self.clients.resumed.push(key);
        }
    }

    /// Sends the acknowledgements that the marks allow.
    fn settle(&mut self, marks: &[Offset]) {
        let mut waiting = Vec::new();
        let mut stuck = Vec::new();
        for (index, (stage, mark)) in self.ingest.stages.iter_mut().zip(marks).enumerate() {
            if stage.waits() {
                if !stage.settle(*mark, &mut waiting) {
                    stuck.push(PartitionIndex(index as u16));
                }
                let durations = &self.env.metrics.detail.ack_latency;
                self.ingest
                    .latency
                    .settled(index, stage.settled().0, durations);
            }
        }
        for partition in stuck {
            self.abandon_if_stopped(partition);
        }
        if !waiting.is_empty() {
            failpoint!("before-ack");
        }
        for key in waiting {
            self.send_ready(key);
            self.drain();
        }
        let mark = self.state_mark();
        while let Some((offset, key)) = self.ingest.state_waits.front().copied()
            && offset <= mark
        {
            self.ingest.state_waits.pop_front();
            self.send_ready(key);
            self.drain();
        }
        self.settle_state_commits();
        self.abandon_if_state_stopped();
    }

    /// Closes the connections that wait for a partition that has stopped for good.
    fn abandon_if_stopped(&mut self, partition: PartitionIndex) {
        let stage = &mut self.ingest.stages[partition.index()];
        let PartitionState::Stopped(reason) = stage.partition.state() else {
            return;
        };
        tracing::error!(
            partition = stage.partition.name(),
            reason,
            "connections that wait for a stopped partition are closed"
        );
        let waiting = stage.abandon();
        self.free_abandoned(partition);
        for key in waiting {
            self.close_now(key, Cause::Reason(ReasonCode::UnspecifiedError));
        }
    }

    /// Closes the connections whose records have waited too long for a full disk. The records may still be written, so
    /// neither an acknowledgement nor a refusal would be true; a client that reconnects learns the truth.
    pub(super) fn close_waits_on_full(&mut self) {
        let now_ms = self.env.now.mono_ms;
        for index in 0..self.ingest.stages.len() {
            let stage = &mut self.ingest.stages[index];
            if stage.has_waited_on_full(now_ms, FULL_WAIT_MS) {
                let waiting = stage.release_waiting();
                if !waiting.is_empty() {
                    tracing::warn!(
                        partition = stage.partition.name(),
                        "connections that wait for disk space are closed"
                    );
                }
                for key in waiting {
                    self.close_now(key, Cause::Reason(ReasonCode::QuotaExceeded));
                }
            }
        }
    }

    /// Sends all ready entries at the front of a connection's FIFO.
    pub(super) fn send_ready(&mut self, key: ConnKey) {
        let state = self.state_mark();
        let commit_seq = self.store.state_commits.settled();
        loop {
            let Some(conn) = self.clients.conn_mut(key) else {
                return;
            };
            if conn.phase != Phase::Open {
                return;
            }
            let Some(reply) = conn.acks.pop_ready(&SettledView {
                stages: &self.ingest.stages,
                state,
                commit_seq,
            }) else {
                break;
            };
            if let Reply::Close(reason) = reply {
                return self.close(key, Cause::Reason(reason));
            }
            self.send_reply(key, reply);
        }
        let Some(conn) = self.clients.conn_mut(key) else {
            return;
        };
        conn.acks.shrink();
        if conn.paused_on_acks && conn.acks.len() < PENDING_REPLIES_MAX / 2 {
            conn.paused_on_acks = false;
            conn.last_read_ms = self.env.now.mono_ms;
            self.clients.resumed.push(key);
        }
    }

    fn send_reply(&mut self, key: ConnKey, reply: Reply) {
        self.observe.turn_metrics.packets_sent += 1;
        let written = self.env.settings.ack_written;
        let offset_text = match &reply {
            Reply::Located {
                partition,
                offset: Some(offset),
                ..
            } => {
                format!("{}:{offset}", self.env.partitions[partition.index()].name())
            }
            _ => String::new(),
        };
        let Some(conn) = self.clients.writer(key) else {
            return;
        };
        match reply {
            Reply::Acks {
                kind,
                packet_id,
                count,
                reason,
                ..
            } => {
                if kind == AckKind::Pubrec {
                    failpoint!("qos2-before-pubrec");
                }
                write_acks(conn, kind, packet_id, count, reason);
                self.observe.turn_metrics.publishes_acknowledged += u64::from(count);
                self.observe.turn_metrics.packets_sent += u64::from(count) - 1;
            }
            Reply::Ack {
                kind,
                packet_id,
                reason,
            } => write_acks(conn, kind, packet_id, 1, reason),
            Reply::Located {
                kind,
                packet_id,
                reason,
                ..
            } => {
                write_located_ack(conn, kind, packet_id, reason, &offset_text, written);
                self.observe.turn_metrics.publishes_acknowledged += 1;
            }
            Reply::Pubcomp { packet_id, .. } => {
                failpoint!("qos2-before-pubcomp");
                if let Some(id) = PacketId::new(packet_id) {
                    let (version, reason) = (conn.version, ReasonCode::Success);
                    encode::pubcomp(&mut conn.out, version, id, reason, &[]);
                }
            }
            Reply::Packet { kind, bytes, .. } => {
                conn.out.extend_from_slice(&bytes);
                match kind {
                    PacketKind::Connack => self.activate(key),
                    PacketKind::Suback => {
                        conn.subacks_pending = conn.subacks_pending.saturating_sub(1);
                        if let Some(session) = conn.session {
                            self.wake_session(session);
                        }
                    }
                    PacketKind::Other => {}
                }
            }
            Reply::Close(_) => {}
        }
    }
}

/// Acknowledgements of consecutive packet ids.
#[inline]
fn write_acks(
    conn: &mut Connection,
    kind: AckKind,
    packet_id: u16,
    count: u16,
    reason: ReasonCode,
) {
    let version = conn.version;
    conn.out.reserve(usize::from(count) * 5);
    for id in packet_id..=packet_id + (count - 1) {
        if let Some(id) = PacketId::new(id) {
            match kind {
                AckKind::Puback => encode::puback(&mut conn.out, version, id, reason, &[]),
                AckKind::Pubrec => encode::pubrec(&mut conn.out, version, id, reason, &[]),
            }
        }
    }
    settle_in_flight(conn, kind, count, reason);
}

/// A QoS 2 publish counts until its PUBCOMP, unless it was refused.
#[inline]
fn settle_in_flight(conn: &mut Connection, kind: AckKind, count: u16, reason: ReasonCode) {
    if kind == AckKind::Puback || reason.is_error() {
        conn.publishes_in_flight = conn.publishes_in_flight.saturating_sub(count);
    }
}

fn write_located_ack(
    conn: &mut Connection,
    kind: AckKind,
    packet_id: u16,
    reason: ReasonCode,
    offset_text: &str,
    written: bool,
) {
    settle_in_flight(conn, kind, 1, reason);
    let Some(id) = PacketId::new(packet_id) else {
        return;
    };
    let properties = [
        Property::UserProperty {
            key: "stream-offset",
            value: offset_text,
        },
        Property::UserProperty {
            key: "stream-durability",
            value: if written { "written" } else { "synced" },
        },
    ];
    let encode = match kind {
        AckKind::Puback => encode::puback,
        AckKind::Pubrec => encode::pubrec,
    };
    let start = conn.out.len();
    encode(&mut conn.out, conn.version, id, reason, &properties);
    if conn.out.len() - start > conn.packet_max as usize {
        conn.out.truncate(start);
        encode(&mut conn.out, conn.version, id, reason, &[]);
    }
}
