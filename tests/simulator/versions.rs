//! The definitions of a simulation: those that it begins with, and those that take their place in the middle.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use saga_runner::app::Node;
use saga_runner::app::definitions::{self, Read};
use saga_runner::config::Manifest;
use saga_runner::kernel::definition::DefinitionSet;

use super::run::Simulation;

/// The folder that the node reads.
pub struct Versions {
    sagas: PathBuf,
    is_changed: bool,
}

fn dir(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/simulator/definitions")
        .join(name)
}

pub fn effects() -> PathBuf {
    dir("effects")
}

fn copy(from: &Path, to: &Path) {
    for file in std::fs::read_dir(from).expect("a folder") {
        let file = file.expect("a file");
        std::fs::copy(file.path(), to.join(file.file_name())).expect("copied");
    }
}

/// Those of the beginning and those of later, each compiled once for all simulations.
static COMPILED: [OnceLock<Read>; 2] = [const { OnceLock::new() }; 2];

impl Versions {
    pub fn new(folder: &Path) -> Self {
        let sagas = folder.join("sagas");
        std::fs::create_dir(&sagas).expect("a folder");
        copy(&dir("sagas"), &sagas);
        Self {
            sagas,
            is_changed: false,
        }
    }

    pub fn path(&self) -> &Path {
        &self.sagas
    }

    /// Whoever reads them from now on finds others.
    pub fn change(&mut self) {
        copy(&dir("later"), &self.sagas);
        self.is_changed = true;
    }

    /// What a process finds that starts now.
    pub fn read(&self, manifest: &Manifest) -> Read {
        let read = COMPILED[usize::from(self.is_changed)]
            .get_or_init(|| definitions::load(manifest).unwrap_or_else(|error| panic!("{error}")));
        Read {
            sagas: read.sagas.clone(),
            effects: read.effects.clone(),
            effects_text: read.effects_text,
            // No start of a simulation finds wrong ones.
            files: Arc::default(),
        }
    }

    /// All that an instance may run under.
    pub fn all(&self, manifest: &Manifest) -> DefinitionSet {
        let archived = COMPILED[0].get().filter(|_| self.is_changed);
        let archived = archived.map_or_else(Vec::new, |read| read.sagas.clone());
        DefinitionSet::new(self.read(manifest).sagas, archived)
    }
}

impl Simulation {
    /// Puts other definitions into the folder, and has the process read them. One that cannot now does so at its next start.
    pub fn change(&mut self, node: &Arc<Node>) {
        self.definitions.change();
        let node = Arc::clone(node);
        drop(tokio::spawn(async move { drop(node.reload().await) }));
    }
}
