//! `shard backup` and `shard restore` with files and folders that they cannot use.

use super::*;

/// A backup of shard 0 of a home whose runner has ended, in this file.
fn taken(home: &Home, file: &Path) {
    let runner = home.start();
    let file = file.to_str().expect("text");
    for (shard, exit) in [("7", 4), ("0", 0), ("0", 73)] {
        let output = call(&["shard", "backup", shard, "--to", file, "--url", &home.url()]);
        assert_eq!(
            output.status.code(),
            Some(exit),
            "{shard}: {}",
            text(&output.stderr)
        );
    }
    let closed = call(&["shard", "close", "1", "--url", &home.url()]);
    assert!(closed.status.success(), "{}", text(&closed.stderr));
    let other = home.path("other.backup");
    let other = other.to_str().expect("text");
    let output = call(&["shard", "backup", "1", "--to", other, "--url", &home.url()]);
    assert_eq!(
        output.status.code(),
        Some(5),
        "it is closed: {}",
        text(&output.stderr)
    );
    assert!(!home.path("other.backup").exists() && !home.path("other.backup.partial").exists());
    assert_eq!(runner.stop(), Some(0));
}

fn restore(file: &Path, manifest: &Path) -> Output {
    let (file, manifest) = (file.to_str().expect("text"), manifest.to_str().expect("text"));
    call(&[
        "shard",
        "restore",
        file,
        "--config",
        manifest,
        "--reason",
        "the disk broke",
    ])
}

#[test]
fn a_backup_is_restored_where_it_belongs_and_a_refused_one_leaves_nothing() {
    let home = Home::new();
    let (file, manifest) = (home.path("0.backup"), home.path("manifest.yaml"));
    taken(&home, &file);
    let shard = home.path("data/shard-0000");
    let refused = |file: &Path, manifest: &Path, exit: i32, why: &str| {
        let output = restore(file, manifest);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(exit), "{said}");
        assert!(said.contains(why), "{said}");
        assert!(!home.path("data/shard-0000.restoring").exists(), "{said}");
    };
    refused(&file, &manifest, 73, "has a folder already");
    std::fs::remove_dir_all(&shard).expect("lost");

    let whole = std::fs::read(&file).expect("readable");
    let cut = home.path("cut.backup");
    std::fs::write(&cut, &whole[..whole.len() - 40]).expect("written");
    refused(&cut, &manifest, 66, "SR0211");
    std::fs::write(&cut, b"something else").expect("written");
    refused(&cut, &manifest, 66, "not a backup of a shard");
    refused(&home.path("absent.backup"), &manifest, 66, "absent.backup");
    refused(&file, &home.with(json!({"shards": 3})), 78, "SR0407");
    refused(&file, &home.with(json!({"cluster": "other"})), 78, "SR0407");
    assert!(!shard.exists());

    let shown = call(&[
        "shard",
        "restore",
        file.to_str().expect("text"),
        "--dry-run",
        "--json",
    ]);
    let shown: Value = serde_json::from_slice(&shown.stdout).expect("JSON");
    assert_eq!(
        (&shown["cluster"], &shown["shards"]),
        (&json!("shop"), &json!(2)),
        "{shown}"
    );
    assert!(!shard.exists(), "a dry run changes nothing");

    // One was killed before.
    let left = home.path("data/shard-0000.restoring");
    std::fs::create_dir(&left).expect("created");
    std::fs::write(left.join("mdbx.dat"), b"").expect("written");
    let output = restore(&file, &manifest);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(shard.exists() && !left.exists());
    let (exit, line) = home.refusal(&manifest);
    assert_eq!(exit, Some(78), "{line}");
    assert!(
        line.contains("SR0209") && line.contains("--adopt-loss 0@"),
        "{line}"
    );
}

#[test]
fn a_backup_of_another_cluster_of_the_same_name_is_refused_with_78() {
    let (home, other) = (Home::new(), Home::new());
    let file = home.path("0.backup");
    taken(&home, &file);
    assert_eq!(other.start().stop(), Some(0));
    std::fs::remove_dir_all(other.path("data/shard-0000")).expect("lost");
    let output = restore(&file, &other.path("manifest.yaml"));
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(78), "{said}");
    assert!(said.contains("SR0410"), "{said}");
    assert!(!other.path("data/shard-0000").exists());
}
