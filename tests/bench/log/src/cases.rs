//! The cases: what each round does, with whom, and how long. Rounds are interleaved, so that a slow moment hits everybody.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;

use headwater_log::{Offset, SyncMode, Watcher};

use crate::measure::{Cost, measure};
use crate::subject::{Headwater, Payloads, Plain, RECORD_BYTES, Rumqttlog, Segments, Subject};

/// The costs of one subject, one a round.
pub struct Row {
    pub name: &'static str,
    pub is_peer: bool,
    pub costs: Vec<Cost>,
}

pub struct Case {
    pub title: String,
    /// What the goal says, for the reader.
    pub goal: &'static str,
    pub rows: Vec<Row>,
}

/// What 64 records of 1 KiB take as a batch of Headwater's.
const BATCH_BYTES: usize = 64 * (RECORD_BYTES + 20) + 64 + 40;

/// Sizes of a run.
#[derive(Clone, Copy)]
pub struct Scale {
    pub rounds: usize,
    pub records: u64,
    pub reads: u64,
    pub syncs: u64,
    /// What the names of the subjects that run begin with.
    pub row: &'static str,
}

/// A round of one subject in a folder of its own.
type Round<'a> = Box<dyn FnMut(&Path) -> Cost + 'a>;

/// Runs all rounds of a case, with the subjects in turn; the first round warms up and is not counted.
fn run(
    title: String,
    goal: &'static str,
    root: &Path,
    scale: Scale,
    mut subjects: Vec<(&'static str, bool, Round<'_>)>,
) -> Case {
    subjects.retain(|(name, _, _)| name.starts_with(scale.row));
    let row = |(name, is_peer, _): &(&'static str, bool, Round<'_>)| Row {
        name,
        is_peer: *is_peer,
        costs: Vec::new(),
    };
    let mut rows: Vec<Row> = subjects.iter().map(row).collect();
    for round in 0..=scale.rounds {
        for at in 0..subjects.len() {
            let index = (at + round) % subjects.len();
            let dir = tempfile::tempdir_in(root).expect("the folder can be written");
            let cost = subjects[index].2(dir.path());
            if round > 0 {
                rows[index].costs.push(cost);
            }
        }
    }
    Case { title, goal, rows }
}

/// Has the kernel use, and give up again, as many pages as a round may want. In a virtual machine the first use of a
/// page costs the host several times what the copy into it costs, and a page that the subject before has just freed
/// costs nothing: without this a figure says whose turn was before, not what a subject does.
fn touch_free_pages(dir: &Path, bytes: u64) {
    let path = dir.join("touched");
    Plain::new(&path).write_unsynced(bytes + (64 << 20));
    std::fs::remove_file(&path).expect("it was just written");
}

fn headwater(dir: &Path, sync: SyncMode, per_append: u64) -> Headwater {
    Headwater::new(dir, sync, per_append).wakes(thread::current())
}

fn append_round(dir: &Path, mut subject: impl Subject, payloads: &Payloads, records: u64) -> Cost {
    touch_free_pages(dir, records * RECORD_BYTES as u64);
    measure(|| {
        subject.append(payloads, 0, records);
        (records, records * RECORD_BYTES as u64)
    })
}

pub fn appends(root: &Path, payloads: &Payloads, scale: Scale) -> Case {
    let count = scale.records;
    let ours = |per_append: u64, is_inline: bool| -> Round<'_> {
        Box::new(move |dir| {
            let log = headwater(dir, SyncMode::Never, per_append);
            let log = if is_inline { log.inline() } else { log };
            append_round(dir, log, payloads, count)
        })
    };
    run(
        format!("append {count} records of 1 KiB, no sync"),
        "at least 2 x the better peer",
        root,
        scale,
        vec![
            ("headwater, 1000 an append, inline", false, ours(1000, true)),
            ("headwater, 64 an append, inline", false, ours(64, true)),
            ("headwater, 1000 an append", false, ours(1000, false)),
            ("headwater, 64 an append", false, ours(64, false)),
            ("headwater, 1 an append", false, ours(1, false)),
            (
                "rumqttlog",
                true,
                Box::new(|dir| append_round(dir, Rumqttlog::new(dir), payloads, count)),
            ),
            (
                "segments",
                true,
                Box::new(|dir| append_round(dir, Segments::new(dir), payloads, count)),
            ),
            (
                "plain, write of 1 MiB",
                false,
                Box::new(|dir| append_round(dir, Plain::new(&dir.join("plain")), payloads, count)),
            ),
            (
                "plain, write of 64 records and a head",
                false,
                Box::new(|dir| {
                    let plain = Plain::new(&dir.join("plain")).writing(BATCH_BYTES);
                    append_round(dir, plain, payloads, count)
                }),
            ),
        ],
    )
}

/// Logs with the same records, for reading.
pub struct Filled {
    _dir: tempfile::TempDir,
    pub headwater: Headwater,
    pub rumqttlog: Rumqttlog,
    pub segments: Segments,
    pub plain: Plain,
    pub records: u64,
}

impl Filled {
    /// `per_append` records make a batch of Headwater's.
    pub fn new(root: &Path, payloads: &Payloads, records: u64, per_append: u64) -> Self {
        let dir = tempfile::tempdir_in(root).expect("the folder can be written");
        let mut filled = Self {
            headwater: headwater(&dir.path().join("headwater"), SyncMode::Never, per_append),
            rumqttlog: Rumqttlog::new(&dir.path().join("rumqttlog")),
            segments: Segments::new(&dir.path().join("segments")),
            plain: Plain::new(&dir.path().join("plain")),
            _dir: dir,
            records,
        };
        let mut next = 0;
        while next < records {
            // One append a batch: what a steady load of that size leaves.
            filled
                .headwater
                .append(payloads, next, per_append.min(records - next));
            next += per_append;
        }
        filled.rumqttlog.append(payloads, 0, records);
        filled.segments.append(payloads, 0, records);
        filled.plain.append(payloads, 0, records);
        filled
    }
}

/// Offsets that jump about in `[first, last)`.
fn jumping(first: u64, last: u64, count: u64) -> impl Iterator<Item = u64> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    (0..count).map(move |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        first + state % (last - first)
    })
}

fn read_round(
    subject: &mut dyn Subject,
    payloads: &Payloads,
    first: u64,
    last: u64,
    reads: u64,
) -> Cost {
    measure(|| {
        for offset in jumping(first, last, reads) {
            let read = subject.read_one(offset);
            let written = &payloads.get(offset)[..8];
            assert_eq!(
                read.to_le_bytes(),
                written,
                "the record at {offset} is another one"
            );
        }
        (reads, reads * RECORD_BYTES as u64)
    })
}

/// Random reads of single records within the newest `newest` of a log.
pub fn single_reads(
    root: &Path,
    payloads: &Payloads,
    scale: Scale,
    per_append: u64,
    newest: u64,
) -> Case {
    let Filled {
        mut headwater,
        mut rumqttlog,
        mut segments,
        mut plain,
        records,
        _dir,
    } = Filled::new(root, payloads, scale.records, per_append);
    let first = records - newest.min(records);
    let reads = scale.reads;
    let mib = (records - first) * RECORD_BYTES as u64 >> 20;
    run(
        format!(
            "single reads at random within the newest {mib} MiB, batches of {per_append} records"
        ),
        "at least 2 x the better peer",
        root,
        scale,
        vec![
            (
                "headwater",
                false,
                Box::new(|_| read_round(&mut headwater, payloads, first, records, reads)),
            ),
            (
                "rumqttlog",
                true,
                Box::new(|_| read_round(&mut rumqttlog, payloads, first, records, reads)),
            ),
            (
                "segments",
                true,
                Box::new(|_| read_round(&mut segments, payloads, first, records, reads)),
            ),
            (
                "plain, one pread",
                false,
                Box::new(|_| read_round(&mut plain, payloads, first, records, reads)),
            ),
        ],
    )
}

fn scan_round(subject: &mut dyn Subject, records: u64, read_bytes: usize) -> Cost {
    measure(|| {
        let bytes = subject.read_all(records, read_bytes);
        assert!(
            bytes >= records * RECORD_BYTES as u64,
            "records are missing"
        );
        (records, bytes)
    })
}

/// Everything once, in reads of `read_bytes`, beside the same bytes by `pread` and by a copy in memory.
pub fn batch_reads(root: &Path, payloads: &Payloads, scale: Scale, read_bytes: usize) -> Case {
    let Filled {
        mut headwater,
        mut rumqttlog,
        mut segments,
        mut plain,
        records,
        _dir,
    } = Filled::new(root, payloads, scale.records, 64);
    let source = vec![1_u8; 64 << 20];
    let mut target = vec![2_u8; 64 << 20];
    run(
        format!(
            "batch reads of {} KiB, {} MiB in all",
            read_bytes >> 10,
            records * RECORD_BYTES as u64 >> 20
        ),
        "at least 3.5 GB/s, or 3 x the better peer",
        root,
        scale,
        vec![
            (
                "headwater",
                false,
                Box::new(|_| scan_round(&mut headwater, records, read_bytes)),
            ),
            (
                "rumqttlog",
                true,
                Box::new(|_| scan_round(&mut rumqttlog, records, read_bytes)),
            ),
            (
                "segments",
                true,
                Box::new(|_| scan_round(&mut segments, records, read_bytes)),
            ),
            (
                "plain, pread into one buffer",
                false,
                Box::new(|_| scan_round(&mut plain, records, read_bytes)),
            ),
            (
                "memcpy of 64 MiB pieces",
                false,
                Box::new(|_| {
                    measure(|| {
                        let bytes = records * RECORD_BYTES as u64;
                        for _ in 0..bytes.div_ceil(source.len() as u64) {
                            std::hint::black_box(&mut target)
                                .copy_from_slice(std::hint::black_box(&source));
                        }
                        (records, bytes)
                    })
                }),
            ),
        ],
    )
}

/// Synced appends, several in flight, and a plain program that writes and syncs the same sizes.
pub fn synced(
    root: &Path,
    payloads: &Payloads,
    scale: Scale,
    per_append: u64,
    in_flight: u64,
) -> Case {
    let records = scale.syncs * per_append;
    // Sizes of the pieces that the last round of ours synced.
    let pieces: Arc<Mutex<Vec<usize>>> = Arc::default();
    let ours: Round<'_> = Box::new(|dir| {
        let mut log = headwater(dir, SyncMode::Always, per_append);
        let ends: Arc<Mutex<Vec<Offset>>> = Arc::default();
        let (moved, partition) = (Arc::clone(&ends), log.partition().clone());
        let watched = partition.clone();
        let on_move: Watcher = Arc::new(move || {
            moved
                .lock()
                .expect("no panic")
                .push(partition.high_watermark());
        });
        watched.watch(&on_move);
        let cost = measure(|| {
            let mut next = 0;
            while next < records {
                log.queue(payloads, next, per_append);
                next += per_append;
                log.wait_until(next.saturating_sub((in_flight - 1) * per_append));
            }
            log.wait_until(records);
            (records, records * RECORD_BYTES as u64)
        });
        *pieces.lock().expect("no panic") = piece_sizes(&log, &ends.lock().expect("no panic"));
        log.close();
        cost
    });
    let plain = |is_filled: bool| -> Round<'_> {
        let pieces = Arc::clone(&pieces);
        Box::new(move |dir| {
            let pieces = pieces.lock().expect("no panic").clone();
            let total: usize = pieces.iter().sum();
            let mut file = Plain::new(&dir.join("plain"));
            if is_filled {
                file.fill(total as u64);
            }
            let bytes = vec![0x5a; pieces.iter().copied().max().unwrap_or(0)];
            measure(|| {
                for piece in &pieces {
                    file.write_synced(&bytes[..*piece]);
                }
                (records, records * RECORD_BYTES as u64)
            })
        })
    };
    run(
        format!(
            "synced appends of {per_append} KiB, {in_flight} in flight, {} of them",
            scale.syncs
        ),
        "at least 0.9 of a plain program that syncs the same sizes",
        root,
        scale,
        vec![
            ("headwater", false, ours),
            ("plain, file grows", true, plain(false)),
            ("plain, file filled before", true, plain(true)),
        ],
    )
}

/// Bytes of the batches between one move of the high watermark and the next.
fn piece_sizes(log: &Headwater, ends: &[Offset]) -> Vec<usize> {
    let mut sizes = Vec::new();
    let mut next = Offset(0);
    for end in ends.iter().copied() {
        let mut size = 0;
        while next < end {
            for batch in log.partition().read(next, 1 << 20).expect("it is there") {
                if batch.base_offset() < end {
                    size += batch.bytes_len();
                    next = batch.next_offset();
                }
            }
        }
        if size > 0 {
            sizes.push(size);
        }
    }
    sizes
}
