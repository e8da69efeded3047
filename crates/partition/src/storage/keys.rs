//! Keys: order-preserving, and no key of one tenant can be a prefix or a forgery of another's.

use saga_runner_kernel::ids::{InstanceId, Key, SagaName, TenantId, TimeMs};
use saga_runner_kernel::instance_status::{BlockedCause, InstanceStatus, Listing, Waits};
use saga_runner_kernel::record::Phase;
use saga_runner_kernel::work::WorkRef;

/// Appends `text` so that order is kept: byte `00` becomes `00 FF`, the end is `00 01`.
fn escape(out: &mut Vec<u8>, text: &str) {
    for &byte in text.as_bytes() {
        out.push(byte);
        if byte == 0 {
            out.push(0xFF);
        }
    }
    out.extend_from_slice(&[0, 1]);
}

/// Takes one escaped text off the front.
fn unescape(bytes: &mut &[u8]) -> Option<String> {
    let mut text = Vec::new();
    loop {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        if byte != 0 {
            text.push(byte);
            continue;
        }
        let (&mark, rest) = bytes.split_first()?;
        *bytes = rest;
        match mark {
            0xFF => text.push(0),
            1 => return String::from_utf8(text).ok(),
            _ => return None,
        }
    }
}

/// `tenant, saga, key`
#[must_use]
pub fn instance(id: &InstanceId) -> Vec<u8> {
    let mut key = saga_prefix(&id.tenant, &id.saga);
    escape(&mut key, id.key.as_str());
    key
}

/// What the keys of all instances of one saga begin with.
#[must_use]
pub fn saga_prefix(tenant: &TenantId, saga: &SagaName) -> Vec<u8> {
    let mut key = Vec::with_capacity(64);
    escape(&mut key, tenant.as_str());
    escape(&mut key, saga.as_str());
    key
}

/// What the keys of all instances of one saga begin with whose own keys begin with `beginning`.
#[must_use]
pub fn key_prefix(tenant: &TenantId, saga: &SagaName, beginning: &str) -> Vec<u8> {
    let mut key = saga_prefix(tenant, saga);
    escape(&mut key, beginning);
    key.truncate(key.len() - 2);
    key
}

/// What the keys of everything of one tenant begin with.
#[must_use]
pub fn tenant_prefix(tenant: &TenantId) -> Vec<u8> {
    let mut key = Vec::with_capacity(32);
    escape(&mut key, tenant.as_str());
    key
}

/// `tenant, saga, status`
#[must_use]
pub fn status(tenant: &TenantId, saga: &SagaName, status: &InstanceStatus) -> Vec<u8> {
    let InstanceStatus {
        phase,
        blocked_by,
        waits_for,
        error,
    } = status;
    let mut key = saga_prefix(tenant, saga);
    key.extend([
        place_in(&Phase::ALL, phase),
        place_in(&BlockedCause::ALL, blocked_by),
        place_in(&Waits::ALL, waits_for),
    ]);
    escape(&mut key, error);
    key
}

/// Which of `all` it is.
fn place_in<T: PartialEq>(all: &[T], one: &T) -> u8 {
    let place = all.iter().position(|other| other == one);
    place
        .and_then(|place| u8::try_from(place).ok())
        .unwrap_or(u8::MAX)
}

/// The status of a key that [`status`] wrote.
#[must_use]
pub fn read_status(mut bytes: &[u8]) -> Option<(TenantId, SagaName, InstanceStatus)> {
    let tenant = TenantId::parse(&unescape(&mut bytes)?).ok()?;
    let saga = SagaName::parse(&unescape(&mut bytes)?).ok()?;
    let (&[phase, blocked_by, waits_for], mut rest) = bytes.split_first_chunk()?;
    let status = InstanceStatus {
        phase: *Phase::ALL.get(usize::from(phase))?,
        blocked_by: *BlockedCause::ALL.get(usize::from(blocked_by))?,
        waits_for: *Waits::ALL.get(usize::from(waits_for))?,
        error: unescape(&mut rest)?,
    };
    rest.is_empty().then_some((tenant, saga, status))
}

/// `tenant, saga, status, log sequence, key`: one input may bring several instances into a status.
#[must_use]
pub fn listed(id: &InstanceId, listing: &Listing) -> Vec<u8> {
    let mut key = status(&id.tenant, &id.saga, &listing.status);
    key.extend(number(listing.sequence));
    escape(&mut key, id.key.as_str());
    key
}

/// The saga of a key that [`saga_prefix`] wrote.
pub fn read_saga(mut bytes: &[u8]) -> Option<(TenantId, SagaName)> {
    let tenant = TenantId::parse(&unescape(&mut bytes)?).ok()?;
    let saga = SagaName::parse(&unescape(&mut bytes)?).ok()?;
    bytes.is_empty().then_some((tenant, saga))
}

/// The instance of a key that [`instance`] wrote; what follows it is left in `bytes`.
pub fn read_instance(bytes: &mut &[u8]) -> Option<InstanceId> {
    Some(InstanceId {
        tenant: TenantId::parse(&unescape(bytes)?).ok()?,
        saga: SagaName::parse(&unescape(bytes)?).ok()?,
        key: Key::parse(&unescape(bytes)?).ok()?,
    })
}

/// A number, in order.
#[must_use]
pub const fn number(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

/// The number that a key begins with.
#[must_use]
pub fn read_number(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(bytes.get(..8)?.try_into().ok()?))
}

/// `log sequence, index`
#[must_use]
pub fn work(row: WorkRef) -> [u8; 10] {
    let mut key = [0; 10];
    key[..8].copy_from_slice(&row.log_sequence.to_be_bytes());
    key[8..].copy_from_slice(&row.index.to_be_bytes());
    key
}

/// The row that [`work`] named.
#[must_use]
pub fn read_work(bytes: &[u8]) -> Option<WorkRef> {
    Some(WorkRef {
        log_sequence: read_number(bytes)?,
        index: u16::from_be_bytes(bytes.get(8..10)?.try_into().ok()?),
    })
}

/// `due, set by`; instants before 1970 come first.
#[must_use]
pub fn timer(due: TimeMs, set_by: WorkRef) -> [u8; 18] {
    let mut key = [0; 18];
    key[..8].copy_from_slice(&ordered(due).to_be_bytes());
    key[8..].copy_from_slice(&work(set_by));
    key
}

/// Due time and setter of a key that [`timer`] wrote.
#[must_use]
pub fn read_timer(bytes: &[u8]) -> Option<(TimeMs, WorkRef)> {
    let due = read_number(bytes)? ^ (1 << 63);
    Some((TimeMs(due.cast_signed()), read_work(bytes.get(8..)?)?))
}

/// `time, log sequence`; instants before 1970 come first.
#[must_use]
pub fn expiry(until: TimeMs, number: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&ordered(until).to_be_bytes());
    key[8..].copy_from_slice(&number.to_be_bytes());
    key
}

/// Time and log sequence of a key that [`expiry`] wrote.
#[must_use]
pub fn read_expiry(bytes: &[u8]) -> Option<(TimeMs, u64)> {
    let until = read_number(bytes)? ^ (1 << 63);
    Some((TimeMs(until.cast_signed()), read_number(bytes.get(8..)?)?))
}

/// Flips the sign bit, so that unsigned order is signed order.
const fn ordered(time: TimeMs) -> u64 {
    time.0.cast_unsigned() ^ (1 << 63)
}

/// Number of the row that marks a blocked instance; log sequences begin at 1.
pub const PARKED: u64 = 0;

/// `instance, number`
#[must_use]
pub fn numbered(id: &InstanceId, number: u64) -> Vec<u8> {
    let mut key = instance(id);
    key.extend_from_slice(&number.to_be_bytes());
    key
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn id(tenant: &str, saga: &str, key: &str) -> InstanceId {
        InstanceId {
            tenant: TenantId::parse(tenant).expect("legal"),
            saga: SagaName::parse(saga).expect("legal"),
            key: Key::parse(key).expect("legal"),
        }
    }

    fn key() -> impl Strategy<Value = String> {
        "\\PC{1,12}".prop_filter("a key", |text| Key::parse(text).is_ok())
    }

    #[test]
    fn a_key_cannot_forge_another_tenants() {
        let prefix = saga_prefix(
            &TenantId::parse("b").expect("legal"),
            &SagaName::parse("s").expect("legal"),
        );
        for key in ["b", "b:s:x", "s", "\u{1}b".trim_start_matches('\u{1}')] {
            assert!(!instance(&id("a", "s", key)).starts_with(&prefix));
        }
        assert!(!instance(&id("", "b", "s")).starts_with(&prefix));
    }

    #[test]
    fn timers_are_ordered_by_due_time_also_before_1970() {
        let row = WorkRef {
            log_sequence: u64::MAX,
            index: 0,
        };
        let keys: Vec<_> = [-5, -1, 0, 1, 5].map(|due| timer(TimeMs(due), row)).to_vec();
        assert!(keys.is_sorted());
        assert_eq!(read_timer(&keys[0]), Some((TimeMs(-5), row)));
    }

    proptest! {
        #[test]
        fn keys_have_the_order_of_their_instances(
            a in ("[a-z]{1,3}", "[a-z]{1,3}", key()),
            b in ("[a-z]{1,3}", "[a-z]{1,3}", key()),
        ) {
            let (a, b) = (id(&a.0, &a.1, &a.2), id(&b.0, &b.1, &b.2));
            prop_assert_eq!(instance(&a).cmp(&instance(&b)), a.cmp(&b));
            let bytes = numbered(&a, 7);
            let mut rest = bytes.as_slice();
            prop_assert_eq!(read_instance(&mut rest), Some(a));
            prop_assert_eq!(read_number(rest), Some(7));
        }
    }
}
