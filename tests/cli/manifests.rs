//! Manifests that cannot be used: told in one line, with a code.

use super::*;

#[test]
fn a_manifest_that_cannot_be_read_exits_with_66() {
    let home = Home::new();
    let (code, line) = home.refusal(&home.path("absent.yaml"));
    assert_eq!(code, Some(66));
    assert!(line.contains("SR0401") && line.contains("absent.yaml"), "{line}");
}

#[test]
fn a_manifest_that_says_nonsense_exits_with_78_and_one_line() {
    let home = Home::new();
    for (changes, code, named) in [
        (json!({"shardz": 2}), "SR0402", "shardz"),
        (json!({"shard": {"mailboxes": 2}}), "SR0402", "mailboxes"),
        (json!({"drain_timeout": "soon"}), "SR0402", "soon"),
        (json!({"shards": 0}), "SR0403", "shards"),
        (json!({"shards": 1025}), "SR0403", "shards"),
        (json!({"mode": "saga"}), "SR0403", "broker.kind"),
        (
            json!({"mode": "saga", "dispatch": "local", "broker": {"kind": "nats"}}),
            "SR0403",
            "dispatch local",
        ),
        (json!({"dispatch": "direct"}), "SR0402", "direct"),
        (json!({"cluster": "Not A Name"}), "SR0403", "cluster"),
        (json!({"tenants": []}), "SR0403", "tenants"),
        (
            json!({"limits": {"record_bytes": 1_000_000_000}}),
            "SR0403",
            "record_bytes",
        ),
        (
            json!({"limits": {"expression_steps": 20_001}}),
            "SR0403",
            "expression_steps",
        ),
        (json!({"limits": {"hops": 33}}), "SR0403", "hops"),
        (
            json!({"secrets": {"token": {"env": "SR_TEST_NOT_SET"}}}),
            "SR0404",
            "SR_TEST_NOT_SET",
        ),
        (
            json!({"callbacks": {"key": {"env": "SR_TEST_NOT_SET"}}}),
            "SR0404",
            "callbacks.key",
        ),
    ] {
        let (exit, line) = home.refusal(&home.with(changes.clone()));
        assert_eq!(exit, Some(78), "{changes}: {line}");
        assert!(line.contains(code) && line.contains(named), "{changes}: {line}");
    }
}

#[test]
fn an_effect_that_hands_out_tokens_needs_their_key() {
    let home = Home::new();
    let effects = home.path("token-effects");
    std::fs::create_dir(&effects).expect("created");
    let effect = "apiVersion: sagas/v1\nkind: Effect\nname: ask\nhttp: {method: POST, \
        url: \"http://127.0.0.1:9/ask\", body: {answer: \"${command.token}\"}}\n";
    std::fs::write(effects.join("ask.yaml"), effect).expect("written");
    let sagas = home.path("no-sagas");
    std::fs::create_dir(&sagas).expect("created");
    let (exit, line) = home.refusal(&home.with(json!({"effects": effects, "sagas": sagas})));
    assert_eq!(exit, Some(78), "{line}");
    assert!(
        line.contains("SR0406") && line.contains("effect ask") && line.contains("callbacks.key"),
        "{line}"
    );
}

#[test]
fn a_secret_in_the_manifest_is_refused_and_not_repeated() {
    let home = Home::new();
    for changes in [
        json!({"secrets": {"token": "hunter2"}}),
        json!({"broker": {"kind": "nats", "nats": {"urls": ["nats://me:hunter2@127.0.0.1:4222"]}}}),
    ] {
        let (exit, line) = home.refusal(&home.with(changes));
        assert_eq!(exit, Some(78), "{line}");
        assert!(line.contains("SR04") || line.contains("SR0302"), "{line}");
        assert!(!line.contains("hunter2"), "{line}");
    }
}

#[test]
fn an_api_that_others_could_reach_is_refused_with_78() {
    let home = Home::new();
    let (exit, line) = home.refusal(&home.with(json!({"http": {"listen": "0.0.0.0:1"}})));
    assert_eq!(exit, Some(78), "{line}");
    assert!(
        line.contains("SR0412") && line.contains("http.authentication"),
        "{line}"
    );
    for verb in [
        &["run", "--config", "manifest.yaml"][..],
        &["dev", "--data-dir", "d"],
    ] {
        let output = binary()
            .args(verb)
            .args(["--listen", "0.0.0.0:1"])
            .current_dir(home.dir.path())
            .output()
            .expect("the binary starts");
        assert_eq!(
            output.status.code(),
            Some(78),
            "{verb:?}: {}",
            text(&output.stderr)
        );
        assert!(text(&output.stderr).contains("SR0412"), "{verb:?}");
    }
}
