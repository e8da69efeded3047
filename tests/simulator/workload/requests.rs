//! What people and other systems ask of instances, by the API or by a message.

use std::sync::Arc;
use std::time::Duration;

use saga_runner::app::Node;
use saga_runner::kernel::envelope::{ControlMessage, ControlVerb, Principal, Role, Sender};
use saga_runner::kernel::input::CancelMode;
use saga_runner::ports::control::{ControlError, Instances as _};
use serde_json::{Map, json};

use crate::judges;
use crate::run::{CLUSTER, COMMANDS, Simulation};

/// What the ids of requests begin with that nobody had the right to send.
pub const FORGED: &str = "forged-";

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
    Pause,
    Resume,
}

/// Whoever decides about instances.
pub fn ada(reason: &str) -> Principal {
    Principal {
        who: "ada".to_owned(),
        role: Role::Operator,
        reason: reason.to_owned(),
    }
}

impl Verb {
    fn said(self) -> ControlVerb {
        match self {
            Self::Signal(name) => ControlVerb::Signal {
                name: name.to_owned(),
                data: Map::new(),
                by: "ada".to_owned(),
                hops: 0,
            },
            Self::Pause => ControlVerb::Pause {},
            Self::Resume => ControlVerb::Resume {},
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

impl Request {
    fn message(&self) -> ControlMessage {
        let is_of_operator = matches!(self.verb, Verb::Pause | Verb::Resume);
        ControlMessage {
            request_id: self.id.clone(),
            principal: is_of_operator.then(|| ada("a look")),
            verb: self.verb.said(),
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
            let of_tenant = format!("tenant.{tenant}.workflow.{saga}.{key}");
            // Whoever may publish for a tenant may try this as well.
            let forged = json!({
                "request_id": format!("{FORGED}{}", request.id), "control": "kill",
                "principal": {"who": "mallory", "role": "admin", "reason": "why not"},
            });
            self.server
                .append(COMMANDS, of_tenant.clone(), forged.to_string().into_bytes());
            let message = request.message();
            let subject = match message.verb.sender() {
                Sender::Tenant => of_tenant,
                _ => format!("runner.{CLUSTER}.control.{tenant}.{saga}.{key}"),
            };
            let body = serde_json::to_vec(&message).expect("plain data");
            self.server.append(COMMANDS, subject, body);
            return;
        }
        let node = Arc::clone(node);
        drop(tokio::spawn(async move {
            let id = judges::instance(request.tenant, request.saga, &request.key);
            for _ in 0..ASKED_MAX {
                // The same request, however often it is sent.
                match node.control(&id, request.message(), None).await {
                    Err(ControlError::Unavailable(_)) => {}
                    Ok(_)
                    | Err(
                        ControlError::NotFound(_)
                        | ControlError::Invalid(_)
                        | ControlError::Conflict(_)
                        | ControlError::Mismatch(_)
                        | ControlError::Unfit { .. }
                        | ControlError::Forbidden(_)
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
