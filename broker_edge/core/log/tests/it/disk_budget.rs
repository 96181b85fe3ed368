//! What the disk budget refuses, removes and keeps, and that it recovers by itself.

use std::path::Path;
use std::sync::Arc;

use crate::support::*;
use headwater_log::{
    AppendError, Cause, Class, ClassConfig, DiskAction, DiskConfig, DiskLevel, HeldLoss, Hold,
    Holders, Log, LogConfig, Offset, Partition, PartitionId, PartitionState, Seams, SyncMode,
};

const BUDGET: u64 = 6 << 20;

fn budgeted(dir: &Path, action: DiskAction) -> LogConfig {
    LogConfig {
        segment_bytes: 64 << 10,
        tail_bytes: 0,
        sync: SyncMode::Never,
        maintain_every: None,
        disk: DiskConfig {
            budget_bytes: Some(BUDGET),
            action,
            ..DiskConfig::default()
        },
        classes: vec![
            ClassConfig::new(Class::Internal),
            ClassConfig::new(Class::Control),
            ClassConfig::new(Class::Telemetry),
        ],
        ..LogConfig::new(dir)
    }
}

fn named<'a>(log: &'a Log, name: &str) -> &'a Partition {
    log.by_name(name).expect("there is such a partition")
}

/// Appends records of 1 KiB until `count` are appended or the partition refuses, with regular checks of the disk.
/// Returns how many were appended.
fn push(log: &Log, name: &str, count: usize) -> usize {
    let partition = named(log, name);
    for done in 0..count {
        if done % 8 == 0 {
            log.maintain();
        }
        match partition.append(records(1, &[vec![7; 1024]])) {
            Ok(range) => await_durable(partition, range.end),
            Err(AppendError::Full { .. }) => return done,
            Err(error) => panic!("{error}"),
        }
    }
    count
}

fn files_on_disk(dir: &Path) -> u64 {
    let mut bytes = 0;
    for folder in std::fs::read_dir(dir).expect("a folder") {
        let folder = folder.expect("an entry").path();
        if folder.is_dir() {
            for file in std::fs::read_dir(folder).expect("a folder") {
                bytes += file.expect("an entry").metadata().expect("a file").len();
            }
        }
    }
    bytes
}

fn assert_counts_what_is_on_disk(log: &Log, dir: &Path) {
    let (counted, on_disk) = (log.disk_use().used_bytes, files_on_disk(dir));
    assert!(
        on_disk.abs_diff(counted) < 4096,
        "{counted} counted, {on_disk} on disk"
    );
}

fn has_spare(dir: &Path, partition: &str) -> bool {
    let folder = std::fs::read_dir(dir.join(partition)).expect("a folder");
    let mut names = folder.map(|entry| entry.expect("an entry").file_name());
    names.any(|name| name.to_string_lossy().starts_with("spare-"))
}

/// Appends until the budget is used up.
fn use_up(partition: &Partition, bytes: usize, appends_max: usize) {
    let mut taken = 0;
    while let Ok(range) = partition.append(records(1, &[vec![7; bytes]])) {
        await_that("it to be durable or the budget used up", || {
            partition.high_watermark() >= range.end || partition.state() == PartitionState::Full
        });
        taken += 1;
        assert!(taken < appends_max, "never refused");
    }
}

#[test]
fn telemetry_is_refused_first_and_the_rest_goes_on_until_nothing_is_left() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = open_with(budgeted(dir.path(), DiskAction::Refuse), Seams::system());
    let taken = push(&log, "telemetry-0", 10_000);
    assert!(taken > 4000, "{taken} KiB of a budget of 6 MiB");
    assert_eq!(log.disk_use().level, DiskLevel::Acting);
    assert_eq!(named(&log, "telemetry-0").state(), PartitionState::Full);
    assert_eq!(named(&log, "control-0").state(), PartitionState::Running);

    let more = push(&log, "control-0", 10_000);
    assert!(more > 100, "{more}");
    assert_eq!(log.disk_use().level, DiskLevel::Full);
    assert_eq!(named(&log, "control-0").state(), PartitionState::Full);
    assert!(files_on_disk(dir.path()) <= BUDGET);

    assert_eq!(push(&log, "internal-0", 100), 100, "state is always saved");
    assert_eq!(
        named(&log, "telemetry-0").log_start(),
        Offset(0),
        "nothing was removed"
    );
    assert_eq!(read_all(named(&log, "telemetry-0")).len(), taken);
}

#[test]
fn appends_resume_by_themselves_once_there_is_room_and_not_before() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = open_with(budgeted(dir.path(), DiskAction::Refuse), Seams::system());
    let taken = push(&log, "telemetry-0", 10_000) as u64;
    let partition = named(&log, "telemetry-0");
    partition.advance_log_start(Offset(taken / 2));
    log.maintain();
    assert_eq!(partition.state(), PartitionState::Running);
    assert!(log.disk_use().level < DiskLevel::Acting);
    assert!(push(&log, "telemetry-0", 100) == 100);
}

#[test]
fn files_kept_aside_count_until_somebody_removes_them() {
    let dir = tempfile::tempdir().expect("a folder");
    let budgeted = || budgeted(dir.path(), DiskAction::Refuse);
    drop(open_with(budgeted(), Seams::system()));
    let folder = dir.path().join("telemetry-0");
    let kept = [
        "00000000000000000009.2.torn",
        "00000000000000000005.seg.misplaced",
        "00000000000000000001.2.damaged",
    ];
    for name in kept {
        std::fs::write(folder.join(name), vec![7; 2 << 20]).expect("written");
    }
    let log = open_with(budgeted(), Seams::system());
    let used_mib = || {
        log.maintain();
        log.disk_use().used_bytes >> 20
    };
    let with_all = used_mib();
    assert!(with_all >= 6, "{with_all} MiB");
    let damaged_bytes = named(&log, "telemetry-0").damaged_bytes();
    assert_eq!(damaged_bytes, 2 << 20, "the others are not damaged");
    for (name, left) in kept.iter().zip([4, 2, 0]) {
        std::fs::remove_file(folder.join(name)).expect("removed");
        assert_eq!(used_mib(), with_all - 6 + left, "without {name}");
    }
}

#[test]
fn the_level_counts_the_files_as_they_are_on_the_disk() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = open_with(budgeted(dir.path(), DiskAction::Refuse), Seams::system());
    push(&log, "telemetry-0", 700);
    log.maintain();
    assert_counts_what_is_on_disk(&log, dir.path());
    drop(log);
    let log = open_with(budgeted(dir.path(), DiskAction::Refuse), Seams::system());
    log.maintain();
    assert_counts_what_is_on_disk(&log, dir.path());
}

#[test]
fn trimming_removes_the_oldest_telemetry_and_nothing_else() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = open_with(budgeted(dir.path(), DiskAction::Trim), Seams::system());
    assert_eq!(push(&log, "control-0", 300), 300);
    assert_eq!(
        push(&log, "telemetry-0", 5_000),
        5_000,
        "it is never refused"
    );
    let telemetry = named(&log, "telemetry-0");
    let start = telemetry.log_start();
    assert!(start > Offset(500), "{start}");
    assert!(telemetry.size_bytes() > 4 << 20, "no more than needed");
    assert_eq!(named(&log, "control-0").log_start(), Offset(0));
    assert!(files_on_disk(dir.path()) <= BUDGET);
    let figures = telemetry.stats();
    let removed = figures.removed[Cause::Disk as usize];
    assert_eq!(removed.records, telemetry.log_start().0);
}

/// The internal partition needs its spare to save state; for every other one it only saves work.
#[test]
fn the_file_of_a_removed_segment_is_given_back_when_space_is_short_unless_state_needs_it() {
    for (name, is_kept) in [("internal-0", true), ("control-0", false)] {
        let dir = tempfile::tempdir().expect("a folder");
        let log = open_with(budgeted(dir.path(), DiskAction::Refuse), Seams::system());
        let partition = named(&log, name);
        for _ in 0..200 {
            append(partition, &[vec![7; 1024]]);
        }
        // The file of a removed segment becomes the spare.
        partition.advance_log_start(partition.high_watermark());
        assert!(has_spare(dir.path(), name), "{name}");
        log.maintain();
        assert!(has_spare(dir.path(), name), "{name}: there is room");
        push(&log, "telemetry-0", 10_000);
        assert_eq!(log.disk_use().level, DiskLevel::Acting, "{name}");
        assert_eq!(has_spare(dir.path(), name), is_kept, "{name}");
    }
}

/// Holds everything of every partition.
struct Everything;

impl Holders for Everything {
    fn holding(&self, _: PartitionId, _: Offset) -> Vec<Hold> {
        vec![Hold {
            holder: "g".to_owned(),
            next: Offset(0),
        }]
    }

    fn overridden(&self, _: &HeldLoss<'_>) {}
}

#[test]
fn trimming_takes_what_a_group_holds_only_where_the_log_would_be_full() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut config = budgeted(dir.path(), DiskAction::Trim);
    config.classes[2].honours_holds = true;
    let log = open_with(config, Seams::system());
    log.hold_with(&(Arc::new(Everything) as Arc<dyn Holders>));
    let telemetry = named(&log, "telemetry-0");
    while log.disk_use().level < DiskLevel::Acting {
        assert_eq!(push(&log, "telemetry-0", 1), 1);
    }
    log.maintain();
    assert_eq!(telemetry.log_start(), Offset(0), "held, and there is room");
    assert_eq!(
        push(&log, "telemetry-0", 1_000),
        1_000,
        "it is never refused"
    );
    assert!(telemetry.log_start() > Offset(0));
    assert!(telemetry.stats().removed[Cause::Disk as usize].held_records > 0);
    assert!(files_on_disk(dir.path()) <= BUDGET);
}

#[test]
fn trimming_waits_until_the_holders_can_be_asked() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut config = budgeted(dir.path(), DiskAction::Trim);
    config.removes_at_once = false;
    let log = open_with(config, Seams::system());
    let taken = push(&log, "telemetry-0", 10_000);
    let telemetry = named(&log, "telemetry-0");
    assert!(taken < 10_000 && telemetry.log_start() == Offset(0));
    log.hold_with(&(Arc::new(Everything) as Arc<dyn Holders>));
    log.maintain();
    assert!(telemetry.log_start() > Offset(0), "its class heeds nobody");
}

/// As a partition without retention: the log fills up and refuses, and keeps all of it.
#[test]
fn trimming_waits_for_the_next_hook_when_one_has_ended() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = open_with(budgeted(dir.path(), DiskAction::Trim), Seams::system());
    let telemetry = named(&log, "telemetry-0");
    drop(telemetry.before_delete(Arc::new(|_| true)));
    let taken = push(&log, "telemetry-0", 10_000);
    assert!(taken < 10_000 && telemetry.log_start() == Offset(0));
    assert_eq!(log.disk_use().level, DiskLevel::Full);
    assert_eq!(push(&log, "control-0", 1), 0, "other classes as well");
    assert_eq!(push(&log, "internal-0", 1), 1);
    let _next = telemetry.before_delete(Arc::new(|_| true));
    log.maintain();
    assert!(telemetry.log_start() > Offset(0));
    assert_eq!(push(&log, "telemetry-0", 1_000), 1_000);
}

#[test]
fn what_is_prepared_between_two_looks_at_the_disk_counts_at_once() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut config = budgeted(dir.path(), DiskAction::Refuse);
    config.sync = SyncMode::Always;
    let log = open_with(config, Seams::system());
    log.maintain();
    let partition = named(&log, "telemetry-0");
    use_up(partition, 16 << 10, 1000);
    assert!(files_on_disk(dir.path()) <= BUDGET);
}

#[test]
fn the_disk_is_looked_at_again_once_use_reaches_where_the_action_begins() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut config = budgeted(dir.path(), DiskAction::Refuse);
    config.disk.act_percent = 60;
    config.maintain_every = Some(std::time::Duration::from_secs(3600));
    let log = open_with(config, Seams::system());
    let telemetry = named(&log, "telemetry-0");
    // Slightly above: the space of a segment that has just ended counts until it is looked at.
    while log.disk_use().used_bytes < BUDGET * 63 / 100 {
        match telemetry.append(records(1, &[vec![7; 1024]])) {
            Ok(range) => await_durable(telemetry, range.end),
            Err(AppendError::Full { .. }) => break,
            Err(error) => panic!("{error}"),
        }
    }
    await_that("telemetry to be refused", || {
        telemetry.state() == PartitionState::Full
    });
    assert_eq!(log.disk_use().level, DiskLevel::Acting);
    let range = named(&log, "control-0").append(records(1, &[vec![7; 1024]]));
    await_durable(
        named(&log, "control-0"),
        range.expect("room is left for it").end,
    );
}

/// The file system may have more space: only the budget limits.
#[test]
fn a_segment_that_grows_takes_its_space_out_of_the_budget() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut config = budgeted(dir.path(), DiskAction::Refuse);
    config.sync = SyncMode::Always;
    config.segment_bytes = 64 << 20;
    config.disk.budget_bytes = Some(2 * BUDGET);
    config.classes = vec![ClassConfig::new(Class::Telemetry)];
    let log = open_with(config, Seams::system());
    log.maintain();
    let partition = named(&log, "telemetry-0");
    use_up(partition, 256 << 10, 100);
    let on_disk = files_on_disk(dir.path());
    assert!(on_disk <= 2 * BUDGET, "{on_disk} bytes");
    assert!(on_disk > BUDGET, "it has grown");
    assert_counts_what_is_on_disk(&log, dir.path());
}

#[test]
fn the_internal_partition_takes_new_segments_also_when_the_budget_is_used_up() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut config = budgeted(dir.path(), DiskAction::Refuse);
    config.sync = SyncMode::Always;
    let log = open_with(config, Seams::system());
    let telemetry = named(&log, "telemetry-0");
    use_up(telemetry, 16 << 10, 1000);
    let internal = named(&log, "internal-0");
    let (before, used_before) = (internal.file_bytes(), log.disk_use().used_bytes);
    for _ in 0..20 {
        let range = internal.append(records(1, &[vec![7; 16 << 10]]));
        let end = range.expect("state is always saved").end;
        await_that("it to be durable", || {
            assert_eq!(internal.state(), PartitionState::Running);
            internal.high_watermark() >= end
        });
    }
    let grown = internal.file_bytes() - before;
    assert!(grown > 200 << 10, "no spare: {grown}");
    let counted = log.disk_use().used_bytes - used_before;
    assert_eq!(counted, grown, "others are refused the earlier");
}
