//! What is packaged works: the image's content runs, a release is whole, and systemd takes the unit.

use std::collections::BTreeSet;
use std::os::unix::fs::{PermissionsExt as _, symlink};
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

#[test]
fn a_release_for_another_platform_has_its_name_and_joins_the_sums() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("dist");
    for (arch, target) in [
        ("arm64", "aarch64-unknown-linux-gnu"),
        ("amd64", "x86_64-unknown-linux-gnu"),
    ] {
        // In place of a program that does not run here: one of this machine that is no runner.
        let program = folder.path().join(arch);
        std::fs::copy("/bin/true", &program).expect("copied");
        let mut release = Command::new(root().join("scripts/release.sh"));
        release.arg(&program).arg(&out);
        release.envs([("ARCH", arch), ("OBJCOPY", "objcopy"), ("GZIP_LEVEL", "1")]);
        printed(release.env("RUNS", RUNNER));
        let name = format!("saga-runner-{}-{target}", env!("CARGO_PKG_VERSION"));
        let archive = out.join(format!("{name}.tar.gz"));
        let listed = printed(Command::new("tar").arg("-tzf").arg(archive));
        for file in [
            "saga-runner",
            "man/saga-runner.1",
            "completions/saga-runner.bash",
            "LICENSE",
        ] {
            assert!(listed.contains(&format!("{name}/{file}\n")), "{file}: {listed}");
        }
    }
    printed(
        Command::new("sha256sum")
            .args(["--check", "--strict", "SHA256SUMS"])
            .current_dir(&out),
    );
    let sums = std::fs::read_to_string(out.join("SHA256SUMS")).expect("sums");
    assert_eq!(sums.lines().count(), 6, "{sums}");
}

/// Puts a program into a folder that appends its name, its arguments and some of its variables to `log`.
fn stub(folder: &Path, name: &str, prints: &str) {
    let text = format!(
        "#!/bin/sh\n{{ echo {name} \"$@\"; env | grep -E '^(AR|BINDGEN|CARGO_TARGET_A|CC|CXX)' | sort; }} >>\"{}\"\necho '{prints}'\n",
        folder.join("log").display()
    );
    let path = folder.join(name);
    std::fs::write(&path, text).expect("written");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("set");
}

#[test]
fn a_build_for_another_platform_takes_its_compilers_and_an_unknown_platform_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let build = |arch: &str| {
        let mut build = Command::new(root().join("scripts/cross-build.sh"));
        build.arg(arch).env_clear();
        build.env("PATH", folder.path());
        build.env("CARGO_TARGET_DIR", "/built");
        build.output().expect("it starts")
    };
    let log = || {
        let text = std::fs::read_to_string(folder.path().join("log")).unwrap_or_default();
        let _removed = std::fs::remove_file(folder.path().join("log"));
        text
    };
    // Nothing else: this machine may have such compilers.
    for tool in ["bash", "dirname", "env", "grep", "sed", "sort"] {
        let found = ["/usr/bin", "/bin"].map(|place| Path::new(place).join(tool));
        let found = found.iter().find(|path| path.exists()).expect("a usual tool");
        symlink(found, folder.path().join(tool)).expect("linked");
    }
    stub(folder.path(), "rustc", "host: x86_64-unknown-linux-gnu");
    stub(folder.path(), "cargo", "");
    let native = build("amd64");
    assert!(native.status.success(), "{}", told(&native));
    assert_eq!(
        String::from_utf8_lossy(&native.stdout),
        "/built/x86_64-unknown-linux-gnu/release/saga-runner\n"
    );
    let line = "cargo build --release --locked --target x86_64-unknown-linux-gnu\n";
    let called = log();
    assert!(called.ends_with(line), "without variables: {called}");

    stub(folder.path(), "rustup", "");
    let lacking = build("arm64");
    assert_eq!(lacking.status.code(), Some(69), "{}", told(&lacking));
    assert!(
        told(&lacking).contains("aarch64-linux-gnu-gcc is missing"),
        "{}",
        told(&lacking)
    );
    for tool in ["gcc", "g++", "ar"] {
        stub(folder.path(), &format!("aarch64-linux-gnu-{tool}"), "");
    }
    let _before = log();
    let crossed = build("arm64");
    assert!(crossed.status.success(), "{}", told(&crossed));
    assert_eq!(
        String::from_utf8_lossy(&crossed.stdout),
        "/built/aarch64-unknown-linux-gnu/release/saga-runner\n"
    );
    let called = log();
    for line in [
        "rustup target add aarch64-unknown-linux-gnu",
        "cargo build --release --locked --target aarch64-unknown-linux-gnu",
        "AR_aarch64_unknown_linux_gnu=aarch64-linux-gnu-ar",
        "BINDGEN_EXTRA_CLANG_ARGS_aarch64_unknown_linux_gnu=-I/usr/aarch64-linux-gnu/include",
        "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc",
        "CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc",
        "CXX_aarch64_unknown_linux_gnu=aarch64-linux-gnu-g++",
    ] {
        assert!(called.lines().any(|told| told == line), "{line}: {called}");
    }

    let unknown = build("riscv64");
    assert_eq!(unknown.status.code(), Some(64), "{}", told(&unknown));
    let dockerfile = read("Dockerfile");
    assert!(
        dockerfile.contains("scripts/cross-build.sh \"$TARGETARCH\""),
        "the image is built by it"
    );
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
