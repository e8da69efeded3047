//! Changes of streams and queues, each in a transaction of its own.

use std::sync::Arc;

use crate::ports::broker::{BrokerError, QueueSpec, StreamSpec, StreamState};

use super::env::{self, QueueRow, StreamRow};
use super::inbox::{Answer, Change};
use super::queue::QueueShared;
use super::record;
use super::stream::{Config, Stream};
use super::writer::{Failed, Writer, commit_failed};

/// Messages removed by one transaction, so that publications wait only shortly.
const TRIM_ROWS: usize = 1_024;
/// Longest name of a stream or durable, in bytes.
const NAME_BYTES_MAX: usize = 255;

/// A trim on its way.
pub(super) struct Trim {
    stream: Arc<Stream>,
    /// First sequence to keep.
    keep: u64,
    answer: Option<Answer<()>>,
}

impl Trim {
    pub fn answer(mut self, result: Result<(), BrokerError>) {
        if let Some(answer) = self.answer.take() {
            let _ = answer.send(result);
        }
    }
}

impl Writer {
    pub(super) fn change(&mut self, change: Change) {
        match change {
            Change::Ensure(spec, answer) => {
                let _ = answer.send(self.ensure(&spec));
            }
            Change::Delete(name, answer) => {
                let _ = answer.send(self.delete(&name));
            }
            Change::Join(stream, spec, answer) => {
                let _ = answer.send(self.join(&stream, &spec));
            }
            Change::Trim(stream, keep, answer) => self.trims.push_back(Trim {
                stream,
                keep,
                answer: Some(answer),
            }),
            Change::Bucket(spec, answer) => {
                let _ = answer.send(self.ensure_bucket(&spec));
            }
            Change::Put(put, answer) => {
                let _ = answer.send(Ok(self.put_entry(&put)));
            }
            Change::Floors(answer) => {
                let stored = self.try_store_floors();
                let _ = answer.send(stored.map_err(|failed| self.change_refused(failed)));
            }
            Change::Ping(answer) => {
                let _ = answer.send(Ok(()));
            }
        }
    }

    fn ensure(&mut self, spec: &StreamSpec) -> Result<StreamState, BrokerError> {
        let stream = match self.registry.stream(&spec.name) {
            None => self.create(spec)?,
            Some(stream) => {
                if !spec.foreign && !differences(spec, &stream.config()).is_empty() {
                    self.reconfigure(&stream, spec)?;
                }
                stream
            }
        };
        let differences = differences(spec, &stream.config());
        if differences.is_empty() {
            return Ok(stream.state(self.clock.now()));
        }
        Err(BrokerError::Mismatch {
            stream: spec.name.clone(),
            differences,
        })
    }

    fn create(&mut self, spec: &StreamSpec) -> Result<Arc<Stream>, BrokerError> {
        check_name("stream", &spec.name)?;
        self.wanted_config(spec)?;
        let streams = self.registry.streams();
        let id = (0..self.settings.streams_max)
            .find(|id| streams.iter().all(|stream| stream.id != *id))
            .ok_or_else(|| {
                BrokerError::Refused(format!("there are {} streams, as many as may be", streams.len()))
            })?;
        let created = self.write_new_stream(spec, id);
        let row = created.map_err(|failed| self.change_refused(failed))?;
        let stream = Stream::load(&self.env, &spec.name, &row, &self.settings)
            .map_err(|error| BrokerError::Unavailable(error.to_string()))?;
        let stream = Arc::new(stream);
        self.registry.put_stream(Arc::clone(&stream));
        Ok(stream)
    }

    fn write_new_stream(&self, spec: &StreamSpec, id: u32) -> Result<StreamRow, Failed> {
        let txn = self.env.write()?;
        // Two streams of one name must differ in it, however quickly one follows the other.
        let newest = env::meta(&txn, "created_ns")?.unwrap_or(0);
        let now = u64::try_from(self.clock.now().0)
            .unwrap_or(0)
            .saturating_mul(1_000_000);
        let created = now.max(newest + 1);
        env::set_meta(&txn, "created_ns", created)?;
        let row = StreamRow {
            id,
            created_ns: i64::try_from(created).unwrap_or(i64::MAX),
            subjects: spec.subjects.clone(),
            message_bytes_max: spec.message_bytes_max as u64,
            last_sequence: 0,
        };
        env::create_stream_tables(&txn, id)?;
        env::put_stream(&txn, &spec.name, &row)?;
        txn.commit().map_err(commit_failed)?;
        Ok(row)
    }

    fn reconfigure(&mut self, stream: &Arc<Stream>, spec: &StreamSpec) -> Result<(), BrokerError> {
        let config = self.wanted_config(spec)?;
        let row = row(stream, &config);
        let stored = self.write_row(stream, &row);
        stored.map_err(|failed| self.change_refused(failed))?;
        stream.set_config(config);
        Ok(())
    }

    fn write_row(&self, stream: &Stream, row: &StreamRow) -> Result<(), Failed> {
        let txn = self.env.write()?;
        env::put_stream(&txn, stream.name(), row)?;
        txn.commit().map_err(commit_failed)?;
        Ok(())
    }

    /// The configuration that `spec` asks for, if no other stream takes the same subjects.
    fn wanted_config(&self, spec: &StreamSpec) -> Result<Config, BrokerError> {
        let config = Config::new(spec.subjects.clone(), spec.message_bytes_max as u64)
            .map_err(|what| BrokerError::Refused(format!("stream {}: {what}", spec.name)))?;
        for other in self.registry.streams() {
            let taken = other.config();
            let shared = config
                .filters
                .iter()
                .find(|wanted| taken.filters.iter().any(|f| f.overlaps(wanted)));
            if let Some(shared) = shared.filter(|_| other.name() != spec.name) {
                return Err(BrokerError::Refused(format!(
                    "subjects {} of stream {} overlap with stream {}",
                    shared.as_str(),
                    spec.name,
                    other.name()
                )));
            }
        }
        Ok(config)
    }

    fn delete(&mut self, name: &str) -> Result<(), BrokerError> {
        let no_stream = || BrokerError::NoStream(name.to_owned());
        let stream = self.registry.stream(name).ok_or_else(no_stream)?;
        let deleted = self.write_deletion(&stream);
        deleted.map_err(|failed| self.change_refused(failed))?;
        self.registry.remove_stream(&stream);
        stream.break_off(&no_stream().to_string());
        Ok(())
    }

    fn write_deletion(&self, stream: &Stream) -> Result<(), Failed> {
        let txn = self.env.write()?;
        env::delete_stream(&txn, stream.name(), stream.id)?;
        txn.commit().map_err(commit_failed)?;
        Ok(())
    }

    fn join(&mut self, stream: &Arc<Stream>, spec: &QueueSpec) -> Result<Arc<QueueShared>, BrokerError> {
        // The stream may have been deleted since the caller looked it up.
        stream
            .tail()
            .check()
            .map_err(|_| BrokerError::NoStream(spec.stream.clone()))?;
        let queue = match self.registry.queue(stream, &spec.durable) {
            Some(queue) => queue,
            None => self.create_queue(stream, spec)?,
        };
        queue.join(spec)?;
        Ok(queue)
    }

    fn create_queue(
        &mut self,
        stream: &Arc<Stream>,
        spec: &QueueSpec,
    ) -> Result<Arc<QueueShared>, BrokerError> {
        check_name("durable", &spec.durable)?;
        if spec.filters.is_empty() {
            let what = format!("durable {} needs at least one filter", spec.durable);
            return Err(BrokerError::Refused(what));
        }
        let row = QueueRow {
            filters: spec.filters.clone(),
            created_ms: self.clock.now().0,
            floor: 0,
            consumer_sequence: 0,
        };
        let queue = QueueShared::new(
            Arc::clone(stream),
            &spec.durable,
            row.clone(),
            0,
            Arc::clone(&self.inbox),
            Arc::clone(&self.clock),
            Arc::downgrade(&self.env),
        )
        .map_err(BrokerError::Refused)?;
        let stored = self.write_queue(stream, &spec.durable, &row);
        stored.map_err(|failed| self.change_refused(failed))?;
        let queue = Arc::new(queue);
        self.registry.put_queue(Arc::clone(&queue));
        Ok(queue)
    }

    fn write_queue(&self, stream: &Stream, durable: &str, row: &QueueRow) -> Result<(), Failed> {
        let txn = self.env.write()?;
        env::put_queue(&txn, stream.id, durable, row)?;
        txn.commit().map_err(commit_failed)?;
        Ok(())
    }

    /// Does a stretch of the oldest trim.
    pub(super) fn trim_on(&mut self) {
        let Some(trim) = self.trims.pop_front() else {
            return;
        };
        match self.write_trim(&trim) {
            Ok(true) => trim.answer(Ok(())),
            Ok(false) => self.trims.push_front(trim),
            Err(failed) => {
                let error = self.change_refused(failed);
                trim.answer(Err(error));
            }
        }
    }

    /// Removes some messages and what the index says of them; whether the trim is finished.
    fn write_trim(&self, trim: &Trim) -> Result<bool, Failed> {
        let stream = &trim.stream;
        let (first, last) = {
            let tail = stream.tail();
            if tail.check().is_err() {
                // Deleted, so everything below is gone.
                return Ok(true);
            }
            (tail.first(), tail.last())
        };
        let keep = trim.keep.min(last + 1);
        if keep <= first {
            return Ok(true);
        }
        let txn = self.env.write()?;
        let tables = env::stream_tables(&txn, stream.id)?;
        let mut cursor = txn.cursor(tables.messages)?;
        let mut total_before = 0;
        let mut next = first;
        let mut row = cursor.first()?;
        for _ in 0..TRIM_ROWS {
            let Some((key, value)) = row else { break };
            let sequence = env::sequence_of(&key)?;
            if sequence >= keep {
                break;
            }
            let entry = record::Entry::read_row(sequence, value)
                .map_err(|error| env::StoreError::Damaged(format!("stream {}: {error}", stream.name())))?;
            let newest = txn.get(tables.subjects, entry.subject())?;
            if newest.is_some_and(|newest| newest == sequence.to_be_bytes()) {
                txn.delete(tables.subjects, entry.subject())?;
            }
            cursor.delete()?;
            total_before = entry.total;
            next = sequence + 1;
            row = cursor.first()?;
        }
        drop(cursor);
        let config = stream.config();
        env::put_stream(
            &txn,
            stream.name(),
            &StreamRow {
                last_sequence: last,
                ..self::row(stream, &config)
            },
        )?;
        txn.commit().map_err(commit_failed)?;
        stream.trimmed(next, total_before);
        Ok(next >= keep)
    }
}

fn row(stream: &Stream, config: &Config) -> StreamRow {
    StreamRow {
        id: stream.id,
        created_ns: stream.identity.created_ns,
        subjects: config.subjects.clone(),
        message_bytes_max: config.message_bytes_max,
        last_sequence: stream.tail().last(),
    }
}

fn check_name(what: &str, name: &str) -> Result<(), BrokerError> {
    let bad = |c: char| c.is_control() || c.is_whitespace() || matches!(c, '.' | '*' | '>' | '/' | '\\');
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(bad) {
        return Err(BrokerError::Refused(format!(
            "{name:?} is not a name for a {what}"
        )));
    }
    Ok(())
}

/// One line for each difference that matters, as for a stream on a server: ours has to match in every point,
/// a stream of others only has to carry the subjects.
pub(super) fn differences(spec: &StreamSpec, config: &Config) -> Vec<String> {
    let mut differences = Vec::new();
    if spec.foreign {
        for wanted in &spec.subjects {
            let carried = super::filter::Filter::parse(wanted)
                .is_ok_and(|wanted| config.filters.iter().any(|filter| filter.overlaps(&wanted)));
            if !carried {
                differences.push(format!("no subject of it matches {wanted}"));
            }
        }
        return differences;
    }
    let sorted = |subjects: &[String]| {
        let mut subjects = subjects.to_vec();
        subjects.sort();
        subjects
    };
    if sorted(&spec.subjects) != sorted(&config.subjects) {
        differences.push(format!(
            "subjects are {:?}, expected {:?}",
            config.subjects, spec.subjects
        ));
    }
    if spec.message_bytes_max as u64 != config.message_bytes_max {
        differences.push(format!(
            "largest message is {} bytes, expected {}",
            config.message_bytes_max, spec.message_bytes_max
        ));
    }
    if spec.replicas > 1 {
        differences.push(format!(
            "replicas is 1, expected {}; the embedded broker keeps one copy",
            spec.replicas
        ));
    }
    differences
}
