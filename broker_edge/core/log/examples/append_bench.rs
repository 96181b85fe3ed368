//! CPU and rate of appending, per record: 64-byte payloads, a thousand records an append, as a loop's turn makes them.
//!
//! Run: `cargo run --profile quick -p headwater-log --example append_bench`. Prints figures; asserts nothing.
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::hint::black_box;
use std::time::Instant;

use headwater_log::{Log, LogConfig, Offset, RecordMeta, Records, Seams, SyncMode};

const APPENDS: u64 = 4000;
const TOPICS: u32 = 50;

/// User and system CPU of this process, in µs.
fn cpu_us() -> Result<(u64, u64), Box<dyn Error>> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    // Fields 14 and 15 of proc(5), in ticks of 10 ms.
    Ok((
        fields[11].parse::<u64>()? * 10_000,
        fields[12].parse::<u64>()? * 10_000,
    ))
}

fn fill(
    records: &mut Records,
    topics: &[String],
    per_append: u32,
    payload: &[u8],
) -> Result<(), Box<dyn Error>> {
    let mut indexes = Vec::with_capacity(topics.len());
    for topic in topics {
        indexes.push(records.topic(topic, 8..topic.len() as u16 - 10)?);
    }
    let client = records.client("client")?;
    for n in 0..per_append {
        records.push(
            RecordMeta::new(indexes[(n % TOPICS) as usize], client, 1),
            payload,
        )?;
    }
    Ok(())
}

fn run(sync: SyncMode, inline: bool, per_append: u32, appends: u64) -> Result<(), Box<dyn Error>> {
    let dir = std::env::temp_dir().join(format!("headwater-append-bench-{}", std::process::id()));
    let mut config = LogConfig {
        sync,
        ..LogConfig::new(&dir)
    };
    config.classes[3].retention_bytes = Some(256 << 20);
    let (log, _) = Log::open(config, Seams::system())?;
    let partition = log.by_name("telemetry-0").ok_or("no partition")?;
    let topics: Vec<String> = (0..TOPICS)
        .map(|n| format!("devices/d{n}/telemetry"))
        .collect();
    let caller = std::thread::current();
    let watcher: headwater_log::Watcher = std::sync::Arc::new(move || caller.unpark());
    partition.watch(&watcher);
    let payload = [7_u8; 64];
    let (cpu, started) = (cpu_us()?, Instant::now());
    let (mut pulled, mut records_seen) = (Offset(0), 0_u64);
    for _ in 0..appends {
        let mut records = partition.take_records();
        fill(&mut records, &topics, per_append, &payload)?;
        if inline {
            partition.append_inline(records)?;
        } else {
            while partition.queued_bytes() > 4 << 20 {
                std::thread::park();
            }
            partition.append(records)?;
        }
        // What a loop does each turn.
        for batch in partition.read_tail(pulled, 1 << 20).unwrap_or_default() {
            records_seen += batch.len() as u64;
            pulled = batch.next_offset();
            black_box(&batch);
        }
    }
    while partition.high_watermark() < partition.next_offset() {
        std::thread::park();
    }
    let (wall, after) = (started.elapsed(), cpu_us()?);
    let count = appends * u64::from(per_append);
    println!(
        "{sync:?} {} {per_append}/append: {:.3} us user + {:.3} us system CPU/record, {:.2} M records/s, {records_seen} pulled",
        if inline { "inline" } else { "queued" },
        (after.0 - cpu.0) as f64 / count as f64,
        (after.1 - cpu.1) as f64 / count as f64,
        count as f64 / wall.as_secs_f64() / 1e6,
    );
    drop(log);
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}

/// What the caller pays to fill `Records`, without a log.
fn build_only() -> Result<(), Box<dyn Error>> {
    let topics: Vec<String> = (0..TOPICS)
        .map(|n| format!("devices/d{n}/telemetry"))
        .collect();
    let mut records = Records::new();
    let started = Instant::now();
    for _ in 0..APPENDS {
        records.clear();
        fill(&mut records, &topics, 1000, &[7; 64])?;
        black_box(&records);
    }
    println!(
        "filling Records: {:.4} us/record",
        started.elapsed().as_micros() as f64 / (APPENDS * 1000) as f64
    );
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    build_only()?;
    for sync in [SyncMode::Never, SyncMode::Always] {
        run(sync, false, 1000, APPENDS)?;
        run(sync, true, 1000, APPENDS)?;
    }
    run(SyncMode::Always, true, 1, 20_000)?;
    run(SyncMode::Always, false, 1, 20_000)
}
