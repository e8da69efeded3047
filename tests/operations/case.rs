//! A case: the operation or the command that it is about, and the test of it.

use std::path::Path;
use std::process::Stdio;

use futures::future::LocalBoxFuture;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::process::Command;

use super::scene::{PATIENCE, Process, Scene, TENANT, json_of, text_of};
use crate::api::generated::wire::Answer;

/// One operation or one command.
#[derive(Clone, Copy)]
pub struct Case {
    /// An operation as docs/openapi.json names it, `GET /live`, or a command as it is typed, `instance pause`.
    pub name: &'static str,
    pub test: for<'s> fn(Turn<'s>) -> LocalBoxFuture<'s, ()>,
}

/// Rows of a table: a name and the function that tests it.
macro_rules! cases {
    ($($name:literal => $test:path),* $(,)?) => {
        &[$($crate::operations::case::Case {
            name: $name,
            test: |turn| Box::pin($test(turn)),
        }),*]
    };
}
pub(super) use cases;

/// A case whose turn it is.
#[derive(Clone, Copy)]
pub struct Turn<'s> {
    pub scene: &'s Scene,
    pub name: &'static str,
}

impl<'s> Turn<'s> {
    /// The operation of the case, asked of the process without shards; `names` fill the parameters of its path.
    pub fn ask(self, names: &[(&str, &str)]) -> Ask<'s> {
        self.ask_of(&self.scene.other, names)
    }

    /// The same, asked of the process that has the shards.
    pub fn ask_owner(self, names: &[(&str, &str)]) -> Ask<'s> {
        self.ask_of(&self.scene.owner, names)
    }

    /// The operation, for an instance of a saga.
    pub fn ask_about(self, saga: &str, key: &str) -> Ask<'s> {
        self.ask(&[("saga", saga), ("key", key)])
    }

    fn ask_of(self, process: &'s Process, names: &[(&str, &str)]) -> Ask<'s> {
        let (method, template) = self.name.split_once(' ').expect("a method and a path");
        let mut path = template.replace("{tenant}", TENANT);
        for (name, value) in names {
            path = path.replace(&format!("{{{name}}}"), value);
        }
        assert!(!path.contains('{'), "{path}: a name is missing");
        Ask {
            turn: self,
            process,
            method: method.parse().expect("a method"),
            path,
            body: None,
        }
    }

    /// Runs the command of the case with further words.
    pub async fn run(self, more: &[&str]) -> Said {
        self.run_with(more, &[]).await
    }

    /// The same with variables of the environment, of which it has no other.
    pub async fn run_with(self, more: &[&str], variables: &[(&str, &str)]) -> Said {
        self.scene.has_done(self.name);
        let mut command = Command::new(env!("CARGO_BIN_EXE_saga-runner"));
        command
            .env_clear()
            .envs(variables.iter().copied())
            .args(self.name.split(' '))
            .args(more)
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let output = tokio::time::timeout(PATIENCE, command.output()).await;
        let output = output.expect("it ends").expect("the binary starts");
        Said {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).expect("text"),
            err: String::from_utf8(output.stderr).expect("text"),
        }
    }

    /// The command against the process without shards.
    pub async fn other(self, more: &[&str]) -> Said {
        self.run(&[more, &["--url", &self.scene.other.url]].concat())
            .await
    }

    /// The command against the process that has the shards.
    pub async fn owner(self, more: &[&str]) -> Said {
        self.run(&[more, &["--url", &self.scene.owner.url]].concat())
            .await
    }

    /// The command for the tenant, against the process without shards.
    pub async fn tenant(self, more: &[&str]) -> Said {
        self.other(&[more, &["--tenant", TENANT]].concat()).await
    }

    /// The command with the manifest of the process that has the shards.
    pub async fn manifest(self, more: &[&str]) -> Said {
        let manifest = self.scene.owner.rig.lock().await.manifest();
        self.run(&[more, &["--config", text(&manifest)]].concat()).await
    }
}

/// A request that is being put together.
pub struct Ask<'s> {
    turn: Turn<'s>,
    process: &'s Process,
    method: Method,
    path: String,
    body: Option<Value>,
}

impl Ask<'_> {
    pub fn query(mut self, query: &str) -> Self {
        self.path = format!("{}?{query}", self.path);
        self
    }

    pub fn body(mut self, body: Value) -> Self {
        self.body = Some(body);
        self
    }

    /// Sends it. The answer has this status, and is what the document says.
    pub async fn answered(self, status: u16) -> Answer {
        let (scene, name) = (self.turn.scene, self.turn.name);
        let answer = scene
            .send(self.process, self.method, &self.path, self.body.as_ref())
            .await;
        scene.has_done(name);
        assert_eq!(answer.status, status, "{}: {}", self.path, text_of(&answer));
        let fault = scene.fault(name, &answer);
        assert_eq!(fault, None, "{}: {}", self.path, text_of(&answer));
        answer
    }

    /// Opens it as a stream of events, and gives the first of them.
    pub async fn first_event(self) -> String {
        let (scene, name) = (self.turn.scene, self.turn.name);
        let mut response = scene.open(self.process, &self.path).await;
        scene.has_done(name);
        assert_eq!(response.status().as_u16(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        let mut text = String::new();
        loop {
            if let Some((first, _)) = text.split_once("\n\n") {
                return first.to_owned();
            }
            let chunk = response.chunk().await.expect("it goes on");
            text.push_str(&String::from_utf8_lossy(&chunk.expect("an event comes")));
        }
    }

    /// Sends it; the answer is JSON.
    pub async fn gives(self, status: u16) -> Value {
        json_of(&self.answered(status).await)
    }

    /// The same for a request to an instance: its outcome is waited for, and it is applied.
    pub async fn applied(self) -> Value {
        let done = self.query("wait=60s").gives(200).await;
        assert_eq!(
            (&done["outcome"]["state"], &done["checked"]),
            (&json!("applied"), &json!(true)),
            "{done}"
        );
        done
    }
}

/// What a command has printed.
#[derive(Debug)]
pub struct Said {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Said {
    pub fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:?}");
        self
    }

    /// It succeeds, and this is in its output.
    pub fn shows(self, part: &str) -> Self {
        let said = self.exits(0);
        assert!(said.out.contains(part), "{part:?}: {said:?}");
        said
    }

    /// The same for what it says beside its output.
    pub fn notes(self, part: &str) -> Self {
        let said = self.exits(0);
        assert!(said.err.contains(part), "{part:?}: {said:?}");
        said
    }

    /// It succeeds, and its output is JSON.
    pub fn json(self) -> Value {
        let said = self.exits(0);
        serde_json::from_str(&said.out).unwrap_or_else(|error| panic!("{error}: {said:?}"))
    }
}

/// A path as a word of a command line.
pub fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}
