//! `headwaterd cluster init`: makes a cluster in etcd, before its nodes start for the first time.
//!
//! It writes one key, `meta`, by compare-and-swap, and the file with the secret of the log. It can be repeated: a cluster
//! that exists stays as it is. It opens no log.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use headwater_cluster::marks::Node;
use headwater_etcd::{CasOutcome, Client, MetaStore};
use headwater_log::LogId;
use ring::rand::{SecureRandom, SystemRandom};

use super::output::{EXIT_CONFIG, EXIT_FAILED, EXIT_REFUSED, EXIT_USAGE, print, say};
use crate::cluster::keys::{Keys, Meta, NODES_MAX};
use crate::cluster_files::{ClusterFiles, etcd_options};
use crate::config::{ClusterSettings, Config, ConfigError, Source};
use crate::regular_file;

pub const USAGE: &str = "\
usage: headwaterd cluster init --nodes NAME,NAME,NAME [--config FILE] [--set KEY=VALUE]...

Makes the cluster of the settings `cluster` in etcd, and the file `cluster.secret_file` if it does not exist. Run it once,
with the settings of one of the nodes; then copy the file to the other nodes and start all of them.
Exit codes: 0 the cluster exists, 1 failed, 2 usage, 4 refused, 5 invalid settings.
";

/// Why it failed, with its exit code.
struct Exit(i32, String);

fn failed(reason: impl ToString) -> Exit {
    Exit(EXIT_FAILED, reason.to_string())
}

fn refused(reason: impl Into<String>) -> Exit {
    Exit(EXIT_REFUSED, reason.into())
}

/// What is to be made.
struct Plan {
    cluster: Node,
    nodes: Vec<Node>,
    log_id: Option<LogId>,
    secret_file: PathBuf,
    /// There is a log already, so its cluster has to be there, too.
    has_log: bool,
}

/// Runs `cluster` with the arguments after it and returns the exit code.
pub fn run(arguments: &[String]) -> i32 {
    match arguments.split_first() {
        Some((verb, rest)) if verb == "init" => match init(rest) {
            Ok(sentence) => print(&sentence),
            Err(Exit(code, reason)) => {
                say(&format!("headwater cluster init: {reason}"));
                code
            }
        },
        Some((word, [])) if word == "--help" || word == "-h" => print(USAGE),
        _ => {
            say(USAGE.trim_end());
            EXIT_USAGE
        }
    }
}

fn init(arguments: &[String]) -> Result<String, Exit> {
    if arguments
        .iter()
        .any(|word| word == "--help" || word == "-h")
    {
        return Ok(USAGE.to_owned());
    }
    let (source, nodes) = parse(arguments)?;
    let config = Config::load(&source).map_err(|error| match error {
        ConfigError::Unreadable { .. } => failed(error),
        _ => Exit(EXIT_CONFIG, error.to_string()),
    })?;
    let plan = plan(&config, nodes)?;
    let options = etcd_options(&config.cluster.etcd).map_err(|error| Exit(EXIT_CONFIG, error))?;
    let client = Client::new(options).map_err(|error| Exit(EXIT_CONFIG, error.to_string()))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.map_err(failed)?;
    runtime.block_on(make(&client, &plan, &config.cluster))
}

fn parse(arguments: &[String]) -> Result<(Source, Vec<Node>), Exit> {
    let usage = |reason: String| Exit(EXIT_USAGE, reason);
    let (mut file, mut set, mut nodes) = (None, Vec::new(), None);
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let (name, inline) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (word.as_str(), None),
        };
        let value = inline.or_else(|| words.next().cloned());
        let value = value.ok_or_else(|| usage(format!("{name} needs a value; see --help")))?;
        match name {
            "--config" => file = Some(PathBuf::from(value)),
            "--set" => set.push(value),
            "--nodes" => nodes = Some(names(&value).map_err(usage)?),
            _ => return Err(usage(format!("unknown argument `{word}`; see --help"))),
        }
    }
    let nodes = nodes.ok_or_else(|| usage("--nodes is needed: --nodes n1,n2,n3".to_owned()))?;
    Ok((Source::with_environment(file, set), nodes))
}

fn names(text: &str) -> Result<Vec<Node>, String> {
    let names: Result<Vec<_>, _> = text.split(',').map(|name| Node::new(name.trim())).collect();
    let names = names.map_err(|error| format!("--nodes: {error}"))?;
    let distinct: BTreeSet<_> = names.iter().collect();
    if names.len() != NODES_MAX || distinct.len() != NODES_MAX {
        return Err(format!(
            "--nodes: write the {NODES_MAX} different names of the nodes, for example n1,n2,n3"
        ));
    }
    Ok(names)
}

fn plan(config: &Config, nodes: Vec<Node>) -> Result<Plan, Exit> {
    let invalid = |reason: &str| Exit(EXIT_CONFIG, reason.to_owned());
    let settings = &config.cluster;
    let (Some(name), Some(own)) = (&settings.name, &settings.node) else {
        return Err(invalid(
            "cluster.name: is needed; docs/howto/cluster.md shows the settings of a node",
        ));
    };
    if !nodes.iter().any(|node| node.as_str() == own) {
        return Err(refused(format!(
            "--nodes does not name {own}, which is cluster.node of these settings"
        )));
    }
    Ok(Plan {
        cluster: Node::new(name).map_err(failed)?,
        nodes,
        // The settings were checked to contain a UUID.
        log_id: config.log.id.as_deref().and_then(|id| id.parse().ok()),
        secret_file: settings.secret_file.clone().unwrap_or_default(),
        has_log: config.data_dir.join("log.meta").exists(),
    })
}

async fn make(
    store: &impl MetaStore,
    plan: &Plan,
    settings: &ClusterSettings,
) -> Result<String, Exit> {
    let keys = Keys::new(&plan.cluster);
    let listing = store.get_all(keys.prefix()).await.map_err(failed)?;
    if let Some(found) = listing.keys.iter().find(|one| one.key == keys.meta()) {
        return existing(plan, &keys, &found.value, settings);
    }
    if let Some(other) = listing.keys.first() {
        return Err(refused(format!(
            "etcd has {} but no {}: remove the keys of the old cluster, or give this one another name",
            other.key,
            keys.meta()
        )));
    }
    if plan.has_log {
        return Err(refused(
            "the folder of data_dir holds the log of a broker alone, and a cluster begins with empty folders: name another folder",
        ));
    }
    make_secret(&plan.secret_file)?;
    ClusterFiles::load(settings).map_err(|error| Exit(EXIT_CONFIG, error))?;
    let meta = Meta::new(plan.log_id.map_or_else(random_id, Ok)?, &plan.nodes);
    match store.put_if_absent(&keys.meta(), meta.encode(), None).await {
        CasOutcome::Done(_) => Ok(told(plan, &meta)),
        CasOutcome::Conflict(Some(found)) => existing(plan, &keys, &found.value, settings),
        CasOutcome::Conflict(None) => Err(failed(
            "etcd refused the key and does not have it; try again",
        )),
        CasOutcome::NotDone(error) => Err(failed(error)),
        CasOutcome::Unknown(error) => Err(failed(format!(
            "{error}: it is not known whether the cluster was made; run the command again"
        ))),
    }
}

/// A cluster that exists has to be the one that was asked for.
fn existing(
    plan: &Plan,
    keys: &Keys,
    value: &[u8],
    settings: &ClusterSettings,
) -> Result<String, Exit> {
    let meta = Meta::decode(value).map_err(|error| failed(format!("{}: {error}", keys.meta())))?;
    let wanted: BTreeSet<_> = plan.nodes.iter().map(Node::as_str).collect();
    if wanted != meta.nodes.iter().map(String::as_str).collect() {
        return Err(refused(format!(
            "cluster {} exists already, with the nodes {}; give this one another name",
            plan.cluster,
            meta.nodes.join(", ")
        )));
    }
    if let Some(id) = plan.log_id.filter(|id| *id != meta.log_id()) {
        return Err(refused(format!(
            "cluster {} exists already, with log id {}, and log.id is {id}; remove log.id or give the cluster another name",
            plan.cluster, meta.log_id
        )));
    }
    if !plan.secret_file.exists() {
        return Err(refused(format!(
            "cluster {} exists already, so its secret does too: copy it from another node to {}",
            plan.cluster,
            plan.secret_file.display()
        )));
    }
    ClusterFiles::load(settings).map_err(|error| Exit(EXIT_CONFIG, error))?;
    Ok(told(plan, &meta))
}

fn told(plan: &Plan, meta: &Meta) -> String {
    format!(
        "cluster {} has the nodes {} and log {}; its secret is in {}\n",
        plan.cluster,
        meta.nodes.join(", "),
        meta.log_id,
        plan.secret_file.display()
    )
}

/// An existing file stays: it may be that of a run whose outcome is not known.
fn make_secret(file: &Path) -> Result<(), Exit> {
    let write = || -> std::io::Result<()> {
        let mut options = OpenOptions::new();
        let mut out = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(file)?;
        let number = u64::from_be_bytes(random().map_err(std::io::Error::other)?);
        out.write_all(format!("{number:016x}\n").as_bytes())?;
        out.sync_all()?;
        regular_file::sync_name(file)
    };
    match write() {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(failed(format!(
            "cluster.secret_file: cannot write {}: {error}",
            file.display()
        ))),
        _ => Ok(()),
    }
}

fn random_id() -> Result<LogId, Exit> {
    Ok(LogId::from_random(random().map_err(failed)?))
}

fn random<const BYTES: usize>() -> Result<[u8; BYTES], &'static str> {
    let mut bytes = [0; BYTES];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| "the system gave no random numbers")?;
    Ok(bytes)
}

#[cfg(test)]
#[path = "cluster_tests.rs"]
mod tests;
