//! What is packaged works: the image's content runs, a release is whole, and systemd takes the unit.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::docs::{read, root};

const RUNNER: &str = env!("CARGO_BIN_EXE_saga-runner");

fn told(output: &Output) -> String {
    let texts = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    texts.concat()
}

/// What a command has printed, which must succeed.
fn printed(command: &mut Command) -> String {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", told(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Whether a tool can do here what a test needs; where it cannot, the test says so and asserts nothing.
fn is_possible(command: &mut Command) -> bool {
    let is_possible = command.output().is_ok_and(|output| output.status.success());
    if !is_possible {
        println!("not possible here, nothing is asserted: {command:?}");
    }
    is_possible
}

#[test]
fn the_content_of_the_image_runs_as_another_user_with_a_read_only_root() {
    if !is_possible(Command::new("unshare").args(["--mount", "--net", "ip", "link", "set", "lo", "up"])) {
        return;
    }
    let script = root().join("scripts/try-image.sh");
    let printed = printed(Command::new(script).arg(RUNNER));
    assert!(printed.contains("with a read-only root, and drains"), "{printed}");
}

#[test]
fn a_release_has_program_pages_completions_licence_materials_and_sums() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path();
    // The program of the tests is large: it is packed quickly here.
    printed(
        Command::new(root().join("scripts/release.sh"))
            .arg(RUNNER)
            .arg(out)
            .env("GZIP_LEVEL", "1"),
    );
    printed(
        Command::new("sha256sum")
            .args(["--check", "--strict", "SHA256SUMS"])
            .current_dir(out),
    );
    let sums = std::fs::read_to_string(out.join("SHA256SUMS")).expect("sums");
    let names: Vec<&str> = sums
        .lines()
        .filter_map(|line| line.split_once("  "))
        .map(|(_, name)| name)
        .collect();
    let [archive, debug, materials] = names[..] else {
        panic!("{names:?}");
    };
    assert!(archive.contains(env!("CARGO_PKG_VERSION")), "{archive}");
    printed(Command::new("tar").args(["-xzf", archive]).current_dir(out));
    let unpacked = out.join(archive.trim_end_matches(".tar.gz"));
    is_whole(&unpacked);
    let program = std::fs::read(unpacked.join("saga-runner")).expect("the program");
    let has = |text: &str| program.windows(text.len()).any(|part| part == text.as_bytes());
    assert!(has(debug), "the program names the file of its debug information");
    let whole = std::fs::metadata(RUNNER).expect("the program").len();
    assert!(program.len() as u64 * 10 < whole * 9, "it is stripped");
    let materials = std::fs::read(out.join(materials)).expect("materials");
    lists_what_is_linked(&serde_json::from_slice(&materials).expect("JSON"));
}

/// Whether an archive has everything, and the program in it runs.
fn is_whole(unpacked: &Path) {
    let version = printed(Command::new(unpacked.join("saga-runner")).arg("--version"));
    assert!(version.contains(env!("CARGO_PKG_VERSION")), "{version}");
    for file in [
        "LICENSE",
        "CHANGELOG.md",
        "README.md",
        "sbom.cdx.json",
        "man/saga-runner.1",
        "man/saga-runner-instance-show.1",
        "completions/saga-runner.bash",
        "completions/saga-runner.zsh",
        "completions/saga-runner.fish",
        "systemd/saga-runner.service",
        "config/saga-runner.yaml",
        "sagas/order.yaml",
        "effects/payments-charge.yaml",
    ] {
        let length = std::fs::metadata(unpacked.join(file)).map(|found| found.len());
        assert!(
            length.as_ref().is_ok_and(|length| *length > 0),
            "{file}: {length:?}"
        );
    }
}

/// A bill of materials has each crate that the default build links, with its licence, and no other.
fn lists_what_is_linked(bom: &Value) {
    assert_eq!(
        (&bom["bomFormat"], &bom["specVersion"]),
        (&"CycloneDX".into(), &"1.5".into())
    );
    assert_eq!(bom["metadata"]["component"]["name"], "saga-runner");
    let components = bom["components"].as_array().expect("components");
    let names: BTreeSet<&str> = components.iter().filter_map(|one| one["name"].as_str()).collect();
    for linked in ["tokio", "axum", "rustls", "saga-runner-kernel", "async-nats"] {
        assert!(names.contains(linked), "{linked} is not listed");
    }
    for only_tests in ["proptest", "wiremock", "criterion"] {
        assert!(!names.contains(only_tests), "{only_tests} is not linked");
    }
    for component in components {
        assert!(component["licenses"][0]["expression"].is_string(), "{component}");
    }
}

#[test]
fn systemd_takes_the_unit_and_finds_it_hardened() {
    if !is_possible(Command::new("systemd-analyze").arg("--version")) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let unit = folder.path().join("saga-runner.service");
    // The program is where the unit says once it is installed.
    let text = read("deploy/systemd/saga-runner.service");
    assert!(text.contains("ExecStart=/usr/local/bin/saga-runner run\n"));
    std::fs::write(&unit, text.replace("/usr/local/bin/saga-runner", RUNNER)).expect("written");
    let mistakes = Command::new("systemd-analyze")
        .arg("verify")
        .arg(&unit)
        .output()
        .expect("it runs");
    let mistakes_told = told(&mistakes);
    assert!(
        mistakes.status.success() && !mistakes_told.contains("saga-runner.service"),
        "{mistakes_told}"
    );
    // In tenths: 0 is closed, 100 is open.
    let bounded = ["security", "--offline=true", "--threshold=20", "--no-pager"];
    printed(Command::new("systemd-analyze").args(bounded).arg(&unit));
}
