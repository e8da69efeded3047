//! Commands about shards whose folder is lost, is restored from a backup, or is an older copy.

use std::fs;
use std::path::PathBuf;

use super::stage::{Fills, Stage, copy};
use super::{Scene, exit, pages_of, placed};
use crate::support::shell_blocks::{Shown, root};

/// Orders of which shards 0 and 3 of 4 have some.
const ORDERS: [&str; 4] = ["o-1", "o-2", "o-9", "o-12"];

/// The pages tell one story: a backup is restored, a copy stands in for shards, and what is left of them is lost.
const PAGES: [&str; 4] = [
    "docs/operations.md",
    "docs/errors/SR0210.md",
    "docs/runbooks.md",
    "docs/errors/SR0205.md",
];

pub fn play() {
    let mut stage = stage();
    for (page, commands) in pages_of(Scene::Adopted, &PAGES, &[]) {
        for shown in &commands {
            let fills = prepare(&mut stage, &page, shown);
            stage.run(shown, &fills, exit(shown));
        }
    }
    stage.end();
}

/// A cluster of four shards without workers, so that there is something to hold.
fn stage() -> Stage {
    let mut stage = Stage::new().with_nats();
    for folder in ["sagas", "effects"] {
        copy(&root().join(folder), &stage.folder.join(folder));
    }
    let manifest = fs::read_to_string(root().join("config/saga-runner.yaml")).expect("readable");
    let manifest = manifest.replace("../", "");
    fs::write(stage.folder.join("saga-runner.yaml"), manifest).expect("written");
    let backups = stage.path("backups");
    fs::create_dir(&backups).expect("created");
    stage.fill("/backups/", &format!("{}/", backups.display()));
    stage.join_cluster();
    for (variable, value) in [
        ("SAGA_RUNNER_MODE", "saga"),
        ("SAGA_RUNNER_SHARDS", "4"),
        ("SAGA_RUNNER_OWNERSHIP_RENEW_EVERY", "100ms"),
        ("SAGA_RUNNER_OWNERSHIP_SEND_WITHIN", "300ms"),
        ("SAGA_RUNNER_OWNERSHIP_TAKE_OVER_AFTER", "500ms"),
    ] {
        stage.set(variable, value);
    }
    stage.start();
    for key in ORDERS {
        stage.publish("Placed", key, &placed(key));
    }
    stage.until("the orders have started", |stage| {
        let is_there = |key: &&str| !stage.tenant(&format!("sagas/order/instances/{key}")).is_null();
        ORDERS.iter().all(is_there)
    });
    stage
}

/// Makes what a command is about, and fills in what the page cannot know.
fn prepare(stage: &mut Stage, page: &str, shown: &Shown) -> Fills {
    let value_of = |flag: &str| {
        let at = shown.words.iter().position(|word| word == flag);
        at.map(|at| shown.words[at + 1].clone())
    };
    if shown.begins("saga-runner shard restore") && value_of("--config").is_some() {
        stage.end_servers(false);
        copy(&stage.folder.join("data"), &stage.path("copy"));
        lose(stage, &[0]);
    }
    if let Some(adopted) = value_of("--adopt-loss") {
        match page {
            "docs/errors/SR0210.md" => {
                stage.end_servers(false);
                lose(stage, &[0, 3]);
                for shard in [0, 3] {
                    let name = folder(stage, shard);
                    let name = name.file_name().expect("a name");
                    copy(&stage.path("copy").join(name), &folder(stage, shard));
                }
            }
            "docs/errors/SR0205.md" => {
                stage.end_servers(false);
                lose(stage, &[0, 1]);
            }
            _ => {}
        }
        return vec![(adopted, owners_to_give_up(stage))];
    }
    value_of("--command")
        .map(|command| (command, held_command(stage, &shown.words[3])))
        .into_iter()
        .collect()
}

fn folder(stage: &Stage, shard: u16) -> PathBuf {
    stage.folder.join(format!("data/shard-{shard:04}"))
}

fn lose(stage: &Stage, shards: &[u16]) {
    for shard in shards {
        fs::remove_dir_all(folder(stage, *shard)).expect("it was there");
    }
}

/// What a start that is rejected says that `--adopt-loss` takes.
fn owners_to_give_up(stage: &Stage) -> String {
    let words = ["saga-runner", "run"].map(str::to_owned);
    let (status, _, errors) = stage.output(&words).expect("it ends");
    assert_eq!(status.code(), Some(78), "{errors}");
    let (_, rest) = errors.split_once("run --adopt-loss ").expect("what it takes");
    rest.split(' ').next().unwrap_or(rest).to_owned()
}

/// The id of a command that a shard holds.
fn held_command(stage: &Stage, shard: &str) -> String {
    let held = stage.operator(&format!("admin/shards/{shard}/pending"));
    let id = held["items"][0]["id"].as_str();
    id.unwrap_or_else(|| panic!("shard {shard} holds nothing: {held}"))
        .to_owned()
}
