//! What people and other systems ask of instances, by the API or by a message.

use std::sync::Arc;
use std::time::Duration;

use saga_runner::app::Node;
use saga_runner::kernel::envelope::ControlVerb;
use saga_runner::kernel::input::CancelMode;
use saga_runner::ports::control::{ControlError, Instances as _};
use serde_json::{Map, json};

use crate::judges;
use crate::run::{COMMANDS, Simulation};

/// How often somebody asks whom nobody answers.
const ASKED_MAX: usize = 10;

#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    pub tenant: &'static str,
    pub saga: &'static str,
    pub key: String,
    pub id: String,
    /// Otherwise by a message.
    pub by_api: bool,
    pub verb: Verb,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    Signal(&'static str),
    /// How.
    Cancel(&'static str),
}

impl Verb {
    fn of_api(self) -> ControlVerb {
        match self {
            Self::Signal(name) => ControlVerb::Signal {
                name: name.to_owned(),
                data: Map::new(),
                by: "ada".to_owned(),
                hops: 0,
            },
            Self::Cancel(mode) => ControlVerb::Cancel {
                reason: "no more".to_owned(),
                mode: if mode == "drain" {
                    CancelMode::Drain
                } else {
                    CancelMode::Compensate
                },
            },
        }
    }
}

impl Simulation {
    pub fn ask(&self, node: &Arc<Node>, request: Request) {
        let Request {
            tenant, saga, key, ..
        } = &request;
        self.world.note(format_args!(
            "asked for {tenant}/{saga}/{key}: {:?}",
            request.verb
        ));
        if !request.by_api {
            // A cluster is not made where its streams hold something already.
            if !self.folder.is_in_use() {
                return;
            }
            let mut body = match request.verb {
                Verb::Signal(name) => json!({"control": "signal", "name": name, "by": "ada"}),
                Verb::Cancel(mode) => json!({"control": "cancel", "reason": "no more", "mode": mode}),
            };
            body["request_id"] = request.id.clone().into();
            let subject = format!("tenant.{tenant}.workflow.{saga}.{key}");
            self.server
                .append(COMMANDS, subject, body.to_string().into_bytes());
            return;
        }
        let node = Arc::clone(node);
        drop(tokio::spawn(async move {
            let id = judges::instance(request.tenant, request.saga, &request.key);
            for _ in 0..ASKED_MAX {
                // The same request, however often it is sent.
                match node.control(&id, &request.id, request.verb.of_api()).await {
                    Err(ControlError::Unavailable(_)) => {}
                    Ok(_)
                    | Err(
                        ControlError::NotFound(_)
                        | ControlError::Invalid(_)
                        | ControlError::Conflict(_)
                        | ControlError::Gone(_),
                    ) => {
                        return;
                    }
                }
                tokio::time::sleep(Duration::from_secs(2)).await;
            }
        }));
    }
}
