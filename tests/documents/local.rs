//! Commands about files, and processes that a page starts itself.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use super::stage::{Stage, copy};
use super::{Scene, exit, pages_of};
use crate::support::shell_blocks::{read, root};

/// Each page has a stage of its own.
pub fn play() {
    for (page, commands) in pages_of(Scene::Local, &[], &[]) {
        let mut stage = stage(&page);
        for shown in &commands {
            stage.run(shown, &[], exit(shown));
        }
        if page == "docs/deploying.md" {
            let manifest = stage.path("machine/etc/saga-runner/saga-runner.yaml");
            let manifest = manifest.to_str().expect("text");
            stage.must(&["saga-runner", "config", "check", "--config", manifest]);
        }
        stage.end();
    }
}

fn stage(page: &str) -> Stage {
    let mut stage = match page {
        // A project of its own, by `init`.
        "README.md" => Stage::new().with_nats(),
        "docs/guide.md" => with_first_chapter(Stage::new()),
        _ => with_repository(Stage::new().with_project()),
    };
    let machine = stage.path("machine");
    for folder in ["usr/local/bin", "etc/systemd/system"] {
        fs::create_dir_all(machine.join(folder)).expect("created");
    }
    for folder in ["/usr/local/", "/etc/"] {
        stage.fill(folder, &format!("{}{folder}", machine.display()));
    }
    stage
}

/// With the examples, what is deployed, and a file where `make build` leaves the program.
fn with_repository(stage: Stage) -> Stage {
    for folder in ["examples", "deploy"] {
        copy(&root().join(folder), &stage.folder.join(folder));
    }
    let release = stage.folder.join("target/release");
    fs::create_dir_all(&release).expect("created");
    fs::write(release.join("saga-runner"), "the program\n").expect("written");
    stage
}

/// With the project of the first chapter of the guide.
fn with_first_chapter(stage: Stage) -> Stage {
    copy(&root().join("effects"), &stage.folder.join("effects"));
    fs::create_dir(stage.folder.join("sagas")).expect("created");
    let page = read("docs/guide.md");
    let chapter = page.split("\n## ").nth(1).expect("a chapter");
    let blocks = chapter.split("```yaml\n").skip(1);
    for block in blocks.filter_map(|rest| rest.split("```").next()) {
        let value = |key: &str| block.lines().find_map(|line| line.strip_prefix(key));
        let file = match (value("saga: "), value("name: "), value("kind: ")) {
            (Some(saga), ..) => format!("sagas/{saga}.test.yaml"),
            (None, Some(name), Some("Saga")) => format!("sagas/{name}.yaml"),
            (None, Some(name), _) => format!("effects/{name}.yaml"),
            (None, None, _) => panic!("no whole file:\n{block}"),
        };
        fs::write(stage.folder.join(file), block).expect("written");
    }
    stage
}

/// The first page makes a token, with which the others ask.
pub fn play_with_tokens() {
    let mut stage = Stage::new();
    stage.must(&["saga-runner", "init", "shop"]);
    stage.folder = stage.folder.join("shop");
    for (_, commands) in pages_of(Scene::Tokens, &["docs/errors/SR0413.md"], &[]) {
        for shown in &commands {
            let printed = stage.run(shown, &[], exit(shown));
            if let Some(printed) = printed.filter(|_| shown.begins("saga-runner token new")) {
                accept(&mut stage, &printed);
            }
        }
    }
    stage.end();
}

/// Starts a runner that accepts the token that was printed.
fn accept(stage: &mut Stage, printed: &str) {
    let (token, line) = printed
        .trim()
        .split_once('\n')
        .expect("a token, and a line for the file");
    let file = stage.folder.join("tokens");
    fs::write(&file, format!("{line}\n")).expect("written");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("its permissions");
    stage.fill("$TOKEN", token);
    stage.set("SAGA_RUNNER_HTTP_AUTHENTICATION", "tokens");
    stage.set("SAGA_RUNNER_HTTP_TOKENS_FILE", "tokens");
    stage.start();
}
