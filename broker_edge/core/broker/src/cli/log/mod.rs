//! `headwaterd log VERB`: tools for a log that no broker has open. `headwater_log::tools` does the work.
//!
//! Data goes to stdout, as text or with `--json` as JSON; messages and progress go to stderr. Exit codes: 0 done, 1
//! failed or damage found, 2 usage, 4 refused, 130 interrupted.

mod arguments;
mod compare;
mod shown;

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use headwater_log::tools::{self, DumpWish, PurgeWhat, ToolError, Work};
use headwater_log::{Class, Offset, Seams};
use serde::Serialize;
use serde_json::json;
use signal_hook::consts::SIGINT;

use self::arguments::{Arguments, Exit};
use self::shown::{backup_text, dumped, purge_text, repair_text, restore_text, verify_text};
use super::output::{self, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_REFUSED, EXIT_USAGE, print, say};
use crate::filter::Filters;

pub const USAGE: &str = "\
usage: headwaterd log verify DIR [--online] [--json]
       headwaterd log compare DIR DIR [DIR] [--json]
       headwaterd log dump DIR [--partition NAME]... [--from OFFSET] [--until OFFSET] [--filter FILTER]...
                               [--limit N] [--online]
       headwaterd log repair DIR [--dry-run] [--template CLASS=TEMPLATE]... [--json]
       headwaterd log backup DIR DEST [--json]
       headwaterd log restore SRC DIR [--same-id] [--json]
       headwaterd log purge DIR (--device ID | --filter FILTER) [--json]

DIR is the data_dir of a stopped broker; with --online only sealed segments are read while it runs.
  verify   read everything and report what is intact and what is lost; changes nothing
  compare  read the folders of stopped nodes of a cluster, and report where their logs differ; changes nothing
  dump     print records as JSON lines, and the lost offsets between them
  repair   rebuild log.meta and indexes, and move unusable files aside; deletes nothing
  backup   copy the log to DEST; a repeated backup to the same folder copies only new data
  restore  create a log in DIR from a backup; DIR must not exist; the log gets a new log id
  purge    permanently remove all records sent to or by a device, or the topics of a filter
Exit codes: 0 done, 1 failed or damage found, 2 usage, 4 refused, 130 interrupted.
";

/// Runs `log` with the arguments after it and returns the exit code.
pub fn run(arguments: &[String]) -> i32 {
    let Some((verb, rest)) = arguments.split_first() else {
        say(USAGE.trim_end());
        return EXIT_USAGE;
    };
    let stop = Arc::new(AtomicBool::new(false));
    // The second interrupt ends the process immediately.
    let registered = signal_hook::flag::register_conditional_shutdown(
        SIGINT,
        EXIT_INTERRUPTED,
        Arc::clone(&stop),
    )
    .and_then(|first| {
        Ok([
            first,
            signal_hook::flag::register(SIGINT, Arc::clone(&stop))?,
        ])
    });
    let ended = with_work(verb, rest, &stop);
    for id in registered.into_iter().flatten() {
        signal_hook::low_level::unregister(id);
    }
    match ended {
        Ok(code) => code,
        Err(Exit::Usage(reason)) => {
            say(&format!(
                "headwater log {verb}: {reason}\n{}",
                USAGE.trim_end()
            ));
            EXIT_USAGE
        }
        Err(Exit::Failed(error)) => {
            say(&format!("headwater log {verb}: {error}"));
            exit_code(&error)
        }
    }
}

fn with_work(verb: &str, rest: &[String], stop: &AtomicBool) -> Result<i32, Exit> {
    let seams = Seams::system();
    let shown = AtomicU64::new(u64::MAX);
    let is_terminal = std::io::stderr().is_terminal();
    let progress = |done: u64, total: u64| {
        let percent = (done.min(total) * 100).checked_div(total).unwrap_or(100);
        if is_terminal && shown.swap(percent, Ordering::Relaxed) != percent {
            let end = if percent == 100 { "\n" } else { "" };
            // Failing to show progress is not an error.
            let _ = write!(std::io::stderr(), "\r{verb}: {percent} %{end}");
        }
    };
    let work = Work {
        seams: &seams,
        progress: &progress,
        stop,
    };
    match verb {
        "verify" => verify(rest, work),
        "compare" => compare(rest, work),
        "dump" => dump(rest, work),
        "repair" => repair(rest, work),
        "backup" => backup(rest, work),
        "restore" => restore(rest, work),
        "purge" => purge(rest, work),
        "--help" | "-h" | "help" => Ok(print(USAGE)),
        _ => Err(Exit::Usage(format!("unknown verb `{verb}`"))),
    }
}

fn exit_code(error: &ToolError) -> i32 {
    match error {
        ToolError::Interrupted => EXIT_INTERRUPTED,
        ToolError::Io { .. } => EXIT_FAILED,
        _ => EXIT_REFUSED,
    }
}

fn verify(rest: &[String], work: Work<'_>) -> Result<i32, Exit> {
    let arguments = Arguments::parse(rest, &[], &["--online", "--json"])?;
    let [dir] = arguments.places("the data folder")?;
    let report = tools::verify(dir, arguments.access(), work)?;
    let code = output::exit_code(!report.is_damaged() && report.has_read());
    let json =
        json!({"damaged": report.is_damaged(), "has_read": report.has_read(), "report": report});
    Ok(code.max(show(&arguments, &json, verify_text(&report))))
}

fn compare(rest: &[String], work: Work<'_>) -> Result<i32, Exit> {
    let arguments = Arguments::parse(rest, &[], &["--json"])?;
    let dirs = arguments.several(2..=3, "the data folders of two or three nodes")?;
    let found = compare::compare(&dirs, work)?;
    let code = output::exit_code(found.is_equal());
    Ok(code.max(show(&arguments, &found, compare::text(&found))))
}

fn dump(rest: &[String], work: Work<'_>) -> Result<i32, Exit> {
    let options = ["--partition", "--from", "--until", "--filter", "--limit"];
    let arguments = Arguments::parse(rest, &options, &["--online", "--json"])?;
    let [dir] = arguments.places("the data folder")?;
    let filters = Some(arguments.all("--filter")).filter(|filters| !filters.is_empty());
    let filters = Filters::new(filters).map_err(|error| error.to_string())?;
    let from = Offset(arguments.number("--from")?.unwrap_or(0));
    let until = Offset(arguments.number("--until")?.unwrap_or(u64::MAX));
    let wish = DumpWish {
        partitions: arguments.all("--partition"),
        offsets: from..until,
        wanted: &|topic| filters.wants(topic),
        limit: arguments.number("--limit")?,
    };
    let mut stdout = std::io::BufWriter::new(std::io::stdout().lock());
    tools::dump(dir, arguments.access(), &wish, work, &mut |line| {
        serde_json::to_writer(&mut stdout, &dumped(&line))?;
        stdout.write_all(b"\n")
    })?;
    Ok(output::exit_code(stdout.flush().is_ok()))
}

fn repair(rest: &[String], work: Work<'_>) -> Result<i32, Exit> {
    let arguments = Arguments::parse(rest, &["--template"], &["--dry-run", "--json"])?;
    let [dir] = arguments.places("the data folder")?;
    let mut templates = BTreeMap::new();
    for text in arguments.all("--template") {
        let (class, template) = text
            .split_once('=')
            .and_then(|(class, template)| Some((Class::from_name(class)?, template)))
            .ok_or(format!("--template {text} is not CLASS=TEMPLATE"))?;
        let template = Some(template.to_owned()).filter(|template| !template.is_empty());
        templates.insert(class, template);
    }
    let report = tools::repair(dir, &templates, arguments.has("--dry-run"), work)?;
    Ok(show(&arguments, &report, repair_text(&report)))
}

fn backup(rest: &[String], work: Work<'_>) -> Result<i32, Exit> {
    let arguments = Arguments::parse(rest, &[], &["--json"])?;
    let [dir, dest] = arguments.places("the data folder and the backup folder")?;
    let report = tools::backup(dir, dest, work)?;
    Ok(show(&arguments, &report, backup_text(&report)))
}

fn restore(rest: &[String], work: Work<'_>) -> Result<i32, Exit> {
    let arguments = Arguments::parse(rest, &[], &["--same-id", "--json"])?;
    let [source, dir] = arguments.places("the backup folder and the new data folder")?;
    let report = tools::restore(source, dir, arguments.has("--same-id"), work)?;
    Ok(show(&arguments, &report, restore_text(&report)))
}

fn purge(rest: &[String], work: Work<'_>) -> Result<i32, Exit> {
    let arguments = Arguments::parse(rest, &["--device", "--filter"], &["--json"])?;
    let [dir] = arguments.places("the data folder")?;
    let (devices, filters) = (arguments.all("--device"), arguments.all("--filter"));
    let report = match (devices.as_slice(), filters.is_empty()) {
        ([device], true) => tools::purge(dir, PurgeWhat::Device(device), work)?,
        ([], false) => {
            let filters = Filters::new(Some(filters)).map_err(|error| error.to_string())?;
            tools::purge(dir, PurgeWhat::Topics(&|topic| filters.wants(topic)), work)?
        }
        _ => {
            return Err(Exit::Usage(
                "give one --device, or at least one --filter".to_owned(),
            ));
        }
    };
    Ok(show(&arguments, &report, purge_text(&report)))
}

/// Prints a report as text, or with `--json` as JSON.
fn show(arguments: &Arguments, report: &impl Serialize, text: String) -> i32 {
    if arguments.has("--json") {
        print(&format!("{}\n", json!(report)))
    } else {
        print(&text)
    }
}
