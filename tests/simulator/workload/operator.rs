//! An operator: tries once more and discards what cannot be applied, and states unknown outcomes.

use std::sync::Arc;

use saga_runner::app::Node;
use saga_runner::kernel::envelope::{ControlMessage, ControlVerb, FoundAs, Principal, Role, Stuck};
use saga_runner::kernel::ids::{SagaName, TenantId};
use saga_runner::kernel::view::{InstanceView, StuckIn, StuckView};
use saga_runner::ports::control::{
    ControlError, DeadLetterView, DeadLetters as _, Instances as _, LetterDecision, LetterFilter, PageRequest,
};
use serde_json::json;

use super::{TENANTS, ada};
use crate::judges;
use crate::run::Simulation;
use crate::store::POISON;

/// Sagas in which something may wait for an operator: parents behind the children that they took back.
const ASKING: [&str; 5] = ["pay", "part", "order", "trip", "bill"];

/// Sagas of which an operator deletes some instances that have ended, where there is an archive.
const DELETED: [&str; 3] = ["list", "bill", "pay"];

fn page() -> PageRequest {
    PageRequest::new(None, 500)
}

impl Simulation {
    /// Decides about all that waits for an operator.
    pub async fn operate(&mut self, node: &Arc<Node>) -> Result<(), ControlError> {
        for tenant in TENANTS {
            self.decide_what_blocks(node, tenant).await?;
            if judges::archive::is_kept(self) {
                self.delete_some(node, tenant).await?;
            }
            for saga in ASKING {
                let name = SagaName::parse(saga).expect("a saga");
                let id = TenantId::parse(tenant).expect("a tenant");
                let found = node.instances(&id, &name, None, page()).await?;
                for view in &found.items {
                    self.resume_forgotten(node, tenant, view).await?;
                    for stuck in &view.stuck {
                        self.answer(node, tenant, view, stuck).await?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Deletes some of what has ended, before its time.
    async fn delete_some(&self, node: &Arc<Node>, tenant: &str) -> Result<(), ControlError> {
        let id = TenantId::parse(tenant).expect("a tenant");
        for saga in DELETED {
            let name = SagaName::parse(saga).expect("a saga");
            let found = node.instances(&id, &name, None, page()).await?;
            let ended = found.items.iter().filter(|view| view.ended.is_some());
            for view in ended.filter(|view| view.key.ends_with('1')) {
                let message = ControlMessage {
                    request_id: format!("delete-{saga}-{}-{}", view.key, view.generation),
                    principal: Some(Principal {
                        role: Role::Admin,
                        ..ada("erasure")
                    }),
                    verb: ControlVerb::Delete { parent_over: false },
                };
                let id = judges::instance(tenant, saga, &view.key);
                match node.control(&id, message, None).await {
                    // It was asked for before, or is needed still.
                    Ok(_) | Err(ControlError::Conflict(_) | ControlError::NotFound(_)) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// Resumes what is still paused: whoever was to do so may not have been heard.
    async fn resume_forgotten(
        &self,
        node: &Arc<Node>,
        tenant: &str,
        view: &InstanceView,
    ) -> Result<(), ControlError> {
        let blocked = view.blocked_by.as_ref();
        if blocked.is_none_or(|blocked| blocked.paused.is_none()) {
            return Ok(());
        }
        let id = judges::instance(tenant, &view.saga, &view.key);
        let message = ControlMessage {
            request_id: format!("resume-{}-{}", view.key, self.world.clock.passed().as_millis()),
            principal: Some(ada("forgotten")),
            verb: ControlVerb::Resume {},
        };
        match node.control(&id, message, None).await {
            Ok(_) | Err(ControlError::Conflict(_) | ControlError::NotFound(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn decide_what_blocks(&mut self, node: &Arc<Node>, tenant: &str) -> Result<(), ControlError> {
        let tenant = TenantId::parse(tenant).expect("a tenant");
        let blocking =
            |letters: Vec<DeadLetterView>| letters.into_iter().filter(|letter| letter.key.is_some());
        let may_retry = self.plan.seed.is_multiple_of(3);
        for letter in blocking(
            node.dead_letters(&tenant, LetterFilter::default(), page())
                .await?
                .items,
        ) {
            // In vain, and it blocks again, under another number.
            if may_retry && letter.reason == "expression" && letter.attempts == 1 {
                node.decide(&tenant, &letter.id, LetterDecision::Retry.into())
                    .await?;
            }
        }
        for letter in blocking(
            node.dead_letters(&tenant, LetterFilter::default(), page())
                .await?
                .items,
        ) {
            node.decide(&tenant, &letter.id, LetterDecision::Discard.into())
                .await?;
            self.discarded += 1;
        }
        Ok(())
    }

    /// Looks the work up where it was to be done, and says what he has found.
    async fn answer(
        &self,
        node: &Arc<Node>,
        tenant: &str,
        view: &InstanceView,
        stuck: &StuckView,
    ) -> Result<(), ControlError> {
        let key = stuck.idempotency_key.as_deref();
        // What is poison the operator writes in other words.
        let receipt = key.and_then(|key| self.upstream.receipt(key));
        let receipt = receipt.map(|receipt| receipt.replace(POISON, "r"));
        let about = Stuck {
            step: Some(stuck.step.clone()),
            item: stuck.item,
            found: None,
            result: None,
        };
        let verb = match (stuck.what, receipt) {
            (StuckIn::Step, Some(receipt)) => ControlVerb::Resolve(Stuck {
                found: Some(FoundAs::Done),
                result: Some(json!({"receipt": receipt})),
                ..about
            }),
            (StuckIn::Step, None) => ControlVerb::Resolve(Stuck {
                found: Some(FoundAs::NotDone),
                ..about
            }),
            (StuckIn::Compensation, Some(_)) => ControlVerb::Resolve(about),
            (StuckIn::Compensation, None) => ControlVerb::Retry(about),
        };
        let id = judges::instance(tenant, &view.saga, &view.key);
        let request = format!(
            "answer-{}-{}-{}",
            view.key,
            stuck.step,
            self.world.clock.passed().as_millis()
        );
        self.world
            .note(format_args!("operator about {id}, step {}: {verb:?}", stuck.step));
        let message = ControlMessage {
            request_id: request,
            principal: Some(ada("looked it up")),
            verb,
        };
        match node.control(&id, message, None).await {
            // It is resolved meanwhile.
            Ok(_) | Err(ControlError::Conflict(_) | ControlError::NotFound(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }
}
