use headwater_cluster::marks::{Epoch, FollowNumber, Offset, Stamp, Starts};
use headwater_log::{
    Class, ClassConfig, Epoch as LogEpoch, Log, LogConfig, LogId, Partition, RecordMeta, Records,
    ReplicaConfig, Seams,
};

use super::{Stream, TELL_MS};

/// A leader's log of one partition, which is written by hand, and the stream of a follower that has nothing yet.
struct Rig {
    _dir: tempfile::TempDir,
    log: Log,
    stream: Stream,
}

impl Rig {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let config = LogConfig {
            expected_id: Some(LogId::from_bytes([7; 16])),
            replica: Some(ReplicaConfig::default()),
            maintain_every: None,
            has_writers: false,
            classes: vec![ClassConfig::new(Class::Telemetry)],
            ..LogConfig::new(dir.path())
        };
        let (log, _) = Log::open(config, Seams::system()).expect("a log");
        log.partitions()[0].lead(LogEpoch(1)).expect("it leads");
        let stamp = Stamp {
            epoch: Epoch(1),
            starts: Starts(1),
            follow: FollowNumber(1),
        };
        Self {
            _dir: dir,
            log,
            stream: Stream::new(stamp, vec![Offset(0)], 1 << 20),
        }
    }

    fn partition(&self) -> &Partition {
        &self.log.partitions()[0]
    }

    /// Writes a batch of one record, and gives it to the follower.
    fn send_one(&mut self, now_ms: u64) {
        let mut records = Records::new();
        let topic = records
            .topic("devices/d1/telemetry", 8..10)
            .expect("room for a topic");
        let client = records.client("d1").expect("room for a client");
        let meta = RecordMeta::new(topic, client, 1);
        records.push(meta, b"20.5").expect("there is room");
        self.partition().append(records).expect("it leads");
        assert!(self.partition().work());
        let (sent, told) = self.next(now_ms).expect("a batch");
        assert!(sent > 0);
        self.stream.told[0] = told;
    }

    fn commit(&self) {
        self.partition().commit_to(self.partition().synced());
    }

    /// The bytes of the next chunk, and the high watermark that goes with it.
    fn next(&mut self, now_ms: u64) -> Option<(usize, Offset)> {
        self.stream.tick(now_ms);
        self.stream.fill(self.log.partitions()).expect("it reads");
        let (_, _, bytes) = self.stream.chunk(self.log.partitions(), now_ms)?;
        let told = Offset(self.partition().high_watermark().0);
        Some((bytes.len(), told))
    }
}

#[test]
fn a_commit_waits_a_moment_for_a_batch_that_tells_of_it() {
    let mut rig = Rig::new();
    rig.send_one(1_000);
    assert_eq!(rig.stream.deadline_ms(), None);
    rig.commit();
    assert_eq!(rig.next(1_001), None);
    assert_eq!(rig.stream.deadline_ms(), Some(1_001 + TELL_MS));
    // The next batch tells of the commit.
    rig.send_one(1_002);
    assert_eq!(rig.next(1_002), None);
    assert_eq!(rig.stream.deadline_ms(), None);
}

#[test]
fn a_commit_behind_the_last_batch_is_told_by_itself_and_once() {
    let mut rig = Rig::new();
    rig.send_one(1_000);
    rig.commit();
    assert_eq!(rig.next(1_000), None);
    assert_eq!(rig.next(1_000 + TELL_MS - 1), None);
    // Also when the socket took nothing for a while.
    rig.stream.tick(1_000 + TELL_MS);
    assert_eq!(
        rig.stream.deadline_ms(),
        None,
        "it is due, and waits for the socket"
    );
    let told = rig.next(2_000);
    assert_eq!(told, Some((0, Offset(1))));
    rig.stream.told[0] = Offset(1);
    assert_eq!(rig.next(2_001), None);
    assert_eq!(rig.stream.deadline_ms(), None);
}
