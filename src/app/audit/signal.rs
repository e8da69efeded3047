//! Reloads that a signal asks for, which are changes as those that a request asks for.

use std::collections::BTreeMap;

use uuid::Uuid;

use super::super::node::Node;
use crate::kernel::ids::TimeMs;
use crate::ports::control::{Audit as _, AuditOutcome, AuditRecord, ReloadError, Reloaded};

/// Who may signal a process is decided by its machine, which does not say who has.
const PRINCIPAL: &str = "signal";
/// Stands where a request has its method and its endpoint.
const SIGNAL: &str = "SIGHUP";

/// Reads the definitions again because of a signal. The record says what the log says of the outcome in short.
pub(in crate::app) async fn reload(node: &Node) {
    let asked = node.clock.now();
    let outcome = node.reload().await;
    let id = Uuid::from_u128(node.randomness.draw()).to_string();
    let record = record(id, asked, &outcome);
    tracing::info!(
        target: "audit",
        id = record.id,
        principal = PRINCIPAL,
        action = record.action,
        outcome = record.outcome.as_str(),
        "a signal has asked for a reload"
    );
    node.audit(record);
}

fn record(id: String, asked: TimeMs, outcome: &Result<Reloaded, ReloadError>) -> AuditRecord {
    AuditRecord {
        id,
        time: asked.rfc3339(),
        principal: Some(PRINCIPAL.to_owned()),
        by: None,
        // That of the request for the same.
        role: "admin".to_owned(),
        peer: None,
        method: SIGNAL.to_owned(),
        endpoint: SIGNAL.to_owned(),
        action: "reload".to_owned(),
        tenant: None,
        target: BTreeMap::new(),
        reason: None,
        dry_run: false,
        request_id: None,
        trace_id: None,
        status: None,
        outcome: match outcome {
            Ok(_) => AuditOutcome::Done,
            Err(ReloadError::Refused { .. }) => AuditOutcome::Refused,
            Err(ReloadError::Unavailable(_)) => AuditOutcome::Failed,
        },
        code: None,
        process: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outcome_of_a_reload_is_that_of_its_record() {
        let refused = ReloadError::Refused {
            message: "wrong".to_owned(),
            findings: Vec::new(),
        };
        for (outcome, wanted) in [
            (Err(refused), AuditOutcome::Refused),
            (
                Err(ReloadError::Unavailable("draining".to_owned())),
                AuditOutcome::Failed,
            ),
        ] {
            let record = record("1".to_owned(), TimeMs(0), &outcome);
            assert_eq!(record.outcome, wanted);
            assert!(!super::super::is_anonymous(&record));
        }
    }
}
