//! What a replica notes of what is committed, while its disk is full or fails.

use std::path::Path;
use std::time::Duration;

use headwater_cluster::clocked::HINTS_MS;
use headwater_cluster::marks::{Node, Starts};
use headwater_cluster::rules::Rules;
use headwater_log::{Class, ClassConfig, LogConfig, LogId, Secret, SyncMode};
use headwater_replica::{Replica, Setup};

use crate::sim::SimFiles;

fn started(files: &SimFiles) -> Replica {
    let log = LogConfig {
        sync: SyncMode::Interval(Duration::from_millis(20)),
        segment_bytes: 16 << 10,
        maintain_every: None,
        has_writers: false,
        classes: vec![ClassConfig::new(Class::Internal)],
        ..LogConfig::new(Path::new("/data"))
    };
    let setup = Setup {
        log,
        log_id: LogId::from_bytes([7; 16]),
        secret: Secret::from_bytes([9; 8]),
        node: Node::new("n1").unwrap(),
        min_in_sync: 2,
        credit_bytes: 1 << 20,
        starts_known: Starts(0),
        begin_anew_at: Vec::new(),
        rules: Rules::default(),
    };
    let (replica, _) = Replica::start(setup, &files.seams(), 0).unwrap();
    replica
}

#[test]
fn a_full_disk_delays_the_note_of_what_is_committed_and_stops_nobody() {
    let files = SimFiles::new(1);
    let mut replica = started(&files);
    files.set_free(Some(0));
    replica.tick(HINTS_MS);
    assert!(!replica.is_over());
    files.set_free(None);
    replica.tick(2 * HINTS_MS);
    assert!(!replica.is_over());
}

#[test]
fn a_disk_whose_syncs_fail_stops_the_replica_that_notes() {
    let files = SimFiles::new(1);
    let mut replica = started(&files);
    files.fail_syncs(true);
    replica.tick(HINTS_MS);
    assert!(replica.is_over());
}
