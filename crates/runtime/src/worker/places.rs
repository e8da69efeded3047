//! Places for calls: how many a worker makes at the same time, how many of them for one effect and one tenant.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::kernel::definition::effect::EffectLimits;
use crate::kernel::ids::TenantId;
use crate::kernel::rate::{Rate, RateLimiter};
use crate::ports::clock::Clock;

/// Tenants whose rate is remembered at a time; beyond it those that have been quiet are forgotten.
const TENANTS_MAX: usize = 10_000;
/// How long a tenant that has asked for a place counts as one that may ask again.
const OTHERS_FOR: Duration = Duration::from_mins(1);
/// The part of an effect's places that one tenant leaves to others of those that they have not taken, where its `limits` do not say.
const LEFT_TO_OTHERS: usize = 4;

/// An effect's part of a worker's places: some of its own, so that no other effect can starve it, and the rest in
/// common with all.
pub struct Share {
    own: Arc<Semaphore>,
    common: Arc<Semaphore>,
}

impl Share {
    /// Divides a worker's places among its effects: half of them, and at least one each, belong to single effects.
    pub fn divide(places: usize, effects: usize) -> Vec<Self> {
        let effects_or_one = effects.max(1);
        let own = (places / 2 / effects_or_one).max(1);
        let common = Arc::new(Semaphore::new(places.saturating_sub(own * effects_or_one)));
        let share = |_| Self {
            own: Arc::new(Semaphore::new(own)),
            common: Arc::clone(&common),
        };
        (0..effects).map(share).collect()
    }

    /// Most places that it can have at the same time.
    pub fn most(&self) -> usize {
        self.own.available_permits() + self.common.available_permits()
    }

    /// Waits for a place.
    pub async fn enter(&self) -> OwnedSemaphorePermit {
        let place = tokio::select! {
            biased;
            place = Arc::clone(&self.own).acquire_owned() => place,
            place = Arc::clone(&self.common).acquire_owned() => place,
        };
        place.expect("the semaphores are never closed")
    }

    /// A place, if one is free.
    pub fn try_enter(&self) -> Option<OwnedSemaphorePermit> {
        let own = Arc::clone(&self.own).try_acquire_owned();
        own.or_else(|_| Arc::clone(&self.common).try_acquire_owned()).ok()
    }
}

/// How fast the calls of one effect follow each other, of which one at a time waits for its turn.
pub struct Pace(tokio::sync::Mutex<Turn>);

struct Turn {
    limiter: RateLimiter,
    /// When the next call may be made, where whoever has asked for that has gone.
    next: Option<Duration>,
}

impl Pace {
    pub fn new(rate: Rate) -> Self {
        Self(tokio::sync::Mutex::new(Turn {
            limiter: RateLimiter::new(rate),
            next: None,
        }))
    }

    /// Waits until another call may be made. Dropped while it waits, it leaves its turn to the next one.
    pub async fn wait(&self, clock: &dyn Clock) {
        let mut turn = self.0.lock().await;
        let now = clock.monotonic();
        let next = if let Some(next) = turn.next {
            next
        } else {
            let now_us = u64::try_from(now.as_micros()).unwrap_or(u64::MAX);
            let wait_us = turn
                .limiter
                .reserve(now_us, u64::MAX)
                .unwrap_or_else(|wait_us| wait_us);
            now + Duration::from_micros(wait_us)
        };
        turn.next = Some(next);
        let wait = next.saturating_sub(now);
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        turn.next = None;
    }
}

/// What the commands of one effect have of each tenant.
pub struct Tenants {
    limits: EffectLimits,
    /// Calls that this worker makes at the same time.
    places: usize,
    busy: Mutex<Busy>,
    rates: Mutex<BTreeMap<TenantId, RateLimiter>>,
}

/// Who has places, and who has asked for one lately.
#[derive(Default)]
struct Busy {
    counts: BTreeMap<TenantId, usize>,
    /// The sum of them.
    taken: usize,
    latest: Option<(TenantId, Duration)>,
    /// The latest one that is another than `latest`.
    other: Option<(TenantId, Duration)>,
}

impl Busy {
    /// Notes that `tenant` asks.
    fn note(&mut self, tenant: &TenantId, now: Duration) {
        match &mut self.latest {
            Some((latest, seen)) if latest == tenant => *seen = now,
            latest => {
                if let Some(before) = latest.replace((tenant.clone(), now)) {
                    self.other = Some(before);
                }
            }
        }
    }

    /// Places that tenants other than this one have.
    fn of_others(&self, tenant: &TenantId) -> usize {
        self.taken - self.counts.get(tenant).copied().unwrap_or(0)
    }

    /// Whether more than one tenant has asked lately.
    fn is_shared(&self, now: Duration) -> bool {
        self.other
            .as_ref()
            .is_some_and(|(_, seen)| now.saturating_sub(*seen) < OTHERS_FOR)
    }
}

/// A part of what others have not taken.
fn part_of(all: usize, others: usize) -> usize {
    let rest = all.saturating_sub(others).max(1);
    rest - rest.div_ceil(LEFT_TO_OTHERS).min(rest - 1)
}

fn most_of(limits: &EffectLimits, all: usize, others: usize, is_shared: bool) -> usize {
    match limits.per_tenant {
        Some(most) => usize::try_from(most).unwrap_or(usize::MAX).min(all),
        None if is_shared => part_of(all, others),
        None => all,
    }
}

/// A tenant's place, free again when it is dropped.
pub struct TenantPlace {
    tenants: Arc<Tenants>,
    tenant: TenantId,
}

impl Drop for TenantPlace {
    fn drop(&mut self) {
        let mut busy = self.tenants.lock();
        if let Some(count) = busy.counts.get_mut(&self.tenant) {
            *count -= 1;
            if *count == 0 {
                busy.counts.remove(&self.tenant);
            }
            busy.taken -= 1;
        }
    }
}

impl Tenants {
    pub fn new(limits: EffectLimits, places: usize) -> Arc<Self> {
        Arc::new(Self {
            limits,
            places,
            busy: Mutex::default(),
            rates: Mutex::new(BTreeMap::new()),
        })
    }

    /// Notes that there is a command of `tenant`.
    pub fn note(&self, tenant: &TenantId, now: Duration) {
        self.lock().note(tenant, now);
    }

    /// Most of `all` that one tenant may have while others have so many. A tenant that is alone may have all; one that is not
    /// leaves some of what others have not taken to those that have none, so that its slow calls do not stop theirs.
    pub fn most_of(&self, all: usize, others: usize, now: Duration) -> usize {
        most_of(&self.limits, all, others, self.lock().is_shared(now))
    }

    /// A place for a command of `tenant`, unless it has as many as it may.
    pub fn enter(self: &Arc<Self>, tenant: &TenantId, now: Duration) -> Option<TenantPlace> {
        let mut busy = self.lock();
        busy.note(tenant, now);
        let theirs = busy.of_others(tenant);
        let most = most_of(&self.limits, self.places, theirs, busy.is_shared(now));
        let count = busy.counts.entry(tenant.clone()).or_insert(0);
        if *count >= most {
            return None;
        }
        *count += 1;
        busy.taken += 1;
        Some(TenantPlace {
            tenants: Arc::clone(self),
            tenant: tenant.clone(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Busy> {
        self.busy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a call from the tenant's rate. `Err`: not before so long.
    pub fn call(&self, tenant: &TenantId, now: Duration) -> Result<(), Duration> {
        let Some(rate) = self.limits.tenant_rate else {
            return Ok(());
        };
        let now_us = u64::try_from(now.as_micros()).unwrap_or(u64::MAX);
        let mut rates = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
        if rates.len() >= TENANTS_MAX && !rates.contains_key(tenant) {
            rates.retain(|_, limiter| !limiter.is_idle(now_us));
        }
        rates
            .entry(tenant.clone())
            .or_insert_with(|| RateLimiter::new(rate))
            .reserve(now_us, 0)
            .map(|_| ())
            .map_err(Duration::from_micros)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str) -> TenantId {
        TenantId::parse(name).expect("legal")
    }

    #[tokio::test]
    async fn an_effect_that_takes_all_it_can_leaves_the_others_their_own() {
        let shares = Share::divide(8, 2);
        let mut greedy = Vec::new();
        while let Ok(place) = tokio::time::timeout(Duration::from_millis(20), shares[0].enter()).await {
            greedy.push(place);
        }
        assert_eq!(greedy.len(), 6, "its own two and the common four");
        let others = [shares[1].enter().await, shares[1].enter().await];
        drop(greedy.pop());
        let _third = shares[1].enter().await;
        assert_eq!(others.len(), 2);
    }

    #[test]
    fn a_tenant_has_no_more_places_than_it_may() {
        let limits = EffectLimits {
            per_tenant: Some(2),
            ..EffectLimits::default()
        };
        let tenants = Tenants::new(limits, 8);
        let (acme, globex) = (tenant("acme"), tenant("globex"));
        let now = Duration::from_secs(9);
        let first = tenants.enter(&acme, now).expect("free");
        let _second = tenants.enter(&acme, now).expect("free");
        assert!(tenants.enter(&acme, now).is_none());
        assert!(
            tenants.enter(&globex, now).is_some(),
            "another tenant has its own"
        );
        drop(first);
        assert!(tenants.enter(&acme, now).is_some());
    }

    #[test]
    fn a_tenant_has_all_places_while_it_is_alone_and_leaves_a_quarter_while_it_is_not() {
        let tenants = Tenants::new(EffectLimits::default(), 8);
        let (acme, globex) = (tenant("acme"), tenant("globex"));
        let now = Duration::from_secs(9);
        let mut places: Vec<_> = (0..8).map_while(|_| tenants.enter(&acme, now)).collect();
        assert_eq!(places.len(), 8, "it is alone");
        let other = tenants.enter(&globex, now).expect("it has none yet");
        places.truncate(4);
        places.extend(tenants.enter(&acme, now));
        assert!(tenants.enter(&acme, now).is_none(), "three quarters of seven");
        drop(other);
        places.extend(tenants.enter(&acme, now));
        assert_eq!(places.len(), 6);
        assert!(tenants.enter(&acme, now).is_none(), "the rest is for others");
        let later = now + OTHERS_FOR;
        assert!(
            tenants.enter(&acme, later).is_some(),
            "no other tenant has asked for long"
        );
    }

    #[test]
    fn tenants_with_slow_calls_leave_a_place_to_one_that_has_none() {
        let tenants = Tenants::new(EffectLimits::default(), 8);
        let now = Duration::from_secs(9);
        tenants.note(&tenant("healthy"), now);
        let mut taken = Vec::new();
        for (name, part) in [("slow", 6), ("slower", 1), ("healthy", 1)] {
            let before = taken.len();
            taken.extend((0..8).map_while(|_| tenants.enter(&tenant(name), now)));
            assert_eq!(taken.len() - before, part, "{name}");
        }
    }

    #[test]
    fn an_effect_with_one_place_gives_it_to_any_tenant() {
        let tenants = Tenants::new(EffectLimits::default(), 1);
        let now = Duration::from_secs(9);
        for name in ["acme", "globex", "acme"] {
            assert!(tenants.enter(&tenant(name), now).is_some(), "{name}");
        }
    }

    #[test]
    fn a_tenant_calls_no_faster_than_it_may() {
        let limits = EffectLimits {
            tenant_rate: Some(Rate {
                calls: 10,
                per_ms: 1_000,
            }),
            ..EffectLimits::default()
        };
        let tenants = Tenants::new(limits, 8);
        let (acme, now) = (tenant("acme"), Duration::from_secs(9));
        assert_eq!(tenants.call(&acme, now), Ok(()));
        assert_eq!(tenants.call(&acme, now), Err(Duration::from_millis(100)));
        assert_eq!(tenants.call(&tenant("globex"), now), Ok(()));
        assert_eq!(tenants.call(&acme, now + Duration::from_millis(100)), Ok(()));
    }
}
