//! Folders and the cluster that they belong to.

use super::*;

#[test]
fn data_of_others_is_refused_with_78() {
    let home = Home::new();
    assert_eq!(home.start().stop(), Some(0));

    let (exit, line) = home.refusal(&home.with(json!({"cluster": "other"})));
    assert_eq!(exit, Some(78), "{line}");
    assert!(line.contains("SR0407") && line.contains("other"), "{line}");

    let (exit, line) = home.refusal(&home.with(json!({"shards": 3})));
    assert_eq!(exit, Some(78), "{line}");
    assert!(line.contains("SR0407"), "{line}");

    let runner = home.start();
    let port = saga_runner::app::nats_server::free_port().expect("a free port");
    let elsewhere =
        json!({"http": {"listen": format!("127.0.0.1:{port}"), "admin_listen": format!("127.0.0.1:{port}")}});
    let (exit, line) = home.refusal(&home.with(elsewhere));
    assert_eq!(exit, Some(78), "{line}");
    assert!(line.contains("SR0201"), "{line}");
    assert_eq!(runner.stop(), Some(0));

    let shard = home.path("data/shard-0001");
    std::fs::remove_dir_all(&shard).expect("removed");
    std::fs::create_dir(&shard).expect("created");
    let (exit, line) = home.refusal(&home.path("manifest.yaml"));
    assert_eq!(exit, Some(78), "{line}");
    assert!(line.contains("SR0205") && line.contains("shard-0001"), "{line}");
}

/// What the folder says of its cluster.
fn cluster_id(home: &Home) -> String {
    let text = std::fs::read_to_string(home.path("data/cluster.json")).expect("written");
    let marker: Value = serde_json::from_str(&text).expect("JSON");
    marker["id"].as_str().expect("an id").to_owned()
}

/// Takes the record of the cluster away, and stores a message of a cluster that has worked.
fn disturb(server: &NatsServer, lose_record: bool, leave_work: bool) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let context = async_nats::jetstream::new(async_nats::connect(server.url()).await.expect("connected"));
        if lose_record {
            context
                .delete_key_value("WORKFLOW_CLUSTER")
                .await
                .expect("removed");
        }
        if leave_work {
            let sent = context
                .publish("effect_result.charge.x", "{}".into())
                .await
                .expect("sent");
            sent.await.expect("stored");
        }
    });
}

#[test]
fn the_id_of_a_cluster_outlives_restarts_and_the_loss_of_either_copy() {
    let server = NatsServer::start();
    let mut home = Home::new();
    home.manifest["broker"] = json!({"kind": "nats", "nats": {"urls": [server.url()]}});
    home.write("manifest.yaml", &home.manifest);
    let once = || {
        assert_eq!(home.start().stop(), Some(0));
        cluster_id(&home)
    };
    let id = once();
    assert_eq!(once(), id, "a restart");

    disturb(&server, true, true);
    assert_eq!(once(), id, "the broker lost its record");
    std::fs::remove_dir_all(home.path("data")).expect("removed");
    let (exit, line) = home.refusal(&home.path("manifest.yaml"));
    assert_eq!(exit, Some(78), "{line}");
    assert!(
        line.contains("SR0205") && line.contains("--adopt-loss 0@3,1@3"),
        "a fresh folder beside the record: {line}"
    );

    disturb(&server, true, false);
    let (exit, line) = home.refusal(&home.path("manifest.yaml"));
    assert_eq!(exit, Some(78), "{line}");
    assert!(
        line.contains("SR0411") && line.contains("WORKFLOW_EVENTS"),
        "{line}"
    );
}

#[test]
fn a_folder_of_another_cluster_of_the_same_name_is_refused_with_78() {
    let (home, other) = (Home::new(), Home::new());
    assert_eq!(home.start().stop(), Some(0));
    assert_eq!(other.start().stop(), Some(0));
    let (id, foreign) = (cluster_id(&home), cluster_id(&other));
    assert_ne!(id, foreign);

    let text = std::fs::read_to_string(home.path("data/cluster.json")).expect("written");
    std::fs::write(home.path("data/cluster.json"), text.replace(&id, &foreign)).expect("written");
    let (exit, line) = home.refusal(&home.path("manifest.yaml"));
    assert_eq!(exit, Some(78), "{line}");
    assert!(
        line.contains("SR0410") && line.contains(&id) && line.contains(&foreign),
        "{line}"
    );

    // A shard of another cluster under a marker that was corrected by hand.
    std::fs::write(home.path("data/cluster.json"), &text).expect("written");
    std::fs::remove_dir_all(home.path("data/shard-0001")).expect("removed");
    std::fs::rename(other.path("data/shard-0001"), home.path("data/shard-0001")).expect("moved");
    let (exit, line) = home.refusal(&home.path("manifest.yaml"));
    assert_eq!(exit, Some(78), "{line}");
    assert!(line.contains("SR0202") && line.contains(&foreign), "{line}");
}
