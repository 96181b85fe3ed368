//! What compressing batches would save and cost: the figures of `docs/adr/0007-compression.md`.
//!
//! Batches of telemetry as JSON and of random bytes, laid out as the log lays them out (topics, client ids, entries,
//! payloads); compressed and decompressed with one reused context, as a writer would.

use std::hint::black_box;
use std::time::Instant;

const ENTRY_BYTES: usize = 20;

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// About 200 bytes, as a simulated device sends it.
fn telemetry(number: u64, state: &mut u64) -> Vec<u8> {
    let value = |state: &mut u64, scale: f64| random(state) as f64 / u64::MAX as f64 * scale;
    format!(
        r#"{{"ts":{},"seq":{},"temperature":{:.2},"humidity":{:.1},"pressure":{:.2},"voltage":{:.3},"rssi":-{},"state":"running","firmware":"1.4.2","uptime":{},"errors":{}}}"#,
        1_760_000_000_000_000_u64 + number * 1_003,
        number,
        18.0 + value(state, 6.0),
        40.0 + value(state, 20.0),
        1000.0 + value(state, 20.0),
        3.6 + value(state, 0.4),
        50 + random(state) % 40,
        number * 7 + 12_345,
        random(state) % 3,
    )
    .into_bytes()
}

/// The sections of a batch.
fn batch(records: u64, payload: &mut dyn FnMut(u64) -> Vec<u8>) -> Vec<u8> {
    let (mut topics, mut clients, mut entries, mut payloads) = (vec![], vec![], vec![], vec![]);
    let devices = records.min(100);
    for device in 0..devices {
        topics.extend_from_slice(&[27, 0, 8, 0, 7, 0]);
        topics.extend_from_slice(format!("devices/{device:07}/telemetry").as_bytes());
        clients.extend_from_slice(&[7, 0]);
        clients.extend_from_slice(format!("{device:07}").as_bytes());
    }
    for number in 0..records {
        payloads.extend_from_slice(&payload(number));
        let mut entry = [0; ENTRY_BYTES];
        entry[..2].copy_from_slice(&((number % devices) as u16).to_le_bytes());
        entry[2..4].copy_from_slice(&((number % devices) as u16).to_le_bytes());
        entry[8..12].copy_from_slice(&(payloads.len() as u32).to_le_bytes());
        entry[16] = 1;
        entries.extend_from_slice(&entry);
    }
    [topics, clients, entries, payloads].concat()
}

/// Nanoseconds a call, the best of some runs.
fn time(mut f: impl FnMut()) -> f64 {
    f();
    let mut best = f64::MAX;
    for _ in 0..7 {
        let start = Instant::now();
        let mut calls = 0;
        while start.elapsed().as_millis() < 20 {
            f();
            calls += 1;
        }
        best = best.min(start.elapsed().as_nanos() as f64 / f64::from(calls));
    }
    best
}

struct Row {
    stored: usize,
    compress_ns: f64,
    decompress_ns: f64,
}

fn zstd_row(bytes: &[u8], level: i32) -> Row {
    let mut compressor = zstd::bulk::Compressor::new(level).expect("a level");
    let mut decompressor = zstd::bulk::Decompressor::new().expect("a context");
    let mut out = vec![0; bytes.len() + bytes.len() / 8 + 256];
    let mut back = vec![0; bytes.len()];
    let stored = compressor
        .compress_to_buffer(bytes, &mut out)
        .expect("fits");
    let small = out[..stored].to_vec();
    Row {
        stored,
        compress_ns: time(|| {
            black_box(compressor.compress_to_buffer(black_box(bytes), &mut out)).expect("fits");
        }),
        decompress_ns: time(|| {
            black_box(decompressor.decompress_to_buffer(black_box(&small), &mut back))
                .expect("fits");
        }),
    }
}

fn lz4_row(bytes: &[u8]) -> Row {
    let mut out = vec![0; lz4_flex::block::get_maximum_output_size(bytes.len())];
    let mut back = vec![0; bytes.len()];
    let stored = lz4_flex::block::compress_into(bytes, &mut out).expect("fits");
    let small = out[..stored].to_vec();
    Row {
        stored,
        compress_ns: time(|| {
            black_box(lz4_flex::block::compress_into(black_box(bytes), &mut out)).expect("fits");
        }),
        decompress_ns: time(|| {
            black_box(lz4_flex::block::decompress_into(
                black_box(&small),
                &mut back,
            ))
            .expect("fits");
        }),
    }
}

fn main() {
    println!(
        "| data | records a batch | codec | stored | compress ns/record | decompress ns/record |"
    );
    println!("|---|---|---|---|---|---|");
    for data in ["JSON", "random"] {
        for records in [1, 10, 100, 1000] {
            let mut state = 0x9e37_79b9_7f4a_7c15;
            let bytes = batch(records, &mut |number| match data {
                "JSON" => telemetry(number, &mut state),
                _ => (0..25)
                    .flat_map(|_| random(&mut state).to_le_bytes())
                    .collect(),
            });
            let rows = [
                ("lz4", lz4_row(&bytes)),
                ("zstd 1", zstd_row(&bytes, 1)),
                ("zstd 3", zstd_row(&bytes, 3)),
            ];
            for (codec, row) in rows {
                println!(
                    "| {data} | {records} | {codec} | {:.0} % | {:.0} | {:.0} |",
                    row.stored as f64 / bytes.len() as f64 * 100.0,
                    row.compress_ns / records as f64,
                    row.decompress_ns / records as f64,
                );
            }
        }
    }
}
