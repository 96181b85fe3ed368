//! The command without Python around it.
#![forbid(unsafe_code)]

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    std::process::exit(headwater_bench::run(&arguments));
}
