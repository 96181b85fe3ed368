//! Files are changed by a mutator that knows the format: recovery and the readers of index, batch, mark and `log.meta`
//! never panic, never loop forever, and never allocate for a count that the bytes do not cover.
//!
//! Three seconds by default; `HEADWATER_FUZZ_SECONDS=600` for a long run, `HEADWATER_FUZZ_SEED` to repeat one case. A
//! separate program: its allocator records the largest allocation of the whole process, so no other test may run in it.

mod image;
mod mutate;
mod probe;
#[path = "../it/support/mod.rs"]
#[allow(dead_code, reason = "the other test program uses the rest")]
mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use image::{Image, images};
use mutate::Mutator;
use probe::probe;
use support::sim::Random;

/// Room for a chunk of a scan, the leftovers of a torn tail and the data of a small folder; far below what a forged
/// count would request.
const ALLOCATION_MAX: usize = 24 << 20;

/// Records the largest single allocation since the last reset.
struct Watching;

static LARGEST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system's allocator.
unsafe impl GlobalAlloc for Watching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        LARGEST.fetch_max(bytes, Ordering::Relaxed);
        unsafe { System.realloc(pointer, layout, bytes) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        unsafe { System.alloc_zeroed(layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Watching = Watching;

fn check(what: &str, image: &Image) -> bool {
    LARGEST.store(0, Ordering::Relaxed);
    let opened = probe(image);
    let largest = LARGEST.load(Ordering::Relaxed);
    assert!(
        largest <= ALLOCATION_MAX,
        "{what}: {largest} bytes at once for a folder of {}",
        image.bytes()
    );
    opened
}

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn files_that_were_changed_by_somebody_who_knows_the_format_do_no_harm() {
    let images = images();
    let case = |seed: u64| {
        let mut random = Random(seed);
        let mut image = images[random.below(images.len())].clone();
        Mutator::new(&mut image, &mut random).mutate();
        check(&format!("seed {seed}"), &image)
    };
    if let Some(seed) = from_environment("HEADWATER_FUZZ_SEED") {
        case(seed);
        return;
    }
    let time = Duration::from_secs(from_environment("HEADWATER_FUZZ_SECONDS").unwrap_or(3));
    let started = Instant::now();
    let first = started_at();
    let (mut tried, mut opened) = (0_u64, 0_u64);
    watch_for_a_case_without_end();
    // Longer on a slow machine: with few cases, the share that opens is random.
    while started.elapsed() < time || tried < 200 {
        let seed = first.wrapping_add(tried);
        CASE.store(seed, Ordering::Relaxed);
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| case(seed)));
        match result {
            Ok(was_opened) => opened += u64::from(was_opened),
            Err(error) => {
                eprintln!("failed with HEADWATER_FUZZ_SEED={seed}");
                std::panic::resume_unwind(error);
            }
        }
        tried += 1;
    }
    CASE.store(0, Ordering::Relaxed);
    eprintln!("{tried} folders from seed {first} on, {opened} of them opened");
    assert!(
        opened * 10 > tried,
        "most are refused: only {opened} of {tried} opened"
    );
}

/// The seed of the running case.
static CASE: AtomicU64 = AtomicU64::new(0);

/// Ends the process and prints the seed when a case does not end.
fn watch_for_a_case_without_end() {
    std::thread::spawn(|| {
        let (mut case, mut since) = (0, Instant::now());
        loop {
            std::thread::park_timeout(Duration::from_secs(1));
            let now = CASE.load(Ordering::Relaxed);
            if now != case {
                (case, since) = (now, Instant::now());
            } else if now != 0 && since.elapsed() > Duration::from_secs(90) {
                eprintln!("HEADWATER_FUZZ_SEED={case} does not end");
                std::process::abort();
            }
        }
    });
}

/// Each run tries other folders; a failure prints the seed.
fn started_at() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(1, |since| since.as_nanos() as u64)
}

#[test]
fn every_image_opens_as_it_is() {
    for image in images() {
        assert!(check("unchanged", &image));
    }
}
