//! `init`: a commented starting point that validates and runs.

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use super::client::quoted;
use crate::app::exit::{self, Failure};
use crate::app::out;
use crate::config;
use crate::kernel::definition::editor;

#[derive(Debug, Args)]
pub struct InitArguments {
    /// Folder to write into; created if it does not exist.
    #[arg(default_value = ".")]
    dir: PathBuf,
    /// Example to start from.
    #[arg(long, default_value = "order")]
    template: Template,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Template {
    /// Steps with compensation: stock is reserved, a card is charged.
    Order,
    /// A state machine with a timer: lines are collected into batches.
    Batch,
}

/// Files by their path below the folder.
type Files = &'static [(&'static str, &'static str)];

const COMMON: Files = &[
    ("saga-runner.yaml", include_str!("init/saga-runner.yaml")),
    (".gitignore", "/data/\n/.saga-runner-dev/\n"),
    (".schemas/saga.json", editor::SAGA),
    (".schemas/effect.json", editor::EFFECT),
    (".schemas/manifest.json", config::MANIFEST_SCHEMA),
];
const ORDER: Files = &[
    ("sagas/order.yaml", include_str!("init/order/saga.yaml")),
    (
        "effects/inventory-reserve.yaml",
        include_str!("init/order/reserve.yaml"),
    ),
    (
        "effects/inventory-release.yaml",
        include_str!("init/order/release.yaml"),
    ),
    (
        "effects/payments-charge.yaml",
        include_str!("init/order/charge.yaml"),
    ),
    (
        "schemas/order_placed.json",
        include_str!("init/order/placed.json"),
    ),
    ("schemas/order_state.json", include_str!("init/order/state.json")),
    ("event.json", include_str!("init/order/event.json")),
];
const BATCH: Files = &[
    ("sagas/batch.yaml", include_str!("init/batch/saga.yaml")),
    ("effects/label-print.yaml", include_str!("init/batch/label.yaml")),
    ("event.json", include_str!("init/batch/event.json")),
];

impl Template {
    const fn files(self) -> Files {
        match self {
            Self::Order => ORDER,
            Self::Batch => BATCH,
        }
    }

    const fn saga(self) -> &'static str {
        match self {
            Self::Order => "order",
            Self::Batch => "batch",
        }
    }
}

pub fn init(arguments: &InitArguments) -> Result<(), Failure> {
    let dir = &arguments.dir;
    let files: Vec<(PathBuf, &str)> = COMMON
        .iter()
        .chain(arguments.template.files())
        .map(|(path, text)| (dir.join(path), *text))
        .collect();
    // Writes all files or none.
    if let Some((present, _)) = files.iter().find(|(path, _)| fs::symlink_metadata(path).is_ok()) {
        let message = format!("{} exists already; nothing was written", present.display());
        return Err(Failure::new(exit::CANNOT_CREATE, message));
    }
    for (path, text) in &files {
        write(path, text).map_err(|error| Failure::unwritten(path, error))?;
        out::line(path.display())?;
    }
    let (shown, saga) = (quoted(&dir.display().to_string()), arguments.template.saga());
    out::note(format_args!(
        "check     saga-runner validate {shown}\n\
         try       cd {shown} && saga-runner dev\n\
         run       saga-runner run --config {shown}/saga-runner.yaml\n\
         send      curl -X POST http://127.0.0.1:8080/v1/tenants/acme/events -H 'content-type: application/json' -d @{shown}/event.json\n\
         look      curl http://127.0.0.1:8080/v1/tenants/acme/sagas/{saga}/instances"
    ));
    Ok(())
}

fn write(path: &Path, text: &str) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    // Never overwrites a file that was created in the meantime.
    let mut file = fs::OpenOptions::new().write(true).create_new(true).open(path)?;
    std::io::Write::write_all(&mut file, text.as_bytes())
}
