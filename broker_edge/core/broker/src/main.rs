//! `headwaterd`: the broker alone, without Python. See [`headwater_broker::cli`].

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    std::process::exit(headwater_broker::cli::run(&arguments));
}
