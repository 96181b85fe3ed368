//! What the system tells of processes: the processor time of one on this machine.

use std::fs;

use rustix::process::{Resource, getrlimit, setrlimit};

/// Time on a processor, user and system, of all threads that are alive. Nothing when the process is gone or not ours to see.
pub fn cpu_ns(pid: u32) -> Option<u64> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let of_task = |entry: fs::DirEntry| {
        let text = fs::read_to_string(entry.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    };
    Some(tasks.flatten().filter_map(of_task).sum())
}

/// Raises the limit of open files to what the system allows. When it stays, connecting says so.
pub fn raise_open_files() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
}
