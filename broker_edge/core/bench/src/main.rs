//! The command without Python.
#![forbid(unsafe_code)]

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    std::process::exit(headwater_bench::run(&arguments));
}
