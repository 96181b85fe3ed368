//! What the operating system says of this process, under the names that the clients of Prometheus use. Linux only.

use std::fs;
use std::sync::atomic::AtomicU64;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::clock::now_us;
use crate::descriptors::open_files_max;

/// Ticks of `/proc/self/stat` in a second: USER_HZ, the same on every Linux.
const TICKS_PER_S: f64 = 100.0;

/// Values at a scrape.
#[derive(Debug, PartialEq)]
struct Process {
    cpu_s: f64,
    threads: i64,
    started_s: f64,
    virtual_bytes: i64,
    resident_bytes: i64,
}

/// Registers what can be read now.
pub fn register(registry: &mut Registry) {
    let stat = fs::read_to_string("/proc/self/stat").ok();
    if let Some(process) = stat.and_then(|stat| parse(&stat, booted_s())) {
        process.register(registry);
    }
    if let Ok(open) = fs::read_dir("/proc/self/fd") {
        // One is that of the folder.
        let open = i64::try_from(open.count()).unwrap_or(i64::MAX) - 1;
        gauge(registry, "process_open_fds", "Open file descriptors", open);
    }
    let max = i64::try_from(open_files_max()).unwrap_or(i64::MAX);
    gauge(
        registry,
        "process_max_fds",
        "Limit of open file descriptors",
        max,
    );
}

fn gauge(registry: &mut Registry, name: &str, help: &str, value: i64) {
    let gauge = <Gauge>::default();
    gauge.set(value);
    registry.register(name, help, gauge);
}

impl Process {
    fn register(&self, registry: &mut Registry) {
        let cpu = Counter::<f64, AtomicU64>::default();
        cpu.inc_by(self.cpu_s);
        registry.register("process_cpu_seconds", "User and system processor time", cpu);
        let started = Gauge::<f64, AtomicU64>::default();
        started.set(self.started_s);
        let help = "Start of the process in Unix seconds";
        registry.register("process_start_time_seconds", help, started);
        for (name, help, value) in [
            ("process_threads", "Threads", self.threads),
            (
                "process_virtual_memory_bytes",
                "Virtual memory",
                self.virtual_bytes,
            ),
            (
                "process_resident_memory_bytes",
                "Resident memory",
                self.resident_bytes,
            ),
        ] {
            gauge(registry, name, help, value);
        }
    }
}

/// When the system started, in Unix seconds. `/proc/stat` says it too, but is hidden from services (`ProcSubset=pid`).
fn booted_s() -> f64 {
    let up = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    now_us() as f64 / 1e6 - (up.tv_sec as f64 + up.tv_nsec as f64 / 1e9)
}

/// `stat` is `/proc/self/stat`, whose second field is a name that may have blanks and brackets (proc(5)).
fn parse(stat: &str, booted_s: f64) -> Option<Process> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    // The first is number 3 of the manual page.
    let field = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
    Some(Process {
        cpu_s: (field(14)? + field(15)?) / TICKS_PER_S,
        threads: field(20)? as i64,
        started_s: booted_s + field(22)? / TICKS_PER_S,
        virtual_bytes: field(23)? as i64,
        resident_bytes: field(24)? as i64 * i64::try_from(rustix::param::page_size()).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_are_those_of_the_manual_page() {
        let stat =
            "7 (a) b (c)) S 1 1 1 0 -1 4194560 1 0 0 0 250 50 0 0 20 0 9 0 1000 4096000 10 184467";
        let found = parse(stat, 1_700_000_000.0).unwrap();
        let expected = Process {
            cpu_s: 3.0,
            threads: 9,
            started_s: 1_700_000_010.0,
            virtual_bytes: 4_096_000,
            resident_bytes: 10 * i64::try_from(rustix::param::page_size()).unwrap(),
        };
        assert_eq!(found, expected);
        assert_eq!(parse("7 (a) S 1", 0.0), None);
        assert_eq!(parse("", 0.0), None);
    }

    #[test]
    fn a_process_shows_its_own_values() {
        let mut registry = Registry::default();
        register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for name in [
            "cpu_seconds_total",
            "open_fds",
            "resident_memory_bytes",
            "start_time_seconds",
        ] {
            let line = text
                .lines()
                .find(|line| line.starts_with(&format!("process_{name} ")));
            let value: f64 = line.unwrap().rsplit(' ').next().unwrap().parse().unwrap();
            assert!(value >= 0.0, "{name} {value}");
        }
    }
}
