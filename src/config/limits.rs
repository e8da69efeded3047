//! Limits of the manifest: lower than the built-in ones, or as they are.

use crate::kernel::limits::Limits;

/// The limits that are not lowered, but raised, or nothing at all; a sentence each.
pub(super) fn raised(limits: &Limits) -> Vec<String> {
    let most = Limits::default();
    // As wide as the widest of them.
    let wide = |value: usize| u64::try_from(value).unwrap_or(u64::MAX);
    [
        ("record_bytes", wide(limits.record_bytes), wide(most.record_bytes)),
        (
            "payload_bytes",
            wide(limits.payload_bytes),
            wide(most.payload_bytes),
        ),
        ("json_depth", wide(limits.json_depth), wide(most.json_depth)),
        ("work_items", wide(limits.work_items), wide(most.work_items)),
        ("expression_steps", limits.expression_steps, most.expression_steps),
        ("inbox_inputs", wide(limits.inbox_inputs), wide(most.inbox_inputs)),
        ("inbox_bytes", wide(limits.inbox_bytes), wide(most.inbox_bytes)),
        ("early_inputs", wide(limits.early_inputs), wide(most.early_inputs)),
        ("early_bytes", wide(limits.early_bytes), wide(most.early_bytes)),
        (
            "timer_ms",
            u64::try_from(limits.timer_ms).unwrap_or(0),
            most.timer_ms.unsigned_abs(),
        ),
        ("hops", u64::from(limits.hops), u64::from(most.hops)),
        ("aliases", wide(limits.aliases), wide(most.aliases)),
        ("alias_owners", wide(limits.alias_owners), wide(most.alias_owners)),
        (
            "alias_wait_ms",
            u64::try_from(limits.alias_wait_ms).unwrap_or(0),
            most.alias_wait_ms.unsigned_abs(),
        ),
    ]
    .into_iter()
    .filter(|(_, value, max)| value > max || *value == 0)
    .map(|(name, value, max)| format!("limits.{name} must be between 1 and {max}, found {value}"))
    .collect()
}
