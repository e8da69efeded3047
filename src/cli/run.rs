//! `run` and `dev`.

use std::path::{Path, PathBuf};

use clap::Args;

use super::manifest::{ManifestArguments, OverrideArguments, to_start};
use crate::app::exit::Failure;
use crate::app::out;
use crate::app::ownership::{Adoption, Loss};
use crate::app::{self, Registry};
use crate::config::{Manifest, Mode};
use crate::logging;

#[derive(Debug, Args)]
pub struct RunArguments {
    #[command(flatten)]
    manifest: ManifestArguments,
    /// Parts that this process runs; overrides `mode`.
    #[arg(long)]
    mode: Option<Mode>,
    /// Start although the data of this shard is lost or outdated: SHARD@EPOCH as printed by the error (SR0205, SR0209,
    /// SR0210); may be repeated.
    #[arg(long, value_name = "SHARD@EPOCH", value_delimiter = ',', requires = "reason")]
    adopt_loss: Vec<Loss>,
    /// Reason for adopting the loss, for the audit log.
    #[arg(long, value_name = "TEXT", requires = "adopt_loss")]
    reason: Option<String>,
}

#[derive(Debug, Args)]
pub struct DevArguments {
    /// Manifest file; without it, all settings have their defaults, and the state is in .saga-runner-dev.
    #[arg(long, env = "SAGA_RUNNER_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Folder of saga definitions; default: that of the manifest, without one ./sagas.
    #[arg(long, value_name = "DIR")]
    sagas: Option<PathBuf>,
    /// Folder of effect definitions; default: that of the manifest, without one ./effects.
    #[arg(long, value_name = "DIR")]
    effects: Option<PathBuf>,
    /// Base URL for `${upstreams.NAME}` in effects; may be repeated.
    #[arg(long = "upstream", value_name = "NAME=URL", value_parser = pair)]
    upstreams: Vec<(String, String)>,
    /// URL of the gateway that receives aggregate commands.
    #[arg(long, value_name = "URL")]
    gateway: Option<String>,
    #[command(flatten)]
    overrides: OverrideArguments,
}

fn pair(text: &str) -> Result<(String, String), String> {
    text.split_once('=')
        .filter(|(name, url)| !name.is_empty() && !url.is_empty())
        .map(|(name, url)| (name.to_owned(), url.to_owned()))
        .ok_or_else(|| "write NAME=URL, e.g. bank=http://127.0.0.1:7070".to_owned())
}

pub fn run(arguments: RunArguments, registry: Registry) -> Result<(), Failure> {
    let manifest = arguments.manifest.load_to_start(arguments.mode, &registry)?;
    let adoption = Adoption::new(arguments.adopt_loss, arguments.reason.unwrap_or_default());
    start(manifest, registry, adoption)
}

pub fn dev(arguments: DevArguments, registry: Registry) -> Result<(), Failure> {
    let overrides = arguments.overrides.over_environment();
    let mut manifest = if let Some(path) = &arguments.config {
        to_start(path, &overrides, &registry)?
    } else {
        Manifest::parse(&defaults(), Path::new("saga-runner dev"), &overrides)?
    };
    if let Some(folder) = arguments.sagas {
        manifest.sagas = folder;
    }
    if let Some(folder) = arguments.effects {
        manifest.effects = folder;
    }
    manifest.http.accept_events = true;
    manifest.upstreams.extend(arguments.upstreams);
    if let Some(url) = arguments.gateway {
        manifest.gateway = Some(crate::gateway::Settings::at(url));
    }
    // A developer wants to see the errors, instead of a start with the previous definitions.
    crate::app::definitions::load(&manifest)?;
    banner(&manifest);
    log(&manifest)?;
    app::dev(manifest, registry).map_err(Failure::from)
}

/// The folder of the state where there is no manifest: another than that of the project, whose cluster has another name.
const DATA_DIR: &str = ".saga-runner-dev";

/// The manifest where there is none. `acme` is the tenant of the banner.
fn defaults() -> String {
    let manifest = serde_json::json!({
        "apiVersion": "saga-runner/v1",
        "kind": "Manifest",
        "cluster": "dev",
        "data_dir": DATA_DIR,
        "sagas": "sagas",
        "effects": "effects",
        "shards": 1,
        "tenants": "any",
        "scheduled_tenants": ["acme"],
        "log": {"format": "pretty"},
    });
    manifest.to_string()
}

/// Prints URLs and first commands.
fn banner(manifest: &Manifest) {
    let scheme = if manifest.http.tls.is_some() {
        "https"
    } else {
        "http"
    };
    let base = format!("{scheme}://{}", manifest.http.listen);
    let admin = manifest.http.own_admin_listen().unwrap_or(manifest.http.listen);
    let admin = format!("{scheme}://{admin}");
    let kept = std::path::absolute(&manifest.data_dir).unwrap_or_else(|_| manifest.data_dir.clone());
    let (sagas, effects) = (manifest.sagas.display(), manifest.effects.display());
    out::note(format_args!(
        "saga-runner dev: not for production\n  data      {}\n  API       {base}\n  admin     {admin}/info\n  send      curl -X POST {base}/v1/tenants/acme/events -H 'content-type: application/json' -d @event.json\n  look      saga-runner instance list --tenant acme --url {base}\n  edit      {sagas} and {effects}: a changed file is reloaded\nWhat happens to each order follows, a line each.",
        kept.display()
    ));
}

fn log(manifest: &Manifest) -> Result<(), Failure> {
    logging::start(manifest.log.format, &manifest.log.level)
        .map_err(|message| Failure::new(crate::app::exit::CONFIG, message))
}

fn start(manifest: Manifest, registry: Registry, adoption: Adoption) -> Result<(), Failure> {
    log(&manifest)?;
    app::main(manifest, registry, adoption).map_err(Failure::from)
}
