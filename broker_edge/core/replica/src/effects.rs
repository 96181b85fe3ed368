//! One effect after the other, on the log, the replica file and the outputs.

use std::io;

use headwater_cluster::frames::Frame;
use headwater_cluster::marks::{Epoch, Offset, Trust};
use headwater_cluster::replica_file::ReplicaFile;
use headwater_cluster::shard::{Effect, Event, StopReason};
use headwater_log::ReplicaError;

use crate::chunks::ChunkError;
use crate::file;
use crate::open::held;
use crate::replica::{Output, Replica};
use crate::stream::Stream;

/// Why the effects behind one are not done.
pub(crate) enum Halt {
    /// What the disk has is not known any more.
    Failed(String),
    /// It can not be done now. Until the stream begins anew nothing is taken.
    Later(String),
    /// The log can do it only when it is opened.
    BeginAnew { partition: usize, at: Offset },
}

fn failed(error: &dyn std::fmt::Display) -> Halt {
    Halt::Failed(error.to_string())
}

fn is_full(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::StorageFull
}

fn has_new_hints_only(before: &ReplicaFile, now: &ReplicaFile) -> bool {
    let now = ReplicaFile {
        hints: before.hints.clone(),
        ..now.clone()
    };
    now == *before
}

impl Replica {
    pub(crate) fn carry_out(&mut self, effect: Effect) -> Result<(), Halt> {
        match effect {
            Effect::Send { to, mut frame } => {
                if let Frame::Synced { credit_bytes, .. } = &mut frame {
                    *credit_bytes = self.take_credit();
                }
                self.outputs.push(Output::Send { to, frame });
            }
            Effect::WriteFile(file) => self.write_file(file)?,
            Effect::Stand { number, epoch } => self.stand(number, epoch)?,
            Effect::Lead { epoch } => self.lead(epoch)?,
            Effect::Take {
                partition,
                epoch,
                edges,
                bytes,
            } => {
                let log = &self.log.partitions()[partition];
                if self.follow_again_at_ms.is_none() {
                    let taken = self.locals[partition].chunk(log, epoch, edges, &bytes);
                    self.taken(partition, taken)?;
                }
            }
            Effect::Truncate { partition, to } => self.truncate(partition, to)?,
            Effect::Restart { partition, at } => self.restart(partition, at)?,
            Effect::RemoveBelow { partition, to } => {
                let to = headwater_log::Offset(to.0);
                self.log.partitions()[partition].advance_log_start(to);
            }
            Effect::CommitTo { partition, to } => {
                let to = headwater_log::Offset(to.0);
                self.log.partitions()[partition].commit_to(to);
            }
            Effect::Stream {
                to,
                stamp,
                from,
                credit_bytes,
            } => {
                let stream = Stream::new(stamp, from, credit_bytes);
                self.streams.insert(to, stream);
            }
            Effect::Credit { to, bytes } => {
                if let Some(stream) = self.streams.get_mut(&to) {
                    stream.give(bytes);
                }
            }
            Effect::EndStreams => self.streams.clear(),
            Effect::Cas { expected, key } => self.outputs.push(Output::Cas { expected, key }),
            Effect::ReadKey => self.outputs.push(Output::ReadKey),
            Effect::Office(office) => self.outputs.push(Output::Office(office)),
            Effect::LeaderIs(leader) => self.outputs.push(Output::LeaderIs(leader)),
            Effect::Alarm(alarm) => self.outputs.push(Output::Alarm(alarm)),
            Effect::Stop(reason) => self.end(reason),
            // The clock of the shard has kept these.
            Effect::Arm(_) | Effect::Disarm(_) => {}
        }
        Ok(())
    }

    fn write_file(&mut self, file: ReplicaFile) -> Result<(), Halt> {
        match file::save(&*self.files, &self.dir, &file) {
            Ok(()) => self.file = file,
            // What is committed is noted to spare work at the next start. It can wait until there is room.
            Err(error) if is_full(&error) && has_new_hints_only(&self.file, &file) => {
                tracing::warn!(%error, "what is committed is not noted for the next start");
            }
            Err(error) => {
                return Err(Halt::Failed(format!("replacing the replica file: {error}")));
            }
        }
        Ok(())
    }

    fn stand(&mut self, number: u64, epoch: Epoch) -> Result<(), Halt> {
        for (partition, local) in self.log.partitions().iter().zip(&mut self.locals) {
            let stood = partition.follow(headwater_log::Epoch(epoch.0));
            stood.map_err(|error| failed(&error))?;
            local.run = None;
            local.owed.clear();
            local.epochs.clear();
        }
        let partitions: Vec<_> = self.log.partitions().iter().map(held).collect();
        for (held, local) in partitions.iter().zip(&mut self.locals) {
            (local.written, local.synced) = (held.end, held.synced);
        }
        self.follow_again_at_ms = None;
        self.events.push_back(Event::Stood { number, partitions });
        Ok(())
    }

    fn lead(&mut self, epoch: Epoch) -> Result<(), Halt> {
        for at in 0..self.locals.len() {
            // The whole cluster is in doubt, and this one has the most.
            self.settle_doubt(at).map_err(|halt| match halt {
                Halt::Failed(reason) | Halt::Later(reason) => Halt::Failed(reason),
                Halt::BeginAnew { .. } => Halt::Failed("it has a hole and can not lead".to_owned()),
            })?;
            let led = self.log.partitions()[at].lead(headwater_log::Epoch(epoch.0));
            let start = led.map_err(|error| failed(&error))?;
            let local = &mut self.locals[at];
            local.epochs.push_back((epoch, Offset(start.0)));
        }
        self.has_doubts = false;
        self.note_progress();
        Ok(())
    }

    fn taken(&mut self, partition: usize, taken: Result<(), ChunkError>) -> Result<(), Halt> {
        let credit = self.credit_bytes;
        match taken {
            Ok(()) => {
                let run = self.locals[partition].run.as_ref();
                if run.is_some_and(|run| run.is_long(credit)) {
                    // An answer that gives credit back.
                    self.events.push_back(Event::Room(self.has_room));
                }
                Ok(())
            }
            Err(ChunkError::Log(ReplicaError::ReadOnly { reason, .. })) => {
                Err(Halt::Failed(reason))
            }
            Err(ChunkError::Order | ChunkError::Log(ReplicaError::OutOfOrder { .. })) => {
                self.events.push_back(Event::TakeRefused);
                Ok(())
            }
            Err(error) => Err(Halt::Later(error.to_string())),
        }
    }

    fn truncate(&mut self, at: usize, to: Offset) -> Result<(), Halt> {
        let partition = &self.log.partitions()[at];
        match partition.truncate(headwater_log::Offset(to.0)) {
            Ok(()) => {
                self.locals[at].cut_to(to);
                Ok(())
            }
            Err(ReplicaError::NoCut { .. }) => Err(Halt::BeginAnew {
                partition: at,
                at: self.locals[at].leader_start,
            }),
            Err(ReplicaError::Later { reason, .. }) => Err(Halt::Later(reason)),
            Err(error) => Err(failed(&error)),
        }
    }

    fn restart(&mut self, partition: usize, at: Offset) -> Result<(), Halt> {
        let one = &self.log.partitions()[partition];
        let marks = [one.log_start(), one.high_watermark()];
        if marks.iter().all(|mark| mark.0 == at.0) && one.gaps().is_empty() {
            return self.truncate(partition, at);
        }
        Err(Halt::BeginAnew { partition, at })
    }

    /// Copies what is left of a partition in doubt, so that it is on the disk and nothing is behind it.
    pub(crate) fn settle_doubt(&mut self, at: usize) -> Result<(), Halt> {
        let partition = &self.log.partitions()[at];
        match partition.doubt() {
            Some(_) => self.truncate(at, Offset(partition.written().0)),
            None => Ok(()),
        }
    }

    fn take_credit(&mut self) -> u32 {
        let credit = self.credit_bytes;
        let locals = self.locals.iter_mut();
        locals.map(|local| local.take_credit(credit)).sum()
    }

    /// Ends this life: the next one begins these partitions anew. What they had and acknowledged is gone from here on.
    pub(crate) fn begin_anew(&mut self, partitions: Vec<(usize, Offset)>) {
        self.is_over = true;
        let file = ReplicaFile {
            trust: Trust::Suspect,
            ..self.file.clone()
        };
        if let Err(Halt::Failed(reason)) = self.write_file(file) {
            tracing::error!(reason, "this replica stops");
            return self.end(StopReason::DiskFailed);
        }
        self.log.shutdown();
        let mut all = vec![None; self.locals.len()];
        for (partition, at) in partitions {
            all[partition] = Some(at);
        }
        self.outputs.push(Output::BeginAnew(all));
    }
}
