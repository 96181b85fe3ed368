//! The CPU time of a process on this machine, and the limit of open files.

use std::fs;

use rustix::process::{Resource, getrlimit, setrlimit};

/// User and system CPU time of all live threads. `None` when the process is gone or not readable by us.
pub fn cpu_ns(pid: u32) -> Option<u64> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let of_task = |entry: fs::DirEntry| {
        let text = fs::read_to_string(entry.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    };
    Some(tasks.flatten().filter_map(of_task).sum())
}

/// Raises the limit of open files to the hard limit. If that fails, connecting reports the lack of descriptors.
pub fn raise_open_files() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
}
