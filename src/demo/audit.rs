//! The outcome of the orders, by the runner's word and by the upstream's.

use std::collections::{BTreeMap, BTreeSet};

use comfy_table::{Cell, CellAlignment, Table, presets};

use super::upstream::Deed;

/// The end of one order as the runner tells it.
#[derive(Debug, Clone)]
pub struct Ending {
    pub order: String,
    pub phase: String,
    pub failure: Option<String>,
}

/// How the books stand.
#[derive(Debug)]
pub struct Audit {
    pub table: Table,
    /// What is wrong, empty when all is well.
    pub faults: Vec<String>,
    pub charges: usize,
    pub refunds: usize,
    pub shipments: usize,
    /// Calls beyond the first with the same idempotency key.
    pub repeated_calls: u32,
}

impl Audit {
    /// Compares the endings with the upstream's deeds.
    pub fn new(endings: &[Ending], deeds: &[Deed]) -> Self {
        let by_kind = |kind: &str| -> BTreeSet<&str> {
            deeds
                .iter()
                .filter(|deed| deed.kind == kind)
                .map(|deed| deed.order.as_str())
                .collect()
        };
        let (charged, refunded) = (by_kind("charges"), by_kind("refunds"));
        let (reserved, released) = (by_kind("reservations"), by_kind("releases"));
        let (shipped, unshipped) = (by_kind("shipments"), by_kind("cancellations"));
        let mut faults = Vec::new();
        for ending in endings {
            let order = ending.order.as_str();
            let mut demand = |holds: bool, fault: &str| {
                if !holds {
                    faults.push(format!("{order} ({}): {fault}", ending.phase));
                }
            };
            if ending.phase == "completed" {
                demand(shipped.contains(order), "completed and not shipped");
                demand(charged.contains(order), "completed and not charged");
                demand(!refunded.contains(order), "completed and refunded");
            } else {
                demand(
                    matches!(ending.phase.as_str(), "failed" | "cancelled"),
                    "did not come to an end",
                );
                demand(
                    !charged.contains(order) || refunded.contains(order),
                    "charged, not shipped and not refunded",
                );
                demand(
                    !reserved.contains(order) || released.contains(order),
                    "reserved and not released",
                );
                demand(
                    !shipped.contains(order) || unshipped.contains(order),
                    "shipped although it failed",
                );
            }
        }
        faults.extend(doubled(deeds));
        Self {
            table: table(endings),
            faults,
            charges: charged.len(),
            refunds: refunded.len(),
            shipments: shipped.len(),
            repeated_calls: deeds.iter().map(|deed| deed.calls.saturating_sub(1)).sum(),
        }
    }
}

/// Orders for which the same kind of deed was done under two keys: a double charge.
fn doubled(deeds: &[Deed]) -> Vec<String> {
    let mut keys: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for deed in deeds
        .iter()
        .filter(|deed| !matches!(deed.kind.as_str(), "commands" | "scores"))
    {
        *keys.entry((&deed.kind, &deed.order)).or_default() += 1;
    }
    keys.into_iter()
        .filter(|(_, count)| *count > 1)
        .map(|((kind, order), count)| format!("{order}: {count} {kind}"))
        .collect()
}

fn table(endings: &[Ending]) -> Table {
    let mut counts: BTreeMap<(String, String), usize> = BTreeMap::new();
    for ending in endings {
        let why = ending.failure.clone().unwrap_or_else(|| "-".to_owned());
        *counts.entry((outcome(ending).to_owned(), why)).or_default() += 1;
    }
    let mut table = Table::new();
    table
        .load_style(presets::UTF8_FULL_CONDENSED)
        .set_header(["outcome", "because of", "orders"]);
    for ((outcome, why), count) in counts {
        table.add_row([
            Cell::new(outcome),
            Cell::new(why),
            Cell::new(count).set_alignment(CellAlignment::Right),
        ]);
    }
    table
}

fn outcome(ending: &Ending) -> &str {
    match (ending.phase.as_str(), ending.failure.as_deref()) {
        ("completed", _) => "completed",
        ("failed", Some(code)) if code.contains("timeout") => "timed out and undone",
        ("failed", _) => "compensated",
        ("cancelled", _) => "cancelled and undone",
        (phase, _) => phase,
    }
}
