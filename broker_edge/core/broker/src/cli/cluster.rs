//! `headwaterd cluster init`: makes a cluster in etcd, before its nodes start for the first time.
//!
//! It writes one key, `meta`, by compare-and-swap, and the file with the secret of the log. It can be repeated: a cluster
//! that exists stays as it is.
//!
//! A `data_dir` with the log of a broker alone becomes the first copy of the cluster. Then the key of the shard comes
//! first, which names this folder as the only one in sync, then the folder is given to the node, and `meta` comes last:
//! no node starts before it is there. Whatever was done when it is interrupted, the next run does the rest.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use headwater_cluster::key::ShardKey;
use headwater_cluster::marks::{DiskId, Member, Node};
use headwater_etcd::{CasOutcome, Client, KeyValue, MetaStore};
use headwater_log::{LogConfig, LogId, Seams, Secret, folder_owner};
use headwater_replica::OwnLog;
use ring::rand::{SecureRandom, SystemRandom};

use super::output::{EXIT_CONFIG, EXIT_FAILED, EXIT_REFUSED, EXIT_USAGE, print, say};
use crate::cluster::keys::{Keys, Meta, NODES_MAX};
use crate::cluster_files::{ClusterFiles, etcd_options};
use crate::config::{ClusterSettings, Config, ConfigError, Source};
use crate::log_settings::log_config;
use crate::regular_file;

pub const USAGE: &str = "\
usage: headwaterd cluster init --nodes NAME,NAME,NAME [--config FILE] [--set KEY=VALUE]...

Makes the cluster of the settings `cluster` in etcd, and the file `cluster.secret_file` if it does not exist. Run it once,
with the settings of one of the nodes; then copy the file to the other nodes and start all of them. If `data_dir` has the
log of a broker that is stopped, the cluster goes on with that log; the folders of the other nodes have to be empty.
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
    /// The node of the settings, and its log.
    own: Node,
    log: LogConfig,
}

/// What `data_dir` has.
enum Folder {
    Empty,
    /// The log of a broker alone.
    Alone(LogId),
    /// It was given to this node.
    Given(LogId, DiskId),
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
        own: Node::new(own).map_err(failed)?,
        log: log_config(config),
    })
}

/// # Errors
/// The folder is that of another node, or its `log.meta` is not read.
fn folder(plan: &Plan) -> Result<Folder, Exit> {
    let dir = &plan.log.dir;
    Ok(match folder_owner(dir, &Seams::system()).map_err(failed)? {
        None => Folder::Empty,
        Some(found) => match found.member {
            None => Folder::Alone(found.log_id),
            Some((node, disk)) if node == plan.own.as_str() => {
                Folder::Given(found.log_id, DiskId(disk.0))
            }
            Some((node, _)) => {
                return Err(refused(format!(
                    "{} belongs to node {node}, and cluster.node is {}; name the folder of this node in data_dir",
                    dir.display(),
                    plan.own
                )));
            }
        },
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
    let folder = folder(plan)?;
    let is_of_before = |one: &&KeyValue| matches!(folder, Folder::Empty) || one.key != keys.shard();
    if let Some(other) = listing.keys.iter().find(is_of_before) {
        return Err(refused(format!(
            "etcd has {} but no {}: remove the keys of the old cluster, or give this one another name",
            other.key,
            keys.meta()
        )));
    }
    let shard = listing.keys.first();
    let log_id = match folder {
        Folder::Empty => {
            make_secret(&plan.secret_file, None)?;
            plan.log_id.map_or_else(random_id, Ok)?
        }
        Folder::Alone(log_id) => {
            give_folder(store, plan, &keys, shard).await?;
            log_id
        }
        // An earlier run was interrupted.
        Folder::Given(log_id, disk) => {
            let member = own_member(plan, disk);
            if shard.map(|found| disk_of(plan, found)).transpose()? != Some(disk) {
                return Err(refused(format!(
                    "{} is the folder of {member}, and etcd has nothing of its cluster: restore etcd from its backup",
                    plan.log.dir.display()
                )));
            }
            log_id
        }
    };
    ClusterFiles::load(settings).map_err(|error| Exit(EXIT_CONFIG, error))?;
    let meta = Meta::new(log_id, &plan.nodes);
    match store.put_if_absent(&keys.meta(), meta.encode(), None).await {
        CasOutcome::Done(_) => Ok(told(plan, &meta)),
        CasOutcome::Conflict(Some(found)) => existing(plan, &keys, &found.value, settings),
        CasOutcome::Conflict(None) => Err(failed(
            "etcd refused the key and does not have it; try again",
        )),
        CasOutcome::NotDone(error) => Err(failed(error)),
        CasOutcome::Unknown(error) => Err(unknown(&error)),
    }
}

/// Makes the folder of a log of its own the first copy of the cluster.
async fn give_folder(
    store: &impl MetaStore,
    plan: &Plan,
    keys: &Keys,
    shard: Option<&KeyValue>,
) -> Result<(), Exit> {
    let (dir, seams) = (&plan.log.dir, Seams::system());
    let own = OwnLog::look(plan.log.clone(), &seams).map_err(|error| refused(error.to_string()))?;
    make_secret(&plan.secret_file, Some(own.secret))?;
    let disk = match shard {
        Some(found) => disk_of(plan, found)?,
        None => DiskId(u64::from_ne_bytes(random().map_err(failed)?)),
    };
    if shard.is_none() {
        let alone = BTreeSet::from([own_member(plan, disk)]);
        let key = ShardKey {
            replicas: alone.clone(),
            leader: None,
            epoch: own.epoch,
            in_sync: alone,
            committed: own.committed(),
        };
        let value = key.encode().into_bytes();
        match store.put_if_absent(&keys.shard(), value, None).await {
            CasOutcome::Done(_) => {}
            CasOutcome::Conflict(_) => return Err(failed("another run makes this cluster")),
            CasOutcome::NotDone(error) => return Err(failed(error)),
            CasOutcome::Unknown(error) => return Err(unknown(&error)),
        }
    }
    let given = own.give_to(dir, &seams, &plan.own, disk);
    given.map_err(failed)
}

fn own_member(plan: &Plan, disk: DiskId) -> Member {
    Member {
        node: plan.own.clone(),
        disk,
    }
}

/// The folder that the key of a cluster without `meta` names: that of an earlier run of this command.
fn disk_of(plan: &Plan, found: &KeyValue) -> Result<DiskId, Exit> {
    let key = ShardKey::decode(&found.value);
    let key = key.map_err(|error| failed(format!("{}: {error}", found.key)))?;
    match key.replicas.first() {
        Some(only) if key.replicas.len() == 1 && only.node == plan.own => Ok(only.disk),
        _ => {
            let names: Vec<_> = key.replicas.iter().map(Member::to_string).collect();
            Err(refused(format!(
                "{} in etcd is of an unfinished cluster of {}: run this command there again, or remove that key",
                found.key,
                names.join(", ")
            )))
        }
    }
}

fn unknown(error: &headwater_etcd::Error) -> Exit {
    failed(format!(
        "{error}: it is not known whether the cluster was made; run the command again"
    ))
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
    if let Folder::Alone(_) = folder(plan)? {
        return Err(refused(format!(
            "cluster {} exists already, and {} holds the log of a broker alone: name an empty folder, or give the cluster \
             another name",
            plan.cluster,
            plan.log.dir.display()
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

/// With a new secret, or that of a log. An existing file stays: it may be that of a run whose outcome is not known.
fn make_secret(file: &Path, of_log: Option<Secret>) -> Result<(), Exit> {
    let write = || -> std::io::Result<()> {
        let mut options = OpenOptions::new();
        let mut out = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(file)?;
        let bytes = match of_log {
            Some(secret) => *secret.as_bytes(),
            None => random().map_err(std::io::Error::other)?,
        };
        let number = u64::from_be_bytes(bytes);
        out.write_all(format!("{number:016x}\n").as_bytes())?;
        out.sync_all()?;
        regular_file::sync_name(file)
    };
    match write() {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(failed(format!(
            "cluster.secret_file: cannot write {}: {error}",
            file.display()
        ))),
        Err(_) => has_secret(file, of_log),
        Ok(()) => Ok(()),
    }
}

/// The file that exists has to be the one of the log.
fn has_secret(file: &Path, of_log: Option<Secret>) -> Result<(), Exit> {
    let Some(secret) = of_log else {
        return Ok(());
    };
    let found = crate::cluster_files::secret_in(file).map_err(|error| Exit(EXIT_CONFIG, error))?;
    if found == secret {
        return Ok(());
    }
    Err(refused(format!(
        "cluster.secret_file: {} has another secret than the log in data_dir; name a file that does not exist",
        file.display()
    )))
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
