//! An entry of the archive: what `instance show` and `instance history` say of an instance, as compressed JSON.

use std::io::{self, Read as _, Write as _};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

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

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    format: u8,
    /// When it was archived.
    archived_at: String,
    /// Something was left out, since it did not fit: of the history the oldest part.
    truncated: bool,
    instance: Map<String, Value>,
    /// The newest first.
    history: Vec<Value>,
}

impl Entry {
    pub fn new(
        view: &InstanceView,
        history: impl Iterator<Item = HistoryView>,
        archived_at: String,
    ) -> Result<Self, serde_json::Error> {
        let instance = match serde_json::to_value(view)? {
            Value::Object(members) => members,
            _ => Map::new(),
        };
        let history: Result<Vec<Value>, _> = history.map(serde_json::to_value).collect();
        Ok(Self {
            format: FORMAT,
            archived_at,
            truncated: false,
            instance,
            history: history?,
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
        ArchivedInstance {
            instance,
            history: self.history,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(rows: usize) -> Entry {
        let mut instance = Map::new();
        for name in BARE {
            instance.insert(name.to_owned(), json!("x"));
        }
        // It cannot be compressed.
        let noise = |seed: usize| blake3::hash(&seed.to_le_bytes()).to_hex().to_string();
        let state: Vec<String> = (0..500).map(noise).collect();
        instance.insert("state".to_owned(), json!(state));
        instance.insert("steps".to_owned(), json!([{"name": "a"}]));
        Entry {
            format: FORMAT,
            archived_at: "now".to_owned(),
            truncated: false,
            instance,
            history: (0..rows)
                .map(|row| json!({"input": noise(row + 1_000)}))
                .collect(),
        }
    }

    #[test]
    fn an_entry_comes_back_as_it_was() {
        let packed = entry(10).pack(1 << 20);
        assert_eq!(Entry::unpack(&packed).expect("an entry"), entry(10));
        assert!(Entry::unpack(&packed[..packed.len() / 2]).is_err());
        assert!(Entry::unpack(b"no gzip").is_err());
    }

    #[test]
    fn an_entry_that_does_not_fit_loses_its_oldest_history_and_says_so() {
        let packed = entry(4_000).pack(100 * 1024);
        assert!(packed.len() <= 100 * 1024, "{}", packed.len());
        let read = Entry::unpack(&packed).expect("an entry");
        assert!(read.truncated && !read.history.is_empty());
        assert_eq!(
            read.history,
            entry(4_000).history[..read.history.len()],
            "the newest"
        );
        assert_eq!(read.instance, entry(0).instance);
        let tiny = Entry::unpack(&entry(4_000).pack(1_024)).expect("an entry");
        assert!(tiny.truncated && tiny.history.is_empty());
        assert_eq!(
            (&tiny.instance["key"], &tiny.instance["state"]),
            (&json!("x"), &Value::Null)
        );
    }
}
