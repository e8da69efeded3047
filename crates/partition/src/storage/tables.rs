//! The tables of a shard.

use super::TableIndex;

/// Names, in the order of the indices below.
pub const NAMES: &[&str] = &[
    "instances",
    "outbox",
    "history",
    "timers",
    "inbox",
    "dead_letters",
    "tombstones",
    "ended",
    "definitions",
    "meta",
    "schedules",
    "aliases",
    "begun",
    "expiries",
    "local",
    "listed",
    "statuses",
    "deleted",
    "inputs",
    "earlier",
    "work",
];

/// tenant, saga, key → record. The one scattered row of a transition.
pub const INSTANCES: TableIndex = 0;
/// log sequence, index → work item. Appended; deleted near the end.
pub const OUTBOX: TableIndex = 1;
/// log sequence → history row. Appended.
pub const HISTORY: TableIndex = 2;
/// due, set by → instance and name.
pub const TIMERS: TableIndex = 3;
/// tenant, saga, key, number → an input that waits, with the reason.
pub const INBOX: TableIndex = 4;
/// log sequence → dead letter. Appended.
pub const DEAD_LETTERS: TableIndex = 5;
/// hash of tenant, saga, key → generation and where the summary is.
pub const TOMBSTONES: TableIndex = 6;
/// log sequence → instance and summary. Appended.
pub const ENDED: TableIndex = 7;
/// definition hash → saga and source text.
pub const DEFINITIONS: TableIndex = 8;
/// Everything of the partition that exists once: counters, positions, active definitions.
pub const META: TableIndex = 9;
/// tenant, saga → where the schedule stands.
pub const SCHEDULES: TableIndex = 10;
/// tenant, saga, address of an alias → the instances that have it.
pub const ALIASES: TableIndex = 11;
/// log sequence, index of a work item → nothing: its call may have begun.
pub const BEGUN: TableIndex = 12;
/// time, log sequence → nothing: until then this ended instance is kept, because its saga says so.
pub const EXPIRIES: TableIndex = 13;
/// What is about this folder and not about the partition: whose it is, and whether it was closed cleanly.
pub const LOCAL: TableIndex = 14;
/// tenant, saga, status, log sequence, key → key of an instance. One row for each that is live or kept, replaced when its status
/// changes.
pub const LISTED: TableIndex = 15;
/// tenant, saga, status → number of instances.
pub const STATUSES: TableIndex = 16;
/// tenant, saga, key → who has deleted the ended instance of the tombstone, and by what repetitions of its inputs are recognised.
pub const DELETED: TableIndex = 17;
/// log sequence → the input that the history row there is about, compressed. Appended.
pub const INPUTS: TableIndex = 18;
/// tenant, saga, key, log sequence → nothing: the ended instance there is of a generation before the one of the tombstone.
pub const EARLIER: TableIndex = 19;
/// log sequence → the work that the input of the history row there has caused, compressed. Appended.
pub const WORK: TableIndex = 20;
