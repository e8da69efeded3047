//! The data folder of a runner: the disks of its shards, and what it knows of its cluster.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::plan::Plan;
use super::store::Disk;
use super::world::World;

/// The file by which a folder knows its cluster.
const MARKER: &str = "cluster.json";

#[derive(Debug, Clone)]
pub struct Folder {
    /// Never used again.
    pub number: u64,
    pub dir: PathBuf,
    pub disks: Vec<Disk>,
}

impl Folder {
    pub fn empty(parent: &Path, number: u64, plan: &Plan, world: &Arc<World>) -> Self {
        let dir = parent.join(format!("folder-{number}"));
        std::fs::create_dir(&dir).expect("a folder");
        let in_mdbx = plan.is_on_mdbx.then_some(dir.as_path());
        let disks = (0..plan.shards).map(|shard| Disk::new(shard, in_mdbx, plan.is_captured, world));
        Self {
            number,
            disks: disks.collect(),
            dir,
        }
    }

    /// As it is now, at another place.
    pub fn copy(&self, number: u64) -> Self {
        let dir = self.dir.with_file_name(format!("folder-{number}"));
        std::fs::create_dir(&dir).expect("a folder");
        if self.dir.join(MARKER).exists() {
            std::fs::copy(self.dir.join(MARKER), dir.join(MARKER)).expect("a file");
        }
        Self {
            number,
            disks: self.disks.iter().map(|disk| disk.copy(&dir)).collect(),
            dir,
        }
    }

    /// Whether all shards have some state.
    pub fn is_in_use(&self) -> bool {
        self.disks.iter().all(|disk| !disk.rows.rows().is_empty())
    }
}
