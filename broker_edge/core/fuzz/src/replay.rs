//! Reads the corpus of a target again, with its findings, and then changed inputs of it for a short time. In the tests
//! of a crate, where no tool is needed; what coverage finds first is found by `make fuzz`.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Changed inputs of a target, unless HEADWATER_FUZZ_SECONDS says otherwise.
const TIME: Duration = Duration::from_millis(500);
const INPUT_BYTES_MAX: usize = 8192;

/// One input a line, in hexadecimal.
fn corpus(name: &str) -> Vec<Vec<u8>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../fuzz/corpus/{name}.hex"));
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let digit = |byte: u8| char::from(byte).to_digit(16).expect("a hexadecimal digit") as u8;
    let input = |line: &str| {
        let pairs = line.as_bytes().chunks_exact(2);
        pairs
            .map(|pair| digit(pair[0]) << 4 | digit(pair[1]))
            .collect()
    };
    let inputs: Vec<Vec<u8>> = text.lines().map(input).collect();
    assert!(!inputs.is_empty(), "{} is empty", path.display());
    inputs
}

/// Panics with the first input on which `read` panics; the input is kept in a file.
pub fn replay(name: &str, read: impl Fn(&[u8])) {
    let inputs = corpus(name);
    let run = |input: &[u8]| {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| read(input))) {
            let file = format!("headwater-fuzz-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(file);
            std::fs::write(&path, input).expect("room for the input");
            eprintln!(
                "again: make fuzz ARGS='--target {name} --input {}'",
                path.display()
            );
            resume_unwind(panic);
        }
    };
    inputs.iter().for_each(|input| run(input));
    let seconds = std::env::var("HEADWATER_FUZZ_SECONDS");
    let seconds = seconds.ok().and_then(|text| text.parse().ok());
    let (time, started) = (seconds.map_or(TIME, Duration::from_secs), Instant::now());
    let mut changes = Changes(seed());
    while started.elapsed() < time {
        run(&changes.of(&inputs));
    }
}

/// The seed of the other random tests where that is fixed, else a new one.
fn seed() -> u64 {
    let fixed = std::env::var("PROPTEST_RNG_SEED")
        .ok()
        .and_then(|text| text.parse().ok());
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    fixed.unwrap_or_else(|| now.map_or(1, |since| since.as_nanos() as u64)) | 1
}

/// Random changes (xorshift).
struct Changes(u64);

impl Changes {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((u128::from(self.0) * end as u128) >> 64) as usize
    }

    fn of(&mut self, inputs: &[Vec<u8>]) -> Vec<u8> {
        let mut input = inputs[self.below(inputs.len())].clone();
        for _ in 0..=self.below(4) {
            let at = self.below(input.len() + 1);
            let end = at + self.below((input.len() - at).min(16) + 1);
            match self.below(6) {
                0 if at < input.len() => input[at] ^= 1 << self.below(8),
                1 if at < input.len() => {
                    input[at] =
                        [0, 1, 0x7f, 0x80, 0xff, b'"', b'{', b'\n', b'/', b'9'][self.below(10)];
                }
                2 => drop(input.drain(at..end)),
                3 => {
                    let part = input[at..end].to_vec();
                    input.splice(at..at, part);
                }
                4 => {
                    let other = &inputs[self.below(inputs.len())];
                    let from = self.below(other.len() + 1);
                    let to = from + self.below(other.len() - from + 1);
                    input.splice(at..end, other[from..to].iter().copied());
                }
                _ => input.insert(at, self.below(256) as u8),
            }
        }
        input.truncate(INPUT_BYTES_MAX);
        input
    }
}
