//! Streams and consumers on a nats-server.

use super::*;

#[test]
fn streams_are_checked_without_a_change_and_applied_on_demand() {
    let server = NatsServer::start();
    let home = Home::new();
    let broker = json!({"broker": {"kind": "nats", "nats": {"urls": [server.url()]}}});
    let manifest = home.with(broker);
    let streams = |verb: &str| {
        let output = binary()
            .args(["streams", verb, "--config"])
            .arg(&manifest)
            .output()
            .expect("the binary starts");
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    for _ in 0..2 {
        let (exit, shown, errors) = streams("check");
        assert_eq!(exit, Some(1), "a check creates nothing: {shown}{errors}");
        for name in [
            "AGGREGATE_EVENTS",
            "WORKFLOW_COMMANDS",
            "WORKFLOW_EVENTS",
            "WORKFLOW_AUDIT",
            "bucket WORKFLOW_CLUSTER",
        ] {
            let line = shown.lines().find(|line| line.starts_with(&format!("{name}  ")));
            assert!(
                line.is_some_and(|line| line.contains("does not exist")),
                "{shown}"
            );
            assert!(errors.contains(&format!("{name}: the ")), "{errors}");
        }
    }
    let (exit, shown, errors) = streams("apply");
    assert_eq!(exit, Some(0), "{shown}{errors}");
    let (exit, shown, errors) = streams("check");
    assert_eq!(exit, Some(0), "{shown}{errors}");
    assert!(!shown.contains("does not exist"), "{shown}");
}

#[test]
fn a_consumer_that_is_not_used_is_told_from_those_of_other_groups_and_removed() {
    let server = NatsServer::start();
    let mut home = Home::new();
    home.manifest["broker"] = json!({"kind": "nats", "nats": {"urls": [server.url()]}});
    let effect = |home: &Home, name: &str| {
        let text =
            format!("apiVersion: sagas/v1\nkind: Effect\nname: {name}\ntransform: {{}}\nresult: {{}}\n");
        std::fs::write(home.path("effects/effect.yaml"), text).expect("written");
    };
    effect(&home, "charge");
    home.write("manifest.yaml", &home.manifest);
    let ours = home.start();
    let mut theirs = Home::new();
    theirs.manifest["broker"] = home.manifest["broker"].clone();
    theirs.manifest["group"] = json!("shop-eu");
    theirs.manifest["mode"] = json!("effect");
    effect(&theirs, "charge");
    theirs.write("manifest.yaml", &theirs.manifest);
    // Nobody takes from their consumer at the moment.
    assert_eq!(theirs.start().stop(), Some(0));

    let consumers = |words: &[&str]| {
        let output = binary()
            .arg("consumers")
            .args(words)
            .arg("--config")
            .arg(home.path("manifest.yaml"))
            .output()
            .expect("the binary starts");
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let listed = || {
        let (exit, shown, errors) = consumers(&["list", "--json"]);
        assert_eq!(exit, Some(0), "{shown}{errors}");
        let shown: Value = serde_json::from_str(&shown).expect("a list");
        let lines = shown["items"].as_array().expect("its items");
        let short = |line: &Value| {
            let name = line["name"].as_str().expect("a name").to_owned();
            (name, line["exists"] == true, line["unused"] == true)
        };
        lines.iter().map(short).collect::<Vec<_>>()
    };
    let (charge, refund) = ("effect-shop-charge".to_owned(), "effect-shop-refund".to_owned());
    assert_eq!(listed(), [(charge.clone(), true, false)]);
    effect(&home, "refund");
    assert_eq!(
        listed(),
        [(refund.clone(), false, false), (charge.clone(), true, true)]
    );
    let (_, shown, _) = consumers(&["list"]);
    let line = shown.lines().find(|line| line.starts_with("effect-shop-charge "));
    assert!(line.is_some_and(|line| line.contains("orphaned")), "{shown}");

    let (exit, _, errors) = consumers(&["delete", &charge]);
    assert_eq!(exit, Some(64), "nobody has agreed: {errors}");
    assert!(errors.contains("--yes"), "{errors}");
    let (exit, _, errors) = consumers(&["delete", "effect-shop-eu-charge", "--yes"]);
    assert_ne!(exit, Some(0));
    assert!(
        errors.contains("is not an orphaned consumer; orphaned: effect-shop-charge"),
        "{errors}"
    );
    let (exit, _, errors) = consumers(&["delete", &charge, "--yes"]);
    assert_ne!(exit, Some(0));
    assert!(errors.contains("is in use"), "{errors}");
    assert_eq!(ours.stop(), Some(0));
    let (exit, shown, errors) = consumers(&["delete", &charge, "--yes", "-o", "json"]);
    assert_eq!(exit, Some(0), "{errors}");
    let shown: Value = serde_json::from_str(&shown).expect("JSON");
    assert_eq!(shown, json!({"name": charge, "deleted": true}));
    assert_eq!(listed(), [(refund, false, false)]);
}
