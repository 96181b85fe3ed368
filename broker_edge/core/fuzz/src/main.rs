//! Coverage-guided fuzzing with libFuzzer of every reader of bytes from outside: `make fuzz`.
//!
//! One program for all targets, because linking takes longer than compiling them; HEADWATER_FUZZ_TARGET names the
//! target, and `list` prints the names. A target panics when one of its promises does not hold; this program adds the
//! bounds on memory. The same functions read the corpus in the tests of their crates (`replay.rs`).
#![no_main]

mod memory;

#[allow(dead_code, reason = "the tests of the codec use the rest")]
#[path = "../../mqtt/tests/it/fuzz/check.rs"]
mod check;
/// What `check` asks of its allocator.
mod counting {
    pub(crate) use crate::memory::allocations;
}

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;

type Read = fn(&[u8]);

static TARGET: OnceLock<Read> = OnceLock::new();

/// The first byte says where the packet is cut.
fn mqtt(input: &[u8]) {
    if let Some((cut, packet)) = input.split_first() {
        check::check(packet, usize::from(*cut));
    }
}

fn targets() -> impl Iterator<Item = (&'static str, Read)> {
    let codec: [(&'static str, Read); 1] = [("mqtt", mqtt)];
    let of_broker = headwater_broker::fuzz::TARGETS.iter().copied();
    let of_log = headwater_log::fuzz::TARGETS.iter().copied();
    codec.into_iter().chain(of_broker).chain(of_log)
}

fn choose() {
    let wanted = std::env::var("HEADWATER_FUZZ_TARGET").unwrap_or_default();
    match targets().find(|(name, _)| *name == wanted) {
        Some((_, read)) => {
            // What lives as long as the process is no part of what an input takes.
            read(&[]);
            assert!(TARGET.set(read).is_ok(), "chosen once");
        }
        None => {
            if wanted != "list" {
                eprintln!("HEADWATER_FUZZ_TARGET={wanted} is not a target; these are:");
            }
            let names: Vec<&str> = targets().map(|(name, _)| name).collect();
            #[allow(clippy::print_stdout, reason = "a program that was asked for a list")]
            {
                println!("{}", names.join("\n"));
            }
            std::process::exit(i32::from(wanted != "list"));
        }
    }
}

fuzz_target!(init: choose(), |input: &[u8]| {
    let read = TARGET.get().expect("chosen at the start");
    memory::bounded(input.len(), || read(input));
});
