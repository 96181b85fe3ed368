//! Exit codes and output of all commands of `headwaterd`.

use std::io::Write;

pub const EXIT_OK: i32 = 0;
pub const EXIT_FAILED: i32 = 1;
pub const EXIT_USAGE: i32 = 2;
pub const EXIT_REFUSED: i32 = 4;
pub const EXIT_CONFIG: i32 = 5;
pub const EXIT_INTERRUPTED: i32 = 130;

/// Writes to stdout; returns the exit code.
pub fn print(text: &str) -> i32 {
    let mut stdout = std::io::stdout().lock();
    let written = stdout.write_all(text.as_bytes());
    exit_code(written.and_then(|()| stdout.flush()).is_ok())
}

pub const fn exit_code(is_done: bool) -> i32 {
    if is_done { EXIT_OK } else { EXIT_FAILED }
}

/// Writes a line to stderr.
pub fn say(sentence: &str) {
    // If stderr is closed, there is nowhere to report it.
    let _ = writeln!(std::io::stderr(), "{sentence}");
}
