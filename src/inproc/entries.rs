//! Buckets and their entries: one row each, replaced by the writer where it has the revision that was expected.

use bytes::Bytes;

use crate::ports::broker::{
    BrokerError, BucketSpec, Entry, PutError, check_bucket_name, check_entry_key, check_entry_value,
};

use super::env::{self, EntryRow, Env, StoreError};
use super::writer::{Failed, Writer, commit_failed};

/// A write on its way, checked.
pub(super) struct EntryPut {
    bucket: String,
    key: String,
    value: Bytes,
    expected: Option<u64>,
}

impl EntryPut {
    pub fn new(bucket: &str, key: &str, value: Bytes, expected: Option<u64>) -> Result<Self, PutError> {
        check_bucket_name(bucket)
            .and_then(|()| check_entry_key(key))
            .and_then(|()| check_entry_value(&value))
            .map_err(PutError::Refused)?;
        Ok(Self {
            bucket: bucket.to_owned(),
            key: key.to_owned(),
            value,
            expected,
        })
    }
}

impl Writer {
    pub(super) fn ensure_bucket(&mut self, spec: &BucketSpec) -> Result<(), BrokerError> {
        check_bucket_name(&spec.name).map_err(BrokerError::Refused)?;
        let differences = differences(spec);
        if !differences.is_empty() {
            return Err(BrokerError::Mismatch {
                stream: spec.name.clone(),
                differences,
            });
        }
        self.write_bucket(&spec.name)
            .map_err(|failed| self.change_refused(failed))
    }

    fn write_bucket(&self, name: &str) -> Result<(), Failed> {
        let txn = self.env.write()?;
        env::set_meta(&txn, &mark(name), 1)?;
        txn.commit().map_err(commit_failed)?;
        Ok(())
    }

    pub(super) fn put_entry(&mut self, put: &EntryPut) -> Result<u64, PutError> {
        match self.write_entry(put) {
            Ok(outcome) => outcome,
            Err(failed) => {
                let unclear = matches!(failed, Failed::Unclear(_));
                let error = self.change_refused(failed).to_string();
                Err(if unclear {
                    PutError::Unknown(error)
                } else {
                    PutError::Unavailable(error)
                })
            }
        }
    }

    fn write_entry(&self, put: &EntryPut) -> Result<Result<u64, PutError>, Failed> {
        let txn = self.env.write()?;
        if env::meta(&txn, &mark(&put.bucket))?.is_none() {
            let error = BrokerError::NoStream(put.bucket.clone());
            return Ok(Err(PutError::Unavailable(error.to_string())));
        }
        let found = env::entry(&txn, &put.bucket, &put.key)?;
        if found.map(|row| row.revision) != put.expected {
            return Ok(Err(PutError::Conflict));
        }
        let revision = env::meta(&txn, "revision")?.unwrap_or(0) + 1;
        env::set_meta(&txn, "revision", revision)?;
        let row = EntryRow {
            revision,
            value: put.value.to_vec(),
        };
        env::put_entry(&txn, &put.bucket, &put.key, &row)?;
        txn.commit().map_err(commit_failed)?;
        Ok(Ok(revision))
    }
}

/// Whether the bucket exists.
pub(super) fn check(env: &Env, bucket: &str) -> Result<(), BrokerError> {
    check_bucket_name(bucket).map_err(BrokerError::Refused)?;
    let marked = env.read().and_then(|txn| env::meta(&txn, &mark(bucket)));
    match marked.map_err(|error| unavailable(&error))? {
        Some(_) => Ok(()),
        None => Err(BrokerError::NoStream(bucket.to_owned())),
    }
}

pub(super) fn find(env: &Env, bucket: &str, key: &str) -> Result<Option<Entry>, BrokerError> {
    check(env, bucket)?;
    check_entry_key(key).map_err(BrokerError::Refused)?;
    let found = env.read().and_then(|txn| env::entry(&txn, bucket, key));
    Ok(found.map_err(|error| unavailable(&error))?.map(|row| Entry {
        revision: row.revision,
        value: Bytes::from(row.value),
    }))
}

pub(super) fn differences(spec: &BucketSpec) -> Vec<String> {
    if spec.replicas <= 1 {
        return Vec::new();
    }
    vec![format!(
        "replicas is 1, expected {}; the embedded broker keeps one copy",
        spec.replicas
    )]
}

fn unavailable(error: &StoreError) -> BrokerError {
    BrokerError::Unavailable(error.to_string())
}

/// Name in `meta` of the number that says that the bucket exists.
fn mark(bucket: &str) -> String {
    format!("bucket.{bucket}")
}
