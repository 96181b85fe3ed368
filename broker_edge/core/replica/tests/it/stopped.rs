//! A replica that has stopped, in a process that goes on.

use std::path::Path;

use headwater_cluster::marks::{Node, Starts};
use headwater_cluster::rules::Rules;
use headwater_log::{Class, ClassConfig, LogConfig, LogId, Secret};
use headwater_replica::{Replica, Setup};

use crate::sim::SimFiles;

/// Its timers are over with it: a thread that waited for them would not sleep any more.
#[test]
fn nothing_is_due_of_a_replica_that_has_stopped() {
    let setup = Setup {
        log: LogConfig {
            maintain_every: None,
            has_writers: false,
            classes: vec![ClassConfig::new(Class::Internal)],
            ..LogConfig::new(Path::new("/data"))
        },
        log_id: LogId::from_bytes([7; 16]),
        secret: Secret::from_bytes([9; 8]),
        node: Node::new("a").unwrap(),
        min_in_sync: 2,
        credit_bytes: 100_000,
        starts_known: Starts(0),
        begin_anew_at: Vec::new(),
        rules: Rules::default(),
    };
    let seams = SimFiles::new(1).seams();
    let (mut replica, _) = Replica::start(setup, &seams, 1_000).unwrap();
    assert!(replica.deadline_ms(1_000).is_some());
    replica.stop(1_000);
    assert!(replica.is_over());
    replica.tick(100_000);
    assert_eq!(replica.deadline_ms(100_000), None);
}
