//! What `cluster init` makes, and what it leaves alone.

use headwater_cluster::key::Revision;
use headwater_etcd::MetaStore;
use headwater_etcd::fake::{FakeStore, Loss};
use headwater_log::{Class, ClassConfig, Log, OpenError};

use super::*;
use crate::cli::output::EXIT_OK;
use crate::state::StateStore;

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread();
    { runtime }.build().unwrap().block_on(future)
}

struct Site {
    dir: tempfile::TempDir,
    store: FakeStore,
    plan: Plan,
    settings: ClusterSettings,
}

impl Site {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let secret_file = dir.path().join("secret");
        let settings = ClusterSettings {
            name: Some("c".to_owned()),
            node: Some("n1".to_owned()),
            secret_file: Some(secret_file.clone()),
            ..ClusterSettings::default()
        };
        let plan = Plan {
            cluster: Node::new("c").unwrap(),
            nodes: ["n1", "n2", "n3"]
                .map(|name| Node::new(name).unwrap())
                .to_vec(),
            log_id: None,
            secret_file,
            own: Node::new("n1").unwrap(),
            log: LogConfig {
                maintain_every: None,
                classes: vec![ClassConfig::new(Class::Internal)],
                ..LogConfig::new(dir.path().join("data"))
            },
        };
        Self {
            dir,
            store: FakeStore::default(),
            plan,
            settings,
        }
    }

    fn make(&self) -> Result<String, (i32, String)> {
        let made = block_on(make(&self.store, &self.plan, &self.settings));
        made.map_err(|Exit(code, reason)| (code, reason))
    }

    fn refusal(&self) -> String {
        let (code, reason) = self.make().expect_err("it is refused");
        assert_eq!(code, EXIT_REFUSED, "{reason}");
        reason
    }

    fn meta(&self) -> Option<Meta> {
        let read = block_on(self.store.get("/headwater/c/meta")).unwrap();
        read.found.map(|found| Meta::decode(&found.value).unwrap())
    }

    fn put(&self, key: &str, value: &[u8]) {
        let cas = self.store.cas(key, Revision(0), value.to_vec(), None);
        assert!(matches!(block_on(cas), CasOutcome::Done(_)));
    }

    fn secret(&self) -> String {
        std::fs::read_to_string(&self.plan.secret_file).unwrap()
    }
}

#[test]
fn a_cluster_is_made_once_and_stays_as_it_is() {
    use std::os::unix::fs::PermissionsExt;
    let site = Site::new();
    let told = site.make().unwrap();
    let (meta, secret) = (site.meta().unwrap(), site.secret());
    assert_eq!(meta.nodes, ["n1", "n2", "n3"]);
    assert!(
        told.contains(&meta.log_id) && !told.contains(secret.trim()),
        "{told}"
    );
    let mode = std::fs::metadata(&site.plan.secret_file)
        .unwrap()
        .permissions()
        .mode();
    assert_eq!((mode & 0o777, secret.len()), (0o600, 17));
    assert_eq!(site.make().unwrap(), told);
    assert_eq!((site.meta().unwrap(), site.secret()), (meta, secret));
}

#[test]
fn a_log_id_of_the_settings_is_that_of_the_cluster() {
    let mut site = Site::new();
    site.plan.log_id = Some(LogId::from_random([7; 16]));
    site.make().unwrap();
    assert_eq!(site.meta().unwrap().log_id(), LogId::from_random([7; 16]));
    site.plan.log_id = Some(LogId::from_random([8; 16]));
    assert!(site.refusal().contains("exists already, with log id"));
}

#[test]
fn a_cluster_of_other_nodes_is_left_alone() {
    let mut site = Site::new();
    site.make().unwrap();
    site.plan.nodes[2] = Node::new("n4").unwrap();
    let reason = site.refusal();
    assert!(
        reason.contains("exists already, with the nodes n1, n2, n3"),
        "{reason}"
    );
}

#[test]
fn the_secret_of_a_cluster_that_exists_is_not_made_anew() {
    let site = Site::new();
    site.make().unwrap();
    std::fs::remove_file(&site.plan.secret_file).unwrap();
    assert!(site.refusal().contains("copy it from another node to"));
    assert!(!site.plan.secret_file.exists());
}

#[test]
fn keys_without_a_cluster_are_refused() {
    let site = Site::new();
    site.put("/headwater/c/shards/0", b"{}");
    assert!(
        site.refusal()
            .contains("etcd has /headwater/c/shards/0 but no /headwater/c/meta")
    );
    assert!(!site.plan.secret_file.exists() && site.meta().is_none());
}

#[test]
fn an_unknown_outcome_is_said_and_the_next_run_settles_it() {
    let site = Site::new();
    site.store.lose(Loss::Answer);
    let (code, reason) = site.make().expect_err("it is not known");
    assert!(
        code == EXIT_FAILED && reason.contains("run the command again"),
        "{reason}"
    );
    assert!(site.make().is_ok());
}

#[test]
fn a_secret_file_that_holds_something_else_is_named() {
    let site = Site::new();
    std::fs::write(&site.plan.secret_file, "notes\n").unwrap();
    let (code, reason) = site.make().expect_err("it is no secret");
    assert!(
        code == EXIT_CONFIG && reason.starts_with("cluster.secret_file: "),
        "{reason}"
    );
    assert!(site.meta().is_none());
    let mut elsewhere = Site::new();
    elsewhere.plan.secret_file = elsewhere.dir.path().join("none/secret");
    let (code, reason) = elsewhere.make().expect_err("there is no folder");
    assert!(
        code == EXIT_FAILED && reason.contains("cannot write"),
        "{reason}"
    );
}

#[test]
fn arguments_and_settings_are_checked_first() {
    let exit = |text: &str| {
        let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        run(&words)
    };
    assert_eq!(exit("init --help"), EXIT_OK);
    let node = "--set cluster.node=n1 --set cluster.name=c --set cluster.listen=127.0.0.1:1 --set cluster.secret_file=s \
                --set cluster.etcd.endpoints=[http://127.0.0.1:1]";
    for (text, code) in [
        ("", EXIT_USAGE),
        ("leave", EXIT_USAGE),
        ("init", EXIT_USAGE),
        ("init --nodes", EXIT_USAGE),
        ("init --nodes n1,n2", EXIT_USAGE),
        ("init --nodes n1,n2,n2", EXIT_USAGE),
        ("init --nodes n1,n2,n/3", EXIT_USAGE),
        ("init --node n1,n2,n3", EXIT_USAGE),
        ("init --nodes n1,n2,n3", EXIT_CONFIG),
        ("init --nodes n1,n2,n3 --config no/such/file", EXIT_FAILED),
    ] {
        assert_eq!(exit(text), code, "{text}");
    }
    assert_eq!(exit(&format!("init --nodes n2,n3,n4 {node}")), EXIT_REFUSED);
    // Nobody listens there.
    assert_eq!(exit(&format!("init --nodes n1,n2,n3 {node}")), EXIT_FAILED);
}

impl Site {
    /// A log of its own with some records, which nobody has open.
    fn with_log() -> (Self, LogId) {
        let site = Self::new();
        let id = site.append("first");
        (site, id)
    }

    /// Opens the log alone, as its broker does.
    fn append(&self, payload: &str) -> LogId {
        let (log, _) = Log::open(self.plan.log.clone(), Seams::system()).expect("a log");
        let store = StateStore::open(&log, u64::MAX).unwrap();
        store.put("session/a", payload.as_bytes()).unwrap();
        drop(store);
        log.shutdown();
        log.id()
    }

    fn shard(&self) -> Option<ShardKey> {
        let read = block_on(self.store.get("/headwater/c/shards/0")).unwrap();
        let decode = |found: KeyValue| ShardKey::decode(&found.value).unwrap();
        read.found.map(decode)
    }

    fn refuses_alone(&self) -> bool {
        let opened = Log::open(self.plan.log.clone(), Seams::system());
        matches!(opened, Err(OpenError::OfCluster { .. }))
    }
}

#[test]
fn the_log_of_a_broker_alone_becomes_the_first_copy_with_its_id_and_secret() {
    let (site, log_id) = Site::with_log();
    let told = site.make().unwrap();
    assert_eq!(site.meta().unwrap().log_id(), log_id);
    let key = site.shard().unwrap();
    assert_eq!(key.in_sync, key.replicas);
    assert_eq!((key.replicas.len(), key.leader), (1, None));
    assert_eq!(
        (key.epoch.0, key.committed),
        (2, 1),
        "two starts, one record"
    );
    let text = std::fs::read_to_string(site.plan.log.dir.join("log.meta")).unwrap();
    assert!(text.contains(site.secret().trim()), "the secret of the log");
    assert!(site.refuses_alone());
    assert_eq!(site.make().unwrap(), told, "again");
    assert_eq!(site.shard().unwrap().replicas, key.replicas);
}

#[test]
fn whatever_was_interrupted_is_finished_by_the_next_run() {
    // Before the key of the shard was answered; after it, with a broker that went on meanwhile; before `meta`.
    let (site, log_id) = Site::with_log();
    site.store.lose(Loss::Answer);
    let (code, reason) = site.make().expect_err("it is not known");
    assert!(code == EXIT_FAILED && reason.contains("run the command again"));
    let first = site.shard().unwrap();
    assert!(site.meta().is_none() && !site.refuses_alone());
    assert_eq!(site.append("second"), log_id);
    site.make().unwrap();
    assert_eq!(site.shard().unwrap().replicas, first.replicas);
    assert!(site.refuses_alone());
    site.store.delete("/headwater/c/meta");
    site.make().unwrap();
    assert_eq!(site.meta().unwrap().log_id(), log_id);
}

#[test]
fn a_log_is_not_taken_for_another_one() {
    let (site, _) = Site::with_log();
    std::fs::write(&site.plan.secret_file, "0011223344556677\n").unwrap();
    assert!(site.refusal().contains("another secret than the log"));
    assert!(site.shard().is_none() && !site.refuses_alone());

    let (mut site, _) = Site::with_log();
    site.make().unwrap();
    site.plan.own = Node::new("n2").unwrap();
    site.store.delete("/headwater/c/meta");
    assert!(site.refusal().contains("belongs to node n1"));
    let other = Site::with_log().0;
    site.plan.log = other.plan.log.clone();
    site.plan.secret_file = other.plan.secret_file.clone();
    assert!(site.refusal().contains("unfinished cluster of n1/"));
    site.plan.own = Node::new("n1").unwrap();
    site.store.delete("/headwater/c/shards/0");
    site.put("/headwater/c/members/n1", b"{}");
    assert!(site.refusal().contains("members/n1 but no"));
}

#[test]
fn a_folder_whose_cluster_etcd_has_lost_begins_no_other_one() {
    let (site, _) = Site::with_log();
    site.make().unwrap();
    for key in ["meta", "shards/0"] {
        site.store.delete(&format!("/headwater/c/{key}"));
    }
    let reason = site.refusal();
    assert!(
        reason.contains("etcd has nothing of its cluster"),
        "{reason}"
    );
}

#[test]
fn a_cluster_that_exists_does_not_take_another_log() {
    let (mut site, _) = Site::with_log();
    let log = site.plan.log.clone();
    site.plan.log.dir = site.dir.path().join("empty");
    site.make().unwrap();
    site.plan.log = log;
    assert!(site.refusal().contains("holds the log of a broker alone"));
    assert!(!site.refuses_alone());
}

#[test]
fn a_log_that_is_open_is_left_alone() {
    let (site, _) = Site::with_log();
    let (log, _) = Log::open(site.plan.log.clone(), Seams::system()).expect("a log");
    let reason = site.refusal();
    assert!(reason.contains("is in use"), "{reason}");
    assert!(site.shard().is_none() && !site.plan.secret_file.exists());
    drop(log);
}

#[test]
fn a_log_that_has_lost_records_begins_no_cluster() {
    let mut site = Site::new();
    site.plan.log.segment_bytes = 64 << 10;
    for _ in 0..4 {
        site.append(&"x".repeat(40 << 10));
    }
    let partition = site.plan.log.dir.join("internal-0");
    let listed = std::fs::read_dir(&partition).unwrap();
    let mut segments: Vec<_> = listed.map(|entry| entry.unwrap().path()).collect();
    segments.retain(|path| path.extension().is_some_and(|end| end == "seg"));
    segments.sort();
    std::fs::remove_file(&segments[1]).unwrap();
    let reason = site.refusal();
    assert!(reason.contains("internal-0 has lost offsets"), "{reason}");
    assert!(!site.refuses_alone() && site.shard().is_none());
}
