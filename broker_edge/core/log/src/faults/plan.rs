//! Parses `HEADWATER_FAULTS`: words separated by commas, each `ACTION@PLACE`, `ACTION@PLACE#N`, or a setting.
//!
//! A place is a point of [`POINTS`], a kind of file operation, or `op` for any operation that changes the disk. With
//! `#N` the action happens at the N-th time, counted in this process, else each time.

use std::io::Write;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::sabotage::Sabotage;
use crate::ids::Epoch;

const VARIABLE: &str = "HEADWATER_FAULTS";

/// The named points, in the order in which a record and a segment pass them.
pub const POINTS: &[&str] = &[
    "batch-queued",
    "batch-written",
    "batch-synced",
    "batch-shown",
    "before-ack",
    "roll-begun",
    "roll-segment-ready",
    "roll-sealed",
    "segment-written",
    "segment-named",
    "segment-filled",
    "index-written",
    "index-named",
    "mark-saved",
    "retention-start-moved",
    "retention-index-removed",
    "retention-segment-renamed",
    "retention-segment-recycled",
    "retention-segment-removed",
    "spare-made",
    "recovery-begun",
    "recovery-unfinished-removed",
    "recovery-sealed-read",
    "recovery-scanned",
    "recovery-kept-aside",
    "recovery-copied",
    "recovery-synced",
    "recovery-named",
    "recovery-partition-done",
    "meta-begun",
    "meta-saved",
    "start-threads",
    "state-replayed",
    "state-written",
    "snapshot-begun",
    "snapshot-ended",
    "snapshot-cut",
    "qos2-publish-staged",
    "qos2-before-pubrec",
    "qos2-release-staged",
    "qos2-before-pubcomp",
];

/// Kinds of file operations; those from `create` on change the disk.
const KINDS: &[&str] = &[
    "open", "read", "create", "write", "sync", "truncate", "rename", "remove", "syncdir", "mkdir",
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// The process ends, as by kill -9.
    Abort,
    /// The thread reports the point and stops there, so that somebody can cut the power.
    Hang,
    /// The operation fails with this error number and does nothing.
    Error(i32),
    /// Half of a write is done, then it fails with EIO.
    Short,
    /// Half of a write is done, then the process ends.
    Tear,
    /// The operation waits for a random time between these, in milliseconds.
    Delay(u64, u64),
}

struct Rule {
    action: Action,
    /// `write`, or `write.seg` for one kind of file.
    place: String,
    /// None: each time.
    at: Option<u64>,
    passed: AtomicU64,
}

pub(super) struct Plan {
    rules: Vec<Rule>,
    pub(super) sabotage: Option<Sabotage>,
    clock_jump_us: i64,
    moments: AtomicU64,
    recovering: AtomicBool,
}

pub(super) fn plan() -> &'static Plan {
    static PLAN: OnceLock<Plan> = OnceLock::new();
    PLAN.get_or_init(|| {
        let text = std::env::var(VARIABLE).unwrap_or_default();
        Plan::parse(&text).expect("the program checked its environment first")
    })
}

/// # Errors
/// A sentence that says which word of `HEADWATER_FAULTS` is wrong.
pub fn check_environment() -> Result<(), String> {
    let parsed = Plan::parse(&std::env::var(VARIABLE).unwrap_or_default());
    parsed
        .map(drop)
        .map_err(|wrong| format!("{VARIABLE}: {wrong}"))
}

/// Whether this process was told to make this mistake.
#[must_use]
pub fn is_sabotaged(mistake: Sabotage) -> bool {
    plan().sabotage == Some(mistake)
}

/// A thread has reached a named point.
pub fn pass(point: &'static str) {
    debug_assert!(POINTS.contains(&point), "{point} is missing in POINTS");
    plan().at_point(point);
}

pub(crate) fn trusts_checksums() -> bool {
    match plan().sabotage {
        Some(Sabotage::ChecksumIgnored) => true,
        Some(Sabotage::TornTailKept) => plan().recovering.load(Ordering::Relaxed),
        _ => false,
    }
}

pub(crate) fn set_recovering(is_recovering: bool) {
    plan().recovering.store(is_recovering, Ordering::Relaxed);
}

pub(crate) fn epoch_of_start(newest: u64) -> Epoch {
    let reused = newest > 0 && is_sabotaged(Sabotage::OffsetReused);
    Epoch(if reused { newest } else { newest + 1 })
}

impl Plan {
    fn parse(text: &str) -> Result<Self, String> {
        let mut plan = Self {
            rules: Vec::new(),
            sabotage: None,
            clock_jump_us: 0,
            moments: AtomicU64::new(0x9E37_79B9_7F4A_7C15),
            recovering: AtomicBool::new(false),
        };
        for word in text.split(',').map(str::trim).filter(|w| !w.is_empty()) {
            plan.take(word)?;
        }
        Ok(plan)
    }

    fn take(&mut self, word: &str) -> Result<(), String> {
        if let Some((action, place)) = word.split_once('@') {
            self.rules.push(parse_rule(word, action, place)?);
            return Ok(());
        }
        match word.split_once(':') {
            Some(("sabotage", name)) => {
                let known = sabotage_of(name).ok_or(format!("`{name}` is no sabotage"))?;
                self.sabotage = Some(known);
            }
            Some(("clock", seconds)) => {
                let seconds: u32 = seconds.parse().map_err(|_| format!("`{word}`: seconds?"))?;
                self.clock_jump_us = i64::from(seconds) * 1_000_000;
            }
            Some(("seed", seed)) => {
                let seed: u64 = seed.parse().map_err(|_| format!("`{word}`: a number?"))?;
                self.moments = AtomicU64::new(seed | 1);
            }
            _ => {
                return Err(format!(
                    "`{word}` is none of ACTION@PLACE[#N], sabotage:NAME, clock:SECONDS, seed:N"
                ));
            }
        }
        Ok(())
    }

    /// The fault for an operation on a file; delays and ends happen here.
    pub(super) fn before(&self, kind: &'static str, path: &Path) -> Option<Action> {
        let of = file_kind(path);
        let is_at = |place: &str| match place.split_once('.') {
            Some((wanted, file)) => wanted == kind && file == of,
            None => place == kind || (place == "op" && changes_the_disk(kind)),
        };
        self.decide(is_at, kind, path)
    }

    pub(super) fn after(&self, kind: &'static str, path: &Path) {
        let is_at = |place: &str| place == "after-op" && changes_the_disk(kind);
        self.decide(is_at, kind, path);
    }

    fn at_point(&self, point: &'static str) {
        self.decide(|place| place == point, point, Path::new(""));
    }

    fn decide(&self, is_at: impl Fn(&str) -> bool, what: &str, path: &Path) -> Option<Action> {
        let mut found = None;
        for rule in self.rules.iter().filter(|rule| is_at(&rule.place)) {
            let passed = rule.passed.fetch_add(1, Ordering::Relaxed) + 1;
            if rule.at.is_some_and(|at| at != passed) {
                continue;
            }
            let (action, path) = (rule.action, path.display());
            if let Action::Delay(least, most) = action {
                let ms = least + self.random() % (most - least + 1);
                std::thread::sleep(Duration::from_millis(ms));
                continue;
            }
            // A test may wait for this line; if stderr is closed, none does.
            let _ = writeln!(
                std::io::stderr(),
                "faults: {action:?} at {what} {passed} {path}"
            );
            match action {
                Action::Abort => std::process::abort(),
                Action::Hang => loop {
                    std::thread::park();
                },
                action => found = Some(action),
            }
        }
        found
    }

    /// The current error of the wall clock.
    pub(super) fn clock_error_us(&self) -> i64 {
        if self.clock_jump_us == 0 {
            return 0;
        }
        let span = self.clock_jump_us.unsigned_abs() * 2 + 1;
        (self.random() % span) as i64 - self.clock_jump_us
    }

    /// splitmix64. Any thread may call it; the order of calls is not fixed.
    pub(super) fn random(&self) -> u64 {
        let mut z = self
            .moments
            .fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

/// The kind of a file, or of the file that it becomes: `seg`, `idx`, `mark`, `meta`.
fn file_kind(path: &Path) -> &str {
    let name = path
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or("");
    let name = name.strip_suffix(".tmp").unwrap_or(name);
    if name.starts_with("spare-") {
        return "seg";
    }
    name.rsplit_once('.')
        .map_or(name, |(_, extension)| extension)
}

fn changes_the_disk(kind: &str) -> bool {
    !matches!(kind, "open" | "read")
}

fn parse_rule(word: &str, action: &str, place: &str) -> Result<Rule, String> {
    let (place, at) = match place.split_once('#') {
        Some((place, number)) => {
            let number = number
                .parse()
                .map_err(|_| format!("`{word}`: `#` wants a number"))?;
            (place, Some(number))
        }
        None => (place, None),
    };
    let kind = place.split_once('.').map_or(place, |(kind, _)| kind);
    if !(POINTS.contains(&place) || KINDS.contains(&kind) || matches!(place, "op" | "after-op")) {
        return Err(format!(
            "`{place}` is no point and no kind of file operation"
        ));
    }
    let action = match action {
        "abort" => Action::Abort,
        "hang" => Action::Hang,
        "eio" => Action::Error(libc::EIO),
        "enospc" => Action::Error(libc::ENOSPC),
        "short" => Action::Short,
        "tear" => Action::Tear,
        _ => parse_delay(action).ok_or(format!("`{action}` is no action"))?,
    };
    Ok(Rule {
        action,
        place: place.to_owned(),
        at,
        passed: AtomicU64::new(0),
    })
}

fn parse_delay(action: &str) -> Option<Action> {
    let (least, most) = action.strip_prefix("delay:")?.split_once('-')?;
    let (least, most) = (least.parse().ok()?, most.parse().ok()?);
    (least <= most).then_some(Action::Delay(least, most))
}

fn sabotage_of(name: &str) -> Option<Sabotage> {
    Some(match name {
        "no-sync" => Sabotage::NoSync,
        "ack-before-sync" => Sabotage::AckBeforeSync,
        "checksum-ignored" => Sabotage::ChecksumIgnored,
        "torn-tail-kept" => Sabotage::TornTailKept,
        "offset-reused" => Sabotage::OffsetReused,
        "ack-at-leader" => Sabotage::AckAtLeader,
        "suspect-ignored" => Sabotage::SuspectIgnored,
        "removed-early" => Sabotage::RemovedEarly,
        "cut-at-high-watermark" => Sabotage::CutAtHighWatermark,
        "early-office" => Sabotage::EarlyOffice,
        "stale-answers" => Sabotage::StaleAnswers,
        "unaligned" => Sabotage::Unaligned,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_of_the_grammar_is_understood() {
        let text = "abort@batch-written#3, eio@sync.seg#2,short@write,delay:20-500@sync,clock:60,seed:7,sabotage:no-sync";
        let plan = Plan::parse(text).expect("it is right");
        assert_eq!(plan.rules.len(), 4);
        assert_eq!(plan.sabotage, Some(Sabotage::NoSync));
        assert_eq!(plan.clock_jump_us, 60_000_000);
    }

    #[test]
    fn a_wrong_word_is_named() {
        for (text, named) in [
            ("abort@nowhere", "nowhere"),
            ("explode@sync", "explode"),
            ("abort@sync#x", "abort@sync#x"),
            ("sabotage:kindly", "kindly"),
            ("delay:9-1@sync", "delay:9-1"),
            ("hello", "hello"),
        ] {
            let wrong = Plan::parse(text).err().expect(text);
            assert!(wrong.contains(named), "{wrong}");
        }
    }

    #[test]
    fn the_numbered_operation_suffers_and_no_other() {
        let plan = Plan::parse("eio@write.seg#2").expect("it is right");
        let (seg, idx) = (Path::new("a/0.seg.tmp"), Path::new("a/0.idx"));
        assert_eq!(plan.before("write", idx), None);
        assert_eq!(plan.before("write", seg), None, "the first");
        assert_eq!(plan.before("sync", seg), None);
        assert_eq!(plan.before("write", seg), Some(Action::Error(libc::EIO)));
        assert_eq!(plan.before("write", seg), None);
    }
}
