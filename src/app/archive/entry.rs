//! An entry of the archive: what people see of an instance, its history and its inputs, as compressed JSON.

use std::io::{self, Read as _, Write as _};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::kernel::recorded::{Recorded, RecordedBody};
use crate::kernel::view::InstanceView;
use crate::ports::control::{ArchivedInstance, HistoryView};

/// Format that this binary writes and reads.
const FORMAT: u8 = 1;
/// Bytes of an entry as JSON, at most.
const JSON_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// What is left of an instance that does not fit.
const BARE: [&str; 12] = [
    "tenant",
    "saga",
    "key",
    "generation",
    "definition",
    "phase",
    "version",
    "started",
    "updated",
    "ended",
    "start_event",
    "outcome",
];

/// `I`: an input, as JSON that nobody has read where the entry comes from the archive.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry<I> {
    format: u8,
    /// When it was archived.
    archived_at: String,
    /// Something was left out, since it did not fit: of the history the oldest part.
    truncated: bool,
    instance: Map<String, Value>,
    /// The newest first.
    history: Vec<Value>,
    /// One for each entry of the history, the oldest first; `None`: they were not archived.
    #[serde(skip_serializing_if = "Option::is_none")]
    inputs: Option<Vec<I>>,
    /// Inputs of which it is not said what they carried, since it did not fit: the newest.
    #[serde(default, skip_serializing_if = "is_zero")]
    inputs_left_out: usize,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
const fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// The inputs of an instance, as far as an entry is to have them.
pub struct Inputs {
    /// The oldest first.
    pub inputs: Vec<Recorded>,
    /// How many of the first ones say what they carried.
    pub whole: usize,
}

impl Entry<Recorded> {
    /// `is_cut`: the history is longer than `history`.
    pub fn new(
        view: &InstanceView,
        history: impl Iterator<Item = HistoryView>,
        is_cut: bool,
        inputs: Option<Inputs>,
        archived_at: String,
    ) -> Result<Self, serde_json::Error> {
        let instance = match serde_json::to_value(view)? {
            Value::Object(members) => members,
            _ => Map::new(),
        };
        let history: Result<Vec<Value>, _> = history.map(serde_json::to_value).collect();
        let inputs_left_out = inputs
            .as_ref()
            .map_or(0, |taken| taken.inputs.len().saturating_sub(taken.whole));
        Ok(Self {
            format: FORMAT,
            archived_at,
            truncated: is_cut,
            instance,
            history: history?,
            inputs: inputs.map(|taken| taken.inputs),
            inputs_left_out,
        })
    }

    /// The entry, compressed, in at most `most` bytes as far as that is possible.
    pub fn pack(mut self, most: usize) -> Vec<u8> {
        loop {
            let packed = self.compressed();
            if packed.len() <= most || !self.shrink() {
                return packed;
            }
        }
    }

    fn compressed(&self) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        let json = serde_json::to_vec(self).expect("an entry is plain data");
        encoder.write_all(&json).expect("writing to memory");
        encoder.finish().expect("writing to memory")
    }

    /// Leaves something out; false: there is nothing more.
    fn shrink(&mut self) -> bool {
        if let Some(inputs) = &mut self.inputs {
            let whole = inputs.len().saturating_sub(self.inputs_left_out);
            if whole == 0 {
                // The history says as much.
                self.inputs = None;
                self.inputs_left_out = 0;
                self.truncated = true;
                return true;
            }
            let rows = self.history.iter().rev().skip(whole / 2);
            for (input, row) in inputs[whole / 2..whole].iter_mut().zip(rows) {
                let kind = row["kind"].as_str().unwrap_or_default().to_owned();
                input.input = RecordedBody::Missing { kind };
            }
            self.inputs_left_out = inputs.len() - whole / 2;
            return true;
        }
        self.truncated = true;
        if !self.history.is_empty() {
            self.history.truncate(self.history.len() / 2);
            return true;
        }
        let is_bare = self.instance.get("steps") == Some(&json!([]))
            && self.instance.get("state") == Some(&Value::Null);
        self.instance.retain(|name, _| BARE.contains(&name.as_str()));
        for list in ["steps", "ledger", "timers"] {
            self.instance.insert(list.to_owned(), json!([]));
        }
        self.instance.insert("state".to_owned(), Value::Null);
        self.instance.insert("deferred".to_owned(), json!(0));
        !is_bare
    }
}

impl Entry<Box<RawValue>> {
    /// # Errors
    /// What is wrong with the bytes.
    pub fn unpack(bytes: &[u8]) -> io::Result<Self> {
        let mut json = Vec::new();
        let mut decoder = GzDecoder::new(bytes).take(JSON_BYTES_MAX);
        decoder.read_to_end(&mut json)?;
        let entry: Self = serde_json::from_slice(&json)?;
        if entry.format != FORMAT {
            let message = format!(
                "the entry has format {}, this binary reads {FORMAT}",
                entry.format
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        Ok(entry)
    }

    pub fn into_instance(self) -> ArchivedInstance {
        let mut instance = self.instance;
        instance.insert("archived".to_owned(), json!(true));
        instance.insert("archived_at".to_owned(), json!(self.archived_at));
        if self.truncated {
            instance.insert("truncated".to_owned(), json!(true));
        }
        if self.inputs_left_out > 0 {
            instance.insert("inputs_left_out".to_owned(), json!(self.inputs_left_out));
        }
        ArchivedInstance {
            instance,
            history: self.history,
            inputs: self.inputs,
            inputs_left_out: self.inputs_left_out,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An entry with so many rows, and so many inputs.
    fn entry(rows: usize, inputs: Option<usize>) -> Entry<Recorded> {
        let mut instance = Map::new();
        for name in BARE {
            instance.insert(name.to_owned(), json!("x"));
        }
        // It cannot be compressed.
        let noise = |seed: usize| blake3::hash(&seed.to_le_bytes()).to_hex().to_string();
        let state: Vec<String> = (0..500).map(noise).collect();
        instance.insert("state".to_owned(), json!(state));
        instance.insert("steps".to_owned(), json!([{"name": "a"}]));
        let input = |seed: usize| {
            let data = [0, 1, 2, 3].map(|part| noise(seed * 4 + part + 9_000));
            serde_json::from_value(json!({
                "cluster": "0195c3a1000070008000000000000001", "tenant": "acme", "saga": "s", "key": "k",
                "generation": 1, "definition": "d", "id": "i", "time_ms": 1, "outcome": "applied", "notes": [],
                "input": {"signal": {"name": "go", "data": data, "by": ""}},
            }))
            .expect("an input")
        };
        Entry {
            format: FORMAT,
            archived_at: "now".to_owned(),
            truncated: false,
            instance,
            history: (0..rows)
                .map(|row| json!({"input": noise(row + 1_000), "kind": "signal go"}))
                .collect(),
            inputs: inputs.map(|count| (0..count).map(input).collect()),
            inputs_left_out: 0,
        }
    }

    /// What comes back, with its inputs read.
    fn read(packed: &[u8]) -> Entry<Recorded> {
        let entry = Entry::unpack(packed).expect("an entry");
        let inputs = entry.inputs.map(|inputs| {
            let inputs = inputs.iter().map(|input| serde_json::from_str(input.get()));
            inputs.collect::<Result<_, _>>().expect("inputs")
        });
        Entry {
            format: entry.format,
            archived_at: entry.archived_at,
            truncated: entry.truncated,
            instance: entry.instance,
            history: entry.history,
            inputs,
            inputs_left_out: entry.inputs_left_out,
        }
    }

    #[test]
    fn an_entry_comes_back_as_it_was() {
        for inputs in [None, Some(0), Some(10)] {
            let packed = entry(10, inputs).pack(1 << 20);
            assert_eq!(read(&packed), entry(10, inputs));
        }
        let packed = entry(10, None).pack(1 << 20);
        assert!(Entry::unpack(&packed[..packed.len() / 2]).is_err());
        assert!(Entry::unpack(b"no gzip").is_err());
    }

    #[test]
    fn an_entry_that_does_not_fit_loses_the_newest_of_its_inputs_before_its_history() {
        let most = 100 * 1024;
        let packed = entry(1_000, Some(1_000)).pack(most);
        assert!(packed.len() <= most, "{}", packed.len());
        let entry_read = read(&packed);
        assert!(!entry_read.truncated, "the history is whole");
        assert_eq!(entry_read.history.len(), 1_000);
        let (inputs, left_out) = (entry_read.inputs.expect("inputs"), entry_read.inputs_left_out);
        assert_eq!(inputs.len(), 1_000);
        let whole = inputs.len() - left_out;
        assert!(whole > 0 && left_out > 0, "{whole} and {left_out}");
        let all = entry(0, Some(whole)).inputs.expect("inputs");
        assert_eq!(inputs[..whole], all[..], "the oldest");
        for input in &inputs[whole..] {
            let kind = "signal go".to_owned();
            assert_eq!(input.input, RecordedBody::Missing { kind });
        }
        let shown = Entry::unpack(&packed).expect("an entry").into_instance();
        assert_eq!(shown.instance["inputs_left_out"], left_out);
    }

    #[test]
    fn an_entry_that_does_not_fit_loses_its_oldest_history_and_says_so() {
        let packed = entry(4_000, Some(10)).pack(100 * 1024);
        assert!(packed.len() <= 100 * 1024, "{}", packed.len());
        let cut = read(&packed);
        assert!(cut.truncated && !cut.history.is_empty());
        assert_eq!((&cut.inputs, cut.inputs_left_out), (&None, 0));
        assert_eq!(
            cut.history,
            entry(4_000, None).history[..cut.history.len()],
            "the newest"
        );
        assert_eq!(cut.instance, entry(0, None).instance);
        let tiny = read(&entry(4_000, Some(4_000)).pack(1_024));
        assert!(tiny.truncated && tiny.history.is_empty() && tiny.inputs.is_none());
        assert_eq!(
            (&tiny.instance["key"], &tiny.instance["state"]),
            (&json!("x"), &Value::Null)
        );
    }
}
