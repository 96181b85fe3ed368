//! `headwater bench`: puts load on an MQTT broker, ours or any other, and reports rates and latencies.
//!
//! One thread with `mio`, so that one core drives millions of messages a second. A *closed loop* sends the next message
//! when an answer arrives: it finds the highest rate, and its latencies are those of clients that wait. An *open loop*
//! sends at a fixed rate: every message has an intended time, and its latency counts from that time. A broker that
//! stalls for a second is therefore charged for all messages of that second, not for one (coordinated omission).
//!
//! It uses only MQTT to talk to the broker, over TCP, TLS and WebSocket. It keeps no messages: the window and one buffer per connection bound its
//! memory.
#![forbid(unsafe_code)]

mod address;
mod arguments;
mod client;
mod connection;
mod connects;
mod error;
mod latency;
mod load;
mod messages;
mod mix;
mod net;
mod pace;
mod plan;
mod process;
mod report;
mod secrets;
mod stream;
mod tls;

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

pub use error::BenchError;
pub use plan::{Layers, Limit, Pace, Plan, Scenario};
pub use report::Report;
pub use secrets::Credentials;

pub const EXIT_OK: i32 = 0;
pub const EXIT_USAGE: i32 = 2;
pub const EXIT_INTERRUPTED: i32 = 130;

/// Runs the command with the arguments after its name and returns its exit code. The report goes to stdout, everything
/// else to stderr.
pub fn run(arguments: &[String]) -> i32 {
    let request = match arguments::parse(arguments) {
        Ok(Some(request)) => request,
        Ok(None) => return print(arguments::USAGE),
        Err(reason) => {
            complain(&format!("{reason}; see headwater bench --help"));
            return EXIT_USAGE;
        }
    };
    for note in &request.notes {
        complain(note);
    }
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        if let Err(error) = signal_hook::flag::register(signal, Arc::clone(&stop)) {
            complain(&format!("cannot register a signal handler: {error}"));
        }
    }
    match measure(&request.plan, &stop) {
        Ok(report) => {
            let text = if request.json {
                format!("{}\n", report.to_json())
            } else {
                report.to_text()
            };
            let printed = print(&text);
            if report.interrupted {
                EXIT_INTERRUPTED
            } else if report.is_short() {
                complain("some messages were not acknowledged or delivered");
                1
            } else {
                printed
            }
        }
        Err(error) => {
            complain(&error.to_string());
            error.exit_code()
        }
    }
}

/// The plan of the command's arguments, with secrets and certificates read; `None` when they ask for help.
///
/// # Errors
/// What is wrong with the arguments, in one sentence.
pub fn plan_of(arguments: &[String]) -> Result<Option<Plan>, String> {
    Ok(arguments::parse(arguments)?.map(|request| request.plan))
}

/// Runs a plan. `stop` ends it early, with a report of the work done so far.
///
/// # Errors
/// [`BenchError`].
pub fn measure(plan: &Plan, stop: &AtomicBool) -> Result<Report, BenchError> {
    plan.check()?;
    process::raise_open_files();
    match plan.scenario {
        Scenario::Connect => connects::run(plan, stop),
        _ => messages::run(plan, stop),
    }
}

fn print(text: &str) -> i32 {
    let mut stdout = std::io::stdout().lock();
    match stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
    {
        Ok(()) => EXIT_OK,
        Err(_) => 1,
    }
}

fn complain(sentence: &str) {
    // If stderr is closed, there is nowhere to report it.
    let _ = writeln!(std::io::stderr(), "headwater bench: {sentence}");
}
