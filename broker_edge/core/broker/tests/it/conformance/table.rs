//! Generates `docs/conformance.md` from the lists of clauses and the comments above the tests, and compares it.
//!
//! Every clause for servers has a test or a reason why not. A missing one fails this suite, so the table cannot claim
//! untested clauses. `make conformance-table` regenerates the document.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

struct Standard {
    title: &'static str,
    /// The prefix in comments above tests.
    mark: &'static str,
    clauses: &'static str,
}

const STANDARDS: [Standard; 2] = [
    Standard {
        title: "MQTT 5",
        mark: "v5:",
        clauses: include_str!("mqtt5.txt"),
    },
    Standard {
        title: "MQTT 3.1.1",
        mark: "v311:",
        clauses: include_str!("mqtt311.txt"),
    },
];

struct Clause<'a> {
    id: &'a str,
    binds: &'a str,
    what: &'a str,
    because: &'a str,
}

fn clauses(list: &str) -> Vec<Clause<'_>> {
    let lines = list.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let mut parts = line.splitn(3, ' ');
            let (Some(id), Some(binds), Some(rest)) = (parts.next(), parts.next(), parts.next())
            else {
                panic!("not a clause: {line}");
            };
            let (what, because) = rest.split_once(" | ").unwrap_or((rest, ""));
            Clause {
                id,
                binds,
                what,
                because,
            }
        })
        .collect()
}

fn here() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/conformance")
}

/// The tests by clause, `file::test`.
fn tests(mark: &str) -> BTreeMap<String, Vec<String>> {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut files: Vec<PathBuf> = std::fs::read_dir(here())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    for file in files
        .iter()
        .filter(|file| file.extension().is_some_and(|end| end == "rs"))
    {
        let module = file.file_stem().unwrap().to_string_lossy();
        let source = std::fs::read_to_string(file).unwrap();
        let mut named: Vec<&str> = Vec::new();
        let mut is_test = false;
        for line in source.lines() {
            if let Some(ids) = line
                .strip_prefix("/// ")
                .and_then(|line| line.strip_prefix(mark))
            {
                named.extend(ids.split_whitespace());
            } else if line == "#[test]" {
                is_test = true;
            } else if let Some(rest) = line.strip_prefix("fn ") {
                if is_test {
                    let name = rest.split('(').next().unwrap();
                    for id in named.drain(..) {
                        found
                            .entry(id.to_owned())
                            .or_default()
                            .push(format!("{module}::{name}"));
                    }
                }
                is_test = false;
                named.clear();
            }
        }
    }
    found
}

/// `file::test` below the crate, for a clause that another suite covers.
fn assert_is_a_test(place: &str) {
    let (file, name) = place.split_once("::").expect("a file and a test");
    let source = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file));
    let is_there = source.is_ok_and(|source| source.contains(&format!("#[test]\nfn {name}(")));
    assert!(is_there, "there is no test {place}");
}

fn document() -> String {
    let mut out = String::from(
        "# Conformance by clause\n\n\
         Made by `make conformance-table` from the lists of clauses and the tests of `broker_edge/core/broker/tests/it/conformance`; a test of that\n\
         suite fails when this page is out of date or a clause that binds the server has no test. The words are ours, the ids the standard's.\n\n\
         *pass*: the tests named ask a real broker over TCP, with packets made without our codec, in every run of the suite. *client*: the clause binds\n\
         clients alone. *does not apply*: it is about a server that lacks what this one has. *pending*: not asked yet.\n",
    );
    for standard in &STANDARDS {
        let clauses = clauses(standard.clauses);
        let tests = tests(standard.mark);
        let count = |binds: &str| {
            clauses
                .iter()
                .filter(|clause| clause.binds == binds)
                .count()
        };
        let _ = write!(
            out,
            "\n## {}\n\n{} statements: {} pass, {} pass elsewhere, {} bind the client, {} do not apply, {} pending.\n\n| clause | what | test | result |\n|---|---|---|---|\n",
            standard.title,
            clauses.len(),
            count("server"),
            count("elsewhere"),
            count("client"),
            count("choice"),
            count("pending"),
        );
        for clause in &clauses {
            let names = tests.get(clause.id).map_or(String::new(), |names| {
                names
                    .iter()
                    .map(|name| format!("`{name}`"))
                    .collect::<Vec<_>>()
                    .join(", ")
            });
            let result = match clause.binds {
                "server" => "pass".to_owned(),
                "client" => "client".to_owned(),
                "elsewhere" => format!("pass: `{}`", clause.because),
                "choice" => format!("does not apply: {}", clause.because),
                _ => format!("pending: {}", clause.because),
            };
            let _ = writeln!(
                out,
                "| MQTT-{} | {} | {names} | {result} |",
                clause.id, clause.what
            );
        }
    }
    out
}

#[test]
fn every_clause_that_binds_the_server_has_a_test_and_every_test_names_clauses_that_exist() {
    for standard in &STANDARDS {
        let clauses = clauses(standard.clauses);
        let mut tests = tests(standard.mark);
        for clause in &clauses {
            let named = tests.remove(clause.id);
            match clause.binds {
                "server" => assert!(
                    named.is_some(),
                    "{} {} has no test",
                    standard.title,
                    clause.id
                ),
                "choice" | "pending" => {
                    assert!(
                        named.is_none(),
                        "{} {} has a test: it is no longer {}",
                        standard.title,
                        clause.id,
                        clause.binds
                    );
                    assert!(
                        !clause.because.is_empty(),
                        "{} {} does not say why",
                        standard.title,
                        clause.id
                    );
                }
                "elsewhere" => {
                    assert!(
                        named.is_none(),
                        "{} {} has a test here as well",
                        standard.title,
                        clause.id
                    );
                    assert_is_a_test(clause.because);
                }
                "client" => {}
                other => panic!("{} {}: {other}?", standard.title, clause.id),
            }
        }
        assert!(
            tests.is_empty(),
            "{} has no such clauses: {tests:?}",
            standard.title
        );
    }
}

#[test]
fn the_table_in_the_documentation_is_the_one_that_these_tests_make() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/conformance.md");
    let wanted = document();
    if std::env::var_os("HEADWATER_WRITE_CONFORMANCE").is_some() {
        std::fs::write(&path, &wanted).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == wanted,
        "docs/conformance.md is out of date: make conformance-table"
    );
}
