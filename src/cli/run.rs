//! `run` and `dev`.

use std::path::PathBuf;

use clap::Args;

use super::{ManifestArguments, OverrideArguments};
use crate::app::exit::Failure;
use crate::app::out;
use crate::app::ownership::{Adoption, Loss};
use crate::app::{self, Registry};
use crate::config::{LogFormat, Manifest, Mode, TenantList};
use crate::kernel::ids::TenantId;
use crate::logging;

#[derive(Debug, Args)]
pub struct RunArguments {
    #[command(flatten)]
    manifest: ManifestArguments,
    /// Parts that this process runs; overrides `mode`.
    #[arg(long, env = "SAGA_RUNNER_MODE")]
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
    /// Manifest file; without it, all settings have their defaults.
    #[arg(long, env = "SAGA_RUNNER_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Folder of saga definitions.
    #[arg(long, value_name = "DIR", default_value = "sagas")]
    sagas: PathBuf,
    /// Folder of effect definitions.
    #[arg(long, value_name = "DIR", default_value = "effects")]
    effects: PathBuf,
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
        .map(|(name, url)| (name.to_owned(), url.to_owned()))
        .ok_or_else(|| "write NAME=URL".to_owned())
}

pub fn run(arguments: RunArguments, registry: Registry) -> Result<(), Failure> {
    let manifest = arguments.manifest.load(arguments.mode)?;
    let adoption = Adoption::new(arguments.adopt_loss, arguments.reason.unwrap_or_default());
    start(manifest, registry, adoption)
}

pub fn dev(arguments: DevArguments, registry: Registry) -> Result<(), Failure> {
    let overrides = arguments.overrides.with_mode(None);
    let mut manifest = if let Some(path) = &arguments.config {
        Manifest::load(path, &overrides)?
    } else {
        let mut manifest = Manifest::named("dev");
        manifest.data_dir = PathBuf::from("data");
        manifest.sagas = arguments.sagas;
        manifest.effects = arguments.effects;
        manifest.shards = 1;
        manifest.tenants = Some(TenantList::Any);
        // The tenant of the banner.
        let acme = TenantId::parse("acme").expect("a legal name");
        manifest.scheduled_tenants = Some(vec![acme]);
        manifest.log.format = LogFormat::Pretty;
        manifest.overridden(&overrides)?
    };
    manifest.http.accept_events = true;
    manifest.upstreams.extend(arguments.upstreams);
    if let Some(url) = arguments.gateway {
        manifest.gateway = Some(crate::gateway::Settings::at(url));
    }
    // A developer wants to see the errors, instead of a start with the previous definitions.
    crate::app::definitions::load(&manifest)?;
    banner(&manifest);
    start(manifest, registry, Adoption::default())
}

/// Prints URLs and first commands.
fn banner(manifest: &Manifest) {
    let base = format!("http://{}", manifest.http.listen);
    let kept = std::path::absolute(&manifest.data_dir).unwrap_or_else(|_| manifest.data_dir.clone());
    out::note(format_args!(
        "saga-runner dev: not for production\n  data      {}\n  API       {base}/info\n  send      curl -X POST {base}/v1/tenants/acme/events -H 'content-type: application/json' -d @event.json\n  look      curl {base}/v1/tenants/acme/sagas/order/instances",
        kept.display()
    ));
}

fn start(manifest: Manifest, registry: Registry, adoption: Adoption) -> Result<(), Failure> {
    logging::start(manifest.log.format, &manifest.log.level)
        .map_err(|message| Failure::new(crate::app::exit::CONFIG, message))?;
    app::main(manifest, registry, adoption).map_err(Failure::from)
}
