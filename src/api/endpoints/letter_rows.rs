//! The rows of dead letters.

use super::super::{letters, queries};
use super::Endpoint;
use super::rows::{OPERATOR, PAGE, VIEWER, tenant_rows};
use crate::kernel::subject::Tenancy;

/// Inputs that could not be applied.
pub(super) fn of_letters(tenancy: Tenancy) -> Vec<Endpoint> {
    let rows = tenant_rows(tenancy);
    vec![
        rows.get(
            "/dead-letters",
            VIEWER,
            "List the dead letters",
            queries::dead_letters,
        )
        .knows(queries::LETTER_FILTER)
        .knows(PAGE),
        rows.get(
            "/dead-letters/count",
            VIEWER,
            "Count the dead letters by what they have in common",
            queries::count_dead_letters,
        )
        .knows(queries::LETTER_FILTER)
        .knows(&["by"]),
        rows.get(
            "/dead-letters/{id}",
            VIEWER,
            "Show a dead letter: its input, what is expected, and what a retry would come to",
            queries::dead_letter,
        ),
        rows.post(
            "/dead-letters/{id}/retry",
            OPERATOR,
            "Process a dead letter again, as it came or with edited data",
            letters::retry,
        )
        .body()
        .by_owner(),
        rows.post(
            "/dead-letters/{id}/discard",
            OPERATOR,
            "Give a dead letter up",
            letters::discard,
        )
        .body()
        .by_owner(),
    ]
}
