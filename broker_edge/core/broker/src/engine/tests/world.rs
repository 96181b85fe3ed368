//! A broker that can be killed: a new one starts on a copy of the files as they were at that moment, however far its
//! writers were.

use std::fs;

use super::peer::Peer;
use super::*;

pub(super) fn small(dir: &Path) -> LogConfig {
    let mut config = LogConfig::new(dir);
    config.segment_bytes = 256 << 10;
    config
}

pub(super) fn copy_all(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a temporary folder");
    for entry in fs::read_dir(from).expect("the folder of a log") {
        let entry = entry.expect("the folder of a log");
        let (path, copy) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy_all(&path, &copy);
        } else {
            // A spare may be renamed at this moment.
            let _ = fs::copy(&path, &copy);
        }
    }
}

/// A broker that can be killed.
pub(super) struct World {
    root: tempfile::TempDir,
    lives: usize,
    pub(super) rig: Rig,
}

impl World {
    pub(super) fn new() -> Self {
        let root = dir();
        let rig = Rig::open_with(small(&root.path().join("0")));
        Self {
            root,
            lives: 0,
            rig,
        }
    }

    pub(super) fn with(rig: Rig) -> Self {
        Self {
            root: dir(),
            lives: 0,
            rig,
        }
    }

    /// Kills the broker and starts another on a copy of its files.
    pub(super) fn kill(&mut self, peers: &mut [&mut Peer]) {
        for peer in peers {
            peer.key = None;
            peer.connected = false;
        }
        let folder = |life: usize| self.root.path().join(life.to_string());
        let (from, to) = (folder(self.lives), folder(self.lives + 1));
        copy_all(&from, &to);
        self.lives += 1;
        let rig = Rig::open_with(small(&to));
        std::mem::replace(&mut self.rig, rig).crash();
        let _ = fs::remove_dir_all(from);
    }

    /// Another engine takes over the open log.
    pub(super) fn remade(
        self,
        leaves: bool,
        peers: &mut [&mut Peer],
        meanwhile: impl FnOnce(&Log),
    ) -> Self {
        for peer in peers {
            peer.key = None;
            peer.connected = false;
        }
        let rig = self.rig.remade(leaves, meanwhile);
        Self { rig, ..self }
    }

    /// Runs turns until the peers have nothing left to send and the broker waits for nothing.
    pub(super) fn settle(&mut self, peers: &mut [&mut Peer]) {
        loop {
            let quiet_at = self.rig.quiet_at();
            self.rig.turn();
            let mut busy = false;
            for peer in peers.iter_mut() {
                busy |= peer.work(&mut self.rig);
            }
            if busy || self.rig.engine.has_more() || self.rig.engine.is_behind_log() {
                continue;
            }
            if quiet_at.is_none() || quiet_at != self.rig.quiet_at() {
                self.rig.wait_for_disk();
                continue;
            }
            let waits = peers
                .iter()
                .any(|peer| peer.key.is_some() && (!peer.connected || !peer.flights.is_empty()))
                || self.rig.engine.clients.sessions().any(|(_, session)| {
                    session.active && (session.has_work() || session.window.front().is_some())
                });
            if !waits {
                return;
            }
            if self.rig.moved.recv_timeout(DEADLINE).is_err() {
                self.tell_who_waits(peers);
            }
        }
    }

    fn tell_who_waits(&self, peers: &[&mut Peer]) -> ! {
        let peers: Vec<String> = peers
            .iter()
            .map(|peer| {
                let Peer {
                    client_id,
                    key,
                    connected,
                    flights,
                    held,
                    ..
                } = &**peer;
                format!(
                    "{client_id} {key:?} connected {connected} flights {flights:?} held {held:?}"
                )
            })
            .collect();
        let sessions: Vec<String> = self
            .rig
            .engine
            .clients
            .sessions()
            .map(|(_, session)| {
                format!(
                    "{} of {:?} active {} has work {} window {:?}",
                    session.client_id,
                    session.conn,
                    session.active,
                    session.has_work(),
                    session.window.front()
                )
            })
            .collect();
        let changes = self.rig.engine.store.changes();
        panic!("somebody waits for ever: {peers:#?} {sessions:#?} {changes:?}")
    }

    /// The payloads of the log, in order.
    pub(super) fn log(&self) -> Vec<String> {
        let partition = self
            .rig
            .log
            .by_name("telemetry-0")
            .expect("there by default");
        let mut texts = Vec::new();
        let mut next = partition.log_start();
        while next < partition.high_watermark() {
            for batch in partition.read(next, 1 << 20).expect("nothing is damaged") {
                next = batch.next_offset();
                texts.extend(
                    batch
                        .records()
                        .map(|record| String::from_utf8_lossy(record.payload).into_owned()),
                );
            }
        }
        texts
    }
}
