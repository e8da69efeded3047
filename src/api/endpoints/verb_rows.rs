//! The rows of what operators do to an instance.

use super::super::verbs;
use super::Endpoint;
use super::rows::{ADMIN, OPERATOR, tenant_rows};
use crate::kernel::subject::Tenancy;

/// What operators do to an instance as a whole, and to its timers.
pub(super) fn of_verbs(tenancy: Tenancy) -> Vec<Endpoint> {
    let rows = tenant_rows(tenancy);
    let one = |rest: &str| format!("/sagas/{{saga}}/instances/{{key}}{rest}");
    vec![
        rows.post(&one("/pause"), OPERATOR, "Pause an instance", verbs::pause)
            .request(),
        rows.post(&one("/resume"), OPERATOR, "Resume an instance", verbs::resume)
            .request(),
        rows.post(
            &one("/kill"),
            OPERATOR,
            "End an instance at once, without compensation",
            verbs::kill,
        )
        .request(),
        rows.post(
            &one("/restart"),
            OPERATOR,
            "Begin an ended instance again, with nothing kept",
            verbs::restart,
        )
        .request(),
        rows.delete(
            &one(""),
            ADMIN,
            "Delete an ended instance with its history, and what is kept of earlier generations of its key",
            verbs::delete,
        )
        .request()
        .by_owner(),
        rows.post(
            &one("/migrate"),
            OPERATOR,
            "Migrate an instance to another version of its saga",
            verbs::migrate,
        )
        .body()
        .by_owner(),
        rows.post(
            &one("/try-now"),
            OPERATOR,
            "Make the next attempt of what backs off now",
            verbs::try_now,
        )
        .request(),
        rows.post(
            &one("/timers/{name}/fire"),
            OPERATOR,
            "Fire a timer of an instance now",
            verbs::fire_timer,
        )
        .request(),
        rows.post(
            &one("/timers/{name}/cancel"),
            OPERATOR,
            "Cancel a timer of an instance",
            verbs::cancel_timer,
        )
        .request(),
    ]
}
