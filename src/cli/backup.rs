//! `shard backup` and `shard restore`: a shard as a file.

use std::fs::{self, File, OpenOptions};
use std::io::{BufReader, BufWriter, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};

use super::account::AccountArguments;
use super::client::{Client, ServerArguments};
use super::manifest::ManifestArguments;
use super::output::{Column, OutputArguments};
use crate::app::backup::{self, Header};
use crate::app::exit::{self, Failure};
use crate::app::out;

pub const BACKUP_EXAMPLE: &str = "\
Example:
  saga-runner shard backup 0 --to /backups/shop-0.backup

The file holds the data of all tenants: it is written for this user alone. It is checked before it gets its name.";

pub const RESTORE_EXAMPLE: &str = "\
Example: see what a backup holds, then restore it where the folder of the shard was lost:
  saga-runner shard restore /backups/shop-0.backup --dry-run
  saga-runner shard restore /backups/shop-0.backup --config saga-runner.yaml --reason 'disk lost, INC-4711'

The shard is older than what it did since. The start is rejected until `run --adopt-loss` gives up the lost state. Then the shard reads
its streams to their ends, and holds what it would send until `shard release`.";

/// Bytes between two lines that tell how far it is.
const TELL_EVERY: u64 = 8 << 20;

#[derive(Debug, Args)]
pub struct BackupArguments {
    /// Number of the shard.
    shard: u16,
    /// File to write; must not exist.
    #[arg(long, value_name = "FILE")]
    to: PathBuf,
    #[command(flatten)]
    account: AccountArguments,
    #[command(flatten)]
    output: OutputArguments,
    #[command(flatten)]
    server: ServerArguments,
}

#[derive(Debug, Args)]
pub struct RestoreArguments {
    /// Backup to restore.
    file: PathBuf,
    /// Check the file and print what it holds, without changes.
    #[arg(long)]
    dry_run: bool,
    /// Reason, kept with the decisions about the shard; required without --dry-run.
    #[arg(long, value_name = "TEXT", required_unless_present = "dry_run")]
    reason: Option<String>,
    #[command(flatten)]
    output: OutputArguments,
    #[command(flatten)]
    manifest: ManifestArguments,
}

pub fn backup(arguments: &BackupArguments) -> Result<(), Failure> {
    let (shard, to) = (arguments.shard, &arguments.to);
    if to.exists() {
        return Err(Failure::unwritten(to, "it exists already"));
    }
    let client = Client::new(&arguments.server)?;
    let mut partial = to.clone().into_os_string();
    partial.push(".partial");
    let partial = Partial(PathBuf::from(partial));
    let bytes = receive(&client, shard, &arguments.account.body(), &partial.0)?;
    let file = File::open(&partial.0).map_err(|error| Failure::unread(&partial.0, error))?;
    let (header, rows) = backup::inspect(&mut BufReader::new(file))
        .map_err(|error| Failure::new(exit::UNAVAILABLE, format!("shard {shard}: {error}")))?;
    if to.exists() {
        return Err(Failure::unwritten(to, "it was made meanwhile"));
    }
    fs::rename(&partial.0, to).map_err(|error| Failure::unwritten(to, error))?;
    show(arguments.output, &header, rows, bytes)
}

/// Writes the file as it comes; gives its bytes.
fn receive(client: &Client, shard: u16, account: &Value, path: &Path) -> Result<u64, Failure> {
    let wrong = |error: std::io::Error| Failure::unwritten(path, error);
    let mut options = OpenOptions::new();
    let options = options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = BufWriter::new(options.open(path).map_err(wrong)?);
    let (mut progress, mut bytes, mut told) = (out::Progress::new(), 0_u64, 0_u64);
    client.download(&format!("/admin/shards/{shard}/backup"), account, |chunk| {
        bytes += chunk.len() as u64;
        if bytes >= told + TELL_EVERY {
            told = bytes;
            progress.tell(format_args!("{} MiB", bytes >> 20));
        }
        file.write_all(chunk).map_err(wrong)
    })?;
    let file = file.into_inner().map_err(|error| wrong(error.into_error()))?;
    file.sync_all().map_err(wrong)?;
    Ok(bytes)
}

/// A file that is removed at the end, unless it has got its name by then.
struct Partial(PathBuf);

impl Drop for Partial {
    fn drop(&mut self) {
        let _removed = fs::remove_file(&self.0);
    }
}

pub fn restore(arguments: &RestoreArguments) -> Result<(), Failure> {
    let (path, output) = (&arguments.file, arguments.output);
    let unreadable = |error: std::io::Error| Failure::unread(path, error);
    let file = File::open(path).map_err(unreadable)?;
    let bytes = file.metadata().map_err(unreadable)?.len();
    let mut file = BufReader::new(file);
    if arguments.dry_run {
        let (header, rows) = backup::inspect(&mut file).map_err(|error| Failure::unread(path, error))?;
        return show(output, &header, rows, bytes);
    }
    let manifest = arguments.manifest.clone().load()?;
    let mut progress = out::Progress::new();
    let reason = arguments.reason.as_deref().unwrap_or_default();
    let mut tell = |rows| progress.tell(format_args!("{rows} rows"));
    let (header, rows) = backup::restore(&manifest, &mut file, reason, &mut tell)?;
    drop(progress);
    show(output, &header, rows, bytes)?;
    out::note(format_args!(
        "shard {0} is restored; `saga-runner run` prints the --adopt-loss that it needs, and `saga-runner shard pending {0}` what it then holds",
        header.shard
    ));
    Ok(())
}

const FIELDS: &[Column] = &[
    Column::value("Cluster", "/cluster"),
    Column::value("Cluster id", "/cluster_id"),
    Column::number("Shard", "/shard"),
    Column::number("Shards", "/shards"),
    Column::number("Epoch", "/epoch"),
    Column::time("Taken", "/taken"),
    Column::number("Log sequence", "/log_sequence"),
    Column::value("Positions", "/positions"),
    Column::value("Version", "/version"),
    Column::number("Rows", "/rows"),
    Column::number("Bytes", "/bytes"),
];

fn show(output: OutputArguments, header: &Header, rows: u64, bytes: u64) -> Result<(), Failure> {
    let mut shown = json!(header);
    shown["rows"] = Value::from(rows);
    shown["bytes"] = Value::from(bytes);
    output.object(FIELDS, &shown)
}
