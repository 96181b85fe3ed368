//! A stage alone over a real partition: when its appends are settled, which connections are told, and what happens to
//! records that a full queue, a full disk or a closed log does not accept.

use std::time::Instant;

use headwater_log::{AppendError, ClassConfig, PartitionState, RecordMeta, Records};

use crate::engine::ids::{Commit, CommitSeq};
use crate::engine::ingest::stage::{Outcome, Refused, Stage, Staged};
use crate::metrics::Durations;

use super::*;

const QUEUE_BYTES: usize = 64 << 10;
/// Some of these need more space than the partition has preallocated.
const LARGE: usize = 150 << 10;
/// Records appended by others before: its offsets differ from its own.
const OTHERS: u64 = 10;
const LIMIT_MS: u64 = 5_000;

struct Bench {
    stage: Stage,
    /// The number of the newest append.
    last: u64,
    log: Log,
    gate: Arc<Gate>,
    moved: Receiver<()>,
    _watcher: Watcher,
    _dir: tempfile::TempDir,
}

fn accepted(outcome: Option<Outcome>) -> (u64, u64) {
    match outcome {
        Some(Outcome {
            commit,
            result: Ok(base),
            ..
        }) => (commit.seq.0, base.0),
        outcome => panic!("{outcome:?}"),
    }
}

fn refused(outcome: Option<Outcome>) -> (Commit, Refused) {
    match outcome {
        Some(Outcome {
            commit,
            result: Err(refused),
            ..
        }) => (commit, *refused),
        outcome => panic!("{outcome:?}"),
    }
}

/// A key; no connection needs to exist.
fn conn(number: u64) -> ConnKey {
    Key::from_bits(number)
}

impl Bench {
    fn open() -> Self {
        let dir = dir();
        let gate = Arc::new(Gate::default());
        let seams = Seams {
            files: Arc::new(GatedFiles {
                telemetry: Arc::clone(&gate),
                internal: Arc::default(),
            }),
            ..Seams::system()
        };
        let config = LogConfig {
            queue_bytes: QUEUE_BYTES,
            // A spare segment would provide room on a full disk.
            maintain_every: None,
            classes: vec![ClassConfig::new(Class::Telemetry)],
            ..LogConfig::new(dir.path())
        };
        let (log, _) = Log::open(config, seams).expect("a log opens in its own folder");
        let partition = log.partitions()[0].clone();
        let (tell, moved) = channel();
        // The test may have ended.
        let watcher: Watcher = Arc::new(move || {
            let _ = tell.send(());
        });
        partition.watch(&watcher);
        let bench = Self {
            stage: Stage::new(partition, CommitSeq(1), u64::MAX),
            last: 1,
            log,
            gate,
            moved,
            _watcher: watcher,
            _dir: dir,
        };
        bench.append_of_others(OTHERS, 1).expect("there is room");
        bench.wait_until(|partition| partition.high_watermark() == Offset(OTHERS));
        bench
    }

    /// Appends records of another client to the partition.
    fn append_of_others(&self, count: u64, bytes: usize) -> Result<(), AppendError> {
        let mut records = Records::new();
        let topic = records.topic("put", 0..3).expect("room");
        let client = records.client("flight").expect("room");
        for _ in 0..count {
            let meta = RecordMeta::new(topic, client, 1);
            records.push(meta, &vec![7; bytes]).expect("room");
        }
        self.stage.partition.append(records).map(drop)
    }

    fn wait_until(&self, is_so: impl Fn(&headwater_log::Partition) -> bool) {
        while !is_so(&self.stage.partition) {
            self.moved.recv_timeout(DEADLINE).expect("the log moves");
        }
    }

    /// Stages a record; without a connection it belongs to the broker.
    fn put(&mut self, from: Option<ConnKey>, bytes: usize) -> Staged {
        let topic = self.stage.records.topic("t", 0..1).expect("room");
        let client = self.stage.records.client("c").expect("room");
        let meta = RecordMeta::new(topic, client, 1);
        let payload = vec![7; bytes];
        self.stage.records.push(meta, &payload).expect("room");
        self.stage.note(from)
    }

    /// Returns the number of its append and its place there.
    fn put_of(&mut self, number: u64) -> (u64, u32) {
        let Staged { after, index } = self.put(Some(conn(number)), 1);
        assert_eq!(
            after.partition,
            PartitionIndex::of(self.stage.partition.id())
        );
        (after.seq.0, index)
    }

    fn try_append(&mut self, inline: bool) -> Option<Outcome> {
        self.last += 1;
        self.stage
            .append(inline, CommitSeq(self.last), Instant::now())
    }

    /// Returns the number of the append and its first offset.
    fn append(&mut self) -> (u64, u64) {
        accepted(self.try_append(false))
    }

    /// Settles; returns the connections to tell, or `None` if there was nothing to settle.
    fn settle(&mut self, mark: u64) -> Option<Vec<ConnKey>> {
        let mut waiting = Vec::new();
        let commits = &mut self.stage.commits;
        let is_settleable = commits.is_settleable(Offset(mark));
        let settled = commits.settle(Offset(mark), &mut waiting, &Durations::default());
        assert_eq!(settled, is_settleable);
        assert!(settled || waiting.is_empty(), "{waiting:?}");
        settled.then_some(waiting)
    }

    fn settled(&self) -> u64 {
        self.stage.commits.settled().0
    }

    fn watch(&mut self, (seq, _): (u64, u32), number: u64) {
        self.stage.commits.watch(CommitSeq(seq), conn(number));
    }

    /// Settles everything durable.
    fn settle_all(&mut self) {
        let mark = self.stage.partition.high_watermark();
        self.settle(mark.0);
    }

    /// Fills the disk, with a record that waits for space.
    fn fill_disk(&mut self) {
        self.gate.is_full.store(true, Ordering::Relaxed);
        while self.stage.partition.state() != PartitionState::Full {
            self.settle_all();
            self.put(Some(conn(1)), LARGE);
            self.append();
            self.wait_until(|partition| {
                partition.state() == PartitionState::Full
                    || partition.high_watermark() == partition.next_offset()
            });
        }
    }

    fn free_disk(&self) {
        self.gate.is_full.store(false, Ordering::Relaxed);
        self.wait_until(|partition| partition.state() == PartitionState::Running);
    }

    fn has_waited_at(&mut self, now_ms: u64) -> bool {
        self.stage.has_waited_on_full(now_ms, LIMIT_MS)
    }

    fn newest_waiting(&self) -> &[ConnKey] {
        let commits = &self.stage.commits;
        let newest = commits.newest();
        newest.map_or(&[], |(seq, _)| commits.waiting_for(seq))
    }
}

#[test]
fn records_get_the_number_of_their_append_which_is_settled_once_the_mark_is_at_its_end() {
    let mut bench = Bench::open();
    for (number, index) in [1, 1, 2].into_iter().zip(0..) {
        assert_eq!(bench.put_of(number), (1, index));
    }
    assert!(!bench.stage.commits.waits(), "nothing was appended");
    assert_eq!(bench.append(), (1, OTHERS));
    assert_eq!(bench.stage.stamp(), 2);
    assert_eq!(bench.put_of(3), (2, 0));
    assert_eq!(bench.append(), (2, OTHERS + 3));
    bench.put_of(4);
    for early in [0, OTHERS, OTHERS + 2] {
        assert_eq!(bench.settle(early), None, "{early}");
        assert_eq!(bench.settled(), 0, "{early}");
    }
    assert_eq!(bench.settle(OTHERS + 3), Some(vec![conn(1), conn(2)]));
    assert_eq!(bench.settled(), 1);
    assert!(bench.stage.commits.waits());
    // Staged records are not settled by others in the log.
    assert_eq!(bench.settle(OTHERS + 9), Some(vec![conn(3)]));
    assert_eq!(bench.settled(), 2);
    assert!(!bench.stage.commits.waits());
    assert_eq!(bench.settle(OTHERS + 9), None);
}

#[test]
fn several_appends_below_the_mark_are_settled_at_once() {
    let mut bench = Bench::open();
    for number in 1..4 {
        bench.put_of(number);
        bench.append();
    }
    let all = vec![conn(1), conn(2), conn(3)];
    assert_eq!(bench.settle(OTHERS + 3), Some(all));
    assert_eq!(bench.settled(), 3);
}

#[test]
fn a_refused_append_is_never_settled_and_holds_up_no_other() {
    let mut bench = Bench::open();
    let session = SessionKey::from_bits(9);
    for (number, packet_id) in [(1, 11), (2, 12), (3, 13)] {
        bench.put_of(number);
        bench.stage.exactly_once.push((session, packet_id));
        bench.stage.receipts.push(session);
        if number < 3 {
            bench.append();
        }
    }
    bench.stage.stalled = true;
    bench.log.shutdown();
    let (commit, gone) = refused(bench.try_append(false));
    assert_eq!((commit.seq, gone.conns), (CommitSeq(3), vec![conn(3)]));
    assert_eq!(gone.publishes, 1);
    assert_eq!(
        gone.exactly_once,
        [(session, 13)],
        "only those of the refused"
    );
    assert_eq!(gone.receipts, [session], "only those of the refused");
    assert!(!bench.stage.stalled);
    assert_eq!(bench.stage.stamp(), 4);
    assert!(bench.stage.commits.waiting().is_empty() && bench.stage.exactly_once.is_empty());
    assert!(bench.stage.records.is_empty());
    assert_eq!(bench.settled(), 0);
    assert_eq!(bench.settle(OTHERS + 1), Some(vec![conn(1)]));
    assert_eq!(bench.settled(), 1, "the second still waits");
    assert_eq!(bench.settle(OTHERS + 2), Some(vec![conn(2)]));
    assert_eq!(bench.settled(), 2, "not what was refused behind it");
    // Nothing waits, and a refusal settles nothing.
    assert_eq!(bench.put_of(4), (4, 0));
    let (commit, _) = refused(bench.try_append(true));
    assert_eq!(commit.seq, CommitSeq(4));
    assert_eq!(
        commit.partition,
        PartitionIndex::of(bench.stage.partition.id())
    );
    assert_eq!(bench.settled(), 2);
    assert!(bench.try_append(true).is_none());
    assert_eq!(bench.stage.stamp(), 5);
}

#[test]
fn a_full_queue_leaves_the_records_staged_until_there_is_room() {
    for inline in [true, false] {
        let mut bench = Bench::open();
        bench.gate.set(Sync::Hold);
        while bench.append_of_others(1, QUEUE_BYTES / 4).is_ok() {}
        let index = bench.stage.client(conn(1), "c").expect("room");
        bench.put(Some(conn(1)), QUEUE_BYTES / 2);
        let stalled = bench.try_append(inline);
        assert!(stalled.is_none(), "{stalled:?}");
        assert!(bench.stage.stalled);
        assert_eq!(bench.stage.records.len(), 1);
        assert_eq!(bench.stage.commits.waiting(), [conn(1)]);
        assert_eq!(bench.stage.stamp(), 1, "indexes into them stay good");
        assert_eq!(bench.stage.client(conn(1), "c"), Ok(index));
        assert!(!bench.stage.commits.waits());
        bench.gate.set(Sync::Pass);
        bench.wait_until(|partition| partition.queued_bytes() == 0);
        let next = bench.stage.partition.next_offset();
        assert_eq!(accepted(bench.try_append(inline)), (1, next.0));
        assert!(!bench.stage.stalled);
        assert_eq!(bench.stage.stamp(), bench.last);
        assert_eq!(bench.settle(next.0 + 1), Some(vec![conn(1)]));
    }
}

#[test]
fn a_client_id_is_in_the_records_of_an_append_once() {
    let mut bench = Bench::open();
    let one = bench.stage.client(conn(1), "one");
    assert_eq!(bench.stage.client(conn(1), "one"), one);
    let two = bench.stage.client(conn(2), "two");
    assert_ne!(one, two);
    bench.put_of(1);
    bench.append();
    assert_eq!(bench.stage.client(conn(2), "two"), one, "a new table");
    bench.put_of(2);
    bench.log.shutdown();
    bench.try_append(false);
    assert_eq!(bench.stage.client(conn(3), "three"), one, "a new table");
    assert_eq!(bench.stage.client(conn(2), "two"), two, "a new table");
}

#[test]
fn who_watches_an_append_is_told_with_it() {
    let mut bench = Bench::open();
    let settled = bench.put_of(1);
    bench.append();
    bench.settle(OTHERS + 1);
    bench.put_of(2);
    bench.append();
    let appended = bench.put_of(3);
    bench.append();
    let staged = bench.put_of(4);
    bench.watch(staged, 40);
    bench.watch(appended, 30);
    assert_eq!(bench.stage.commits.waiting(), [conn(4), conn(40)]);
    assert_eq!(bench.newest_waiting(), [conn(3), conn(30)]);
    assert_eq!(bench.settle(OTHERS + 2), Some(vec![conn(2)]));
    assert_eq!(bench.settle(OTHERS + 3), Some(vec![conn(3), conn(30)]));
    // Its acknowledgement may be sent already; nobody else is told.
    bench.watch(settled, 10);
    assert_eq!(bench.stage.commits.waiting(), [conn(4), conn(40)]);
    bench.append();
    assert_eq!(bench.settle(OTHERS + 4), Some(vec![conn(4), conn(40)]));
}

#[test]
fn publishers_are_those_of_the_records_that_wait_to_be_appended() {
    let mut bench = Bench::open();
    assert!(bench.newest_waiting().is_empty());
    for from in [Some(1), Some(1), None, Some(1), Some(2), Some(1)] {
        bench.put(from.map(conn), 1);
    }
    let all = [conn(1), conn(2), conn(1)];
    assert_eq!(bench.stage.commits.waiting(), all);
    bench.append();
    assert!(bench.stage.commits.waiting().is_empty());
    assert_eq!(bench.newest_waiting(), all);
    bench.put_of(3);
    assert_eq!(bench.newest_waiting(), all);
    let (first, _) = bench.stage.commits.newest().expect("it waits");
    bench.append();
    assert_eq!(bench.newest_waiting(), [conn(3)]);
    assert_eq!(
        bench.stage.commits.waiting_for(first),
        all,
        "not the newest"
    );
}

#[test]
fn everything_below_the_oldest_append_that_waits_is_settled() {
    let mut bench = Bench::open();
    assert_eq!(bench.stage.commits.settled_below(Offset(3)), Offset(3));
    for number in 1..3 {
        bench.put_of(number);
        bench.append();
    }
    let below = |bench: &Bench, mark| bench.stage.commits.settled_below(Offset(mark)).0;
    for (mark, settled) in [(3, 3), (OTHERS, OTHERS), (OTHERS + 2, OTHERS)] {
        assert_eq!(below(&bench, mark), settled, "{mark}");
    }
    bench.settle(OTHERS + 1);
    assert_eq!(below(&bench, OTHERS + 2), OTHERS + 1);
    bench.settle(OTHERS + 2);
    assert_eq!(below(&bench, OTHERS + 7), OTHERS + 7);
}

#[test]
fn qos_2_is_settled_with_the_append_that_it_was_in() {
    let mut bench = Bench::open();
    for is_qos2 in [false, true, false] {
        bench.put_of(1);
        if is_qos2 {
            let held = (SessionKey::from_bits(9), 1);
            bench.stage.exactly_once.push(held);
        }
        assert!(!bench.stage.commits.settles_qos2());
        bench.append();
        assert!(bench.stage.exactly_once.is_empty());
    }
    bench.settle(OTHERS + 1);
    assert!(bench.stage.commits.settles_qos2());
    bench.settle(OTHERS + 2);
    assert!(!bench.stage.commits.settles_qos2());
}

#[test]
fn a_full_disk_counts_from_when_records_were_first_seen_to_wait_for_it() {
    let mut bench = Bench::open();
    bench.put_of(1);
    bench.append();
    for now_ms in [0, 2 * LIMIT_MS] {
        assert!(!bench.has_waited_at(now_ms), "the disk has room");
    }
    bench.wait_until(|partition| partition.high_watermark() == Offset(OTHERS + 1));
    bench.fill_disk();
    let mut idle = Stage::new(bench.stage.partition.clone(), CommitSeq(2), u64::MAX);
    for now_ms in [0, 2 * LIMIT_MS] {
        let has_waited = idle.has_waited_on_full(now_ms, LIMIT_MS);
        assert!(!has_waited, "nobody waits");
    }
    let since_ms = 20_000;
    assert!(!bench.has_waited_at(since_ms));
    assert!(!bench.has_waited_at(since_ms + LIMIT_MS - 1));
    assert!(bench.has_waited_at(since_ms + LIMIT_MS));
    // Connections that were released are not released again at once.
    bench.stage.release_waiting();
    let since_ms = 30_000;
    assert!(!bench.has_waited_at(since_ms));
    assert!(bench.has_waited_at(since_ms + LIMIT_MS));
    // A second full disk is counted separately from the first.
    bench.free_disk();
    assert!(!bench.has_waited_at(since_ms + LIMIT_MS));
    bench.fill_disk();
    let since_ms = 40_000;
    assert!(!bench.has_waited_at(since_ms));
    assert!(bench.has_waited_at(since_ms + LIMIT_MS));
    bench.free_disk();
}

#[test]
fn connections_are_let_go_with_their_records_to_be_settled_and_abandoned_without() {
    for abandons in [false, true] {
        let mut bench = Bench::open();
        for number in 1..4 {
            bench.put_of(number);
            if number < 3 {
                bench.append();
            }
        }
        let mut waiting = if abandons {
            bench.stage.commits.abandon()
        } else {
            bench.stage.release_waiting()
        };
        waiting.sort_unstable();
        assert_eq!(waiting, [conn(1), conn(2), conn(3)]);
        assert_eq!(bench.stage.commits.waits(), !abandons);
        let settled = (!abandons).then(Vec::new);
        assert_eq!(bench.settle(OTHERS + 2), settled, "nobody is left to tell");
        assert_eq!(bench.settled(), if abandons { 0 } else { 2 });
        // The staged records remain, without an owner.
        assert_eq!(bench.append(), (3, OTHERS + 2));
        assert_eq!(bench.settle(OTHERS + 3), Some(Vec::new()));
        assert_eq!(bench.settled(), 3);
    }
}

#[test]
fn on_a_full_disk_nobody_waits_for_room_in_the_queue() {
    let mut bench = Bench::open();
    let partition = bench.stage.partition.clone();
    bench.stage = Stage::new(partition, CommitSeq(1), 1);
    bench.fill_disk();
    bench.stage.wait_for_room(conn(5));
    assert!(bench.stage.has_room_for_waiting());
    let resumed: Vec<ConnKey> = bench.stage.take_waiting().collect();
    assert_eq!(resumed, [conn(5)]);
    // The log refuses what is appended meanwhile.
    assert!((0..100).all(|_| bench.stage.admits(conn(6))));
    bench.free_disk();
}
