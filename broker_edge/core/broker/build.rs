//! Writes the files of the console into the program: `OUT_DIR/ui.rs`, which src/service/admin/console.rs includes.
//!
//! They are compressed here, once, and not for each page that asks for them.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;

/// The types of the files that are served. Others, such as licences, are not in the program.
const TYPES: [(&str, &str); 3] = [
    ("css", "text/css; charset=utf-8"),
    ("js", "text/javascript; charset=utf-8"),
    ("svg", "image/svg+xml"),
];

fn main() {
    let folder = Path::new(&variable("CARGO_MANIFEST_DIR")).join("../../ui");
    println!("cargo::rerun-if-changed={}", folder.display());
    let mut files = Vec::new();
    collect(&folder, &folder, &mut files);
    files.sort();
    let index = read(&folder.join("index.html"));
    let out = PathBuf::from(variable("OUT_DIR"));
    let mut text = format!(
        "const INDEX: &str = {:?};\n",
        String::from_utf8_lossy(&index)
    );
    writeln!(text, "static FILES: [UiFile; {}] = [", files.len()).expect("memory takes it");
    for (number, (name, kind)) in files.iter().enumerate() {
        let bytes = compressed(&read(&folder.join(name)));
        // The checksum of the content, which gzip has at its end, and the length.
        let tag: String = bytes[bytes.len() - 8..]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        fs::write(out.join(format!("ui-{number}.gz")), &bytes).expect("OUT_DIR takes files");
        writeln!(
            text,
            "    ({name:?}, {kind:?}, \"\\\"{tag}\\\"\", include_bytes!(concat!(env!(\"OUT_DIR\"), \"/ui-{number}.gz\"))),"
        )
        .expect("memory takes it");
    }
    text.push_str("];\n");
    fs::write(out.join("ui.rs"), text).expect("OUT_DIR takes files");
}

/// The files below `folder` that are served: their path from `root` on, and their type.
fn collect(root: &Path, folder: &Path, files: &mut Vec<(String, &'static str)>) {
    let entries =
        fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    for entry in entries {
        let path = entry.expect("a folder can be read to its end").path();
        if path.is_dir() {
            collect(root, &path, files);
            continue;
        }
        let extension = path
            .extension()
            .and_then(|extension| extension.to_str())
            .unwrap_or_default();
        if let Some((_, kind)) = TYPES.iter().find(|(of, _)| *of == extension) {
            let name = path.strip_prefix(root).expect("it is below it");
            files.push((name.to_str().expect("names are ASCII").to_owned(), kind));
        }
    }
}

fn read(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn compressed(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).expect("memory takes it");
    encoder.finish().expect("memory takes it")
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"))
}
