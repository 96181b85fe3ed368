//! What a log tells of its segments and of the files that it keeps aside.

use std::path::Path;

use crate::support::sim::SimFiles;
use crate::support::*;
use headwater_log::{Class, ClassConfig, IndexPlace, KeptFile, LogConfig, Offset};

fn settings() -> LogConfig {
    with_class(ClassConfig::new(Class::Telemetry), 64 << 10)
}

#[test]
fn segments_are_told_in_order_with_their_bounds_times_and_indexes() {
    let files = SimFiles::new(1);
    let clock = HandClock::at(1_800_000_000_000_000);
    let seams = headwater_log::Seams {
        clock: clock.clone(),
        ..files.seams()
    };
    let log = open_with(settings(), seams);
    let partition = telemetry(&log);
    let [empty] = partition.segments(Offset(0), 10).try_into().expect("one");
    assert_eq!((empty.base, empty.next), (Offset(0), Offset(0)));
    assert_eq!((empty.first_time_us, empty.last_time_us), (None, None));
    for n in 0..6_u8 {
        append(partition, &[vec![n; 25 << 10]]);
    }
    let all = partition.segments(Offset(0), 10);
    let bounds: Vec<_> = all.iter().map(|one| (one.base.0, one.next.0)).collect();
    assert_eq!(bounds, [(0, 2), (2, 4), (4, 6)]);
    assert_eq!(
        all.iter().map(|one| one.bytes).sum::<u64>(),
        partition.size_bytes()
    );
    let first = partition.oldest_time_us();
    assert_eq!(all[0].first_time_us, first);
    assert!(all[0].last_time_us >= first && all[2].first_time_us >= all[0].last_time_us);
    let places: Vec<_> = all.iter().map(|one| (one.is_sealed, one.index)).collect();
    let unsaved = (true, IndexPlace::Unsaved);
    assert_eq!(places, [unsaved, unsaved, (false, IndexPlace::Growing)]);
    log.maintain();
    let all = partition.segments(Offset(0), 10);
    assert_eq!(all[1].index, IndexPlace::Saved);
    let bases = |from, max| -> Vec<u64> {
        let found = partition.segments(Offset(from), max);
        found.iter().map(|one| one.base.0).collect()
    };
    assert_eq!(bases(0, 2), [0, 2]);
    assert_eq!(bases(1, 2), [2, 4]);
    assert_eq!(bases(2, 9), [2, 4]);
    assert_eq!(bases(5, 9), [0; 0]);
    assert_eq!(bases(0, 0), [0; 0]);
}

#[test]
fn files_that_are_kept_aside_are_told_with_their_sizes_and_no_others() {
    let files = SimFiles::new(1);
    let log = open_with(settings(), files.seams());
    append(telemetry(&log), &["kept"]);
    assert_eq!(telemetry(&log).kept_files(), []);
    for (name, bytes) in [("7.1.torn", 4), ("8.1.damaged", 9), ("note.txt", 3)] {
        let path = format!("/data/telemetry-0/{name}");
        files.put(Path::new(&path), &vec![1; bytes]);
    }
    let mut kept = telemetry(&log).kept_files();
    kept.sort_by_key(|file| file.bytes);
    let expected = [("7.1.torn", 4), ("8.1.damaged", 9)].map(|(name, bytes)| KeptFile {
        name: name.to_owned(),
        bytes,
    });
    assert_eq!(kept, expected);
}
