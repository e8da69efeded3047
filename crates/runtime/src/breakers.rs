//! The breakers of a worker or a gateway: one for each tenant and upstream, so that one tenant's trouble with an upstream
//! is not another's.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::kernel::breaker::{Admission, Breaker, BreakerPolicy, BreakerState, CallEnd};
use crate::kernel::ids::TenantId;
use crate::ports::clock::Clock;
use crate::ports::control::{BreakerForce, BreakerView, Forced};
use crate::telemetry::Metrics;

/// Breakers that are remembered. Beyond it those that say nothing are forgotten, and if there are none, calls go
/// without one.
const BREAKERS_MAX: usize = 10_000;
/// How long a call waits that an operator holds back, in milliseconds.
const FORCED_WAIT_MS: u64 = 5_000;

/// Upstreams that are not known from the beginning. Calls of further ones go without a breaker.
const UPSTREAMS_MAX: usize = 256;
/// How often breakers that say nothing are looked for while there is no room, in milliseconds.
const SWEEP_MS: u64 = 1_000;

/// The upstreams that calls go to by a name in `upstreams` of the manifest: several where effects have breakers of their own.
pub type Names = BTreeMap<String, BTreeSet<String>>;

/// All breakers of a worker, or of a gateway.
pub struct Breakers {
    known: Mutex<Known>,
    clock: Arc<dyn Clock>,
    metrics: Arc<Metrics>,
}

#[derive(Default)]
struct Known {
    /// By upstream. Upstreams come from definitions, so there are few.
    upstreams: BTreeMap<String, Upstream>,
    names: Names,
    /// The policy of upstreams that come later.
    policy: Option<BreakerPolicy>,
    breakers: usize,
    /// Not before this time is room looked for again.
    swept: u64,
}

struct Upstream {
    policy: BreakerPolicy,
    tenants: BTreeMap<TenantId, Breaker>,
    /// For every tenant that has no word of its own.
    forced: Option<BreakerForce>,
    forced_tenants: BTreeMap<TenantId, BreakerForce>,
}

impl Upstream {
    fn new(policy: BreakerPolicy) -> Self {
        Self {
            policy,
            tenants: BTreeMap::new(),
            forced: None,
            forced_tenants: BTreeMap::new(),
        }
    }

    /// Takes an operator's word; whether that changes something.
    fn set(&mut self, tenant: Option<&TenantId>, force: BreakerForce, now: u64) -> bool {
        if self.is_set(tenant, force, now) {
            return false;
        }
        if force == BreakerForce::Closed {
            let policy = self.policy;
            let meant = |of: &TenantId| tenant.is_none_or(|tenant| tenant == of);
            for (_, breaker) in self.tenants.iter_mut().filter(|(of, _)| meant(of)) {
                *breaker = Breaker::new(policy);
            }
        }
        match (tenant, force) {
            (None, BreakerForce::Auto) => {
                self.forced = None;
                self.forced_tenants.clear();
            }
            (None, force) => {
                self.forced = Some(force);
                self.forced_tenants.clear();
            }
            (Some(tenant), BreakerForce::Auto) if self.forced.is_none() => {
                self.forced_tenants.remove(tenant);
            }
            (Some(tenant), force) => {
                if self.forced_tenants.len() >= BREAKERS_MAX {
                    self.forced_tenants.pop_first();
                }
                self.forced_tenants.insert(tenant.clone(), force);
            }
        }
        true
    }

    /// What an operator says about the calls of this tenant.
    fn forced(&self, tenant: &TenantId) -> Option<BreakerForce> {
        self.forced_tenants.get(tenant).copied().or(self.forced)
    }

    /// Whether an operator has said the same before, and there is nothing to forget.
    fn is_set(&self, tenant: Option<&TenantId>, force: BreakerForce, now: u64) -> bool {
        let word = Some(force).filter(|force| *force != BreakerForce::Auto);
        let is_said = match tenant {
            None => self.forced == word && self.forced_tenants.is_empty(),
            Some(tenant) if force == BreakerForce::Auto && self.forced.is_none() => {
                !self.forced_tenants.contains_key(tenant)
            }
            Some(tenant) => self.forced_tenants.get(tenant) == Some(&force),
        };
        let mut meant = self
            .tenants
            .iter()
            .filter(|(of, _)| tenant.is_none_or(|tenant| tenant == *of));
        is_said
            && (force != BreakerForce::Closed
                || meant.all(|(_, breaker)| breaker.state(now) == BreakerState::Closed))
    }

    /// Where the breaker of a tenant stands for its calls, whatever the reason.
    fn state(&self, tenant: &TenantId, now: u64) -> BreakerState {
        let breaker = self.tenants.get(tenant);
        let own = breaker.map_or(BreakerState::Closed, |breaker| breaker.state(now));
        stands(self.forced(tenant), own)
    }

    /// The tenants that are known by a breaker or by a word of an operator, with where each stands.
    fn states(&self, now: u64) -> impl Iterator<Item = (&TenantId, BreakerState)> {
        let forced = self.forced_tenants.keys();
        let only_forced = forced.filter(|tenant| !self.tenants.contains_key(tenant));
        let known = self.tenants.keys().chain(only_forced);
        known.map(move |tenant| (tenant, self.state(tenant, now)))
    }
}

/// Where a breaker stands that an operator may have set.
const fn stands(forced: Option<BreakerForce>, own: BreakerState) -> BreakerState {
    match forced {
        Some(BreakerForce::Open) => BreakerState::Open,
        Some(BreakerForce::Closed) => BreakerState::Closed,
        Some(BreakerForce::Auto) | None => own,
    }
}

impl Known {
    /// The upstreams that are meant: the one of this name, else those that are called by it.
    fn meant(&self, named: &str) -> Vec<String> {
        if self.upstreams.contains_key(named) {
            return vec![named.to_owned()];
        }
        self.names.get(named).into_iter().flatten().cloned().collect()
    }

    /// The names by which an upstream is called.
    fn names_of(&self, upstream: &str) -> Vec<String> {
        let named = self.names.iter().filter(|(_, of)| of.contains(upstream));
        named.map(|(name, _)| name.clone()).collect()
    }

    /// The upstream; `None` where there is none of this name, and no room for one.
    fn upstream(&mut self, name: &str) -> Option<&mut Upstream> {
        if let Some(policy) = self.policy
            && !self.upstreams.contains_key(name)
            && self.upstreams.len() < UPSTREAMS_MAX
        {
            self.upstreams.insert(name.to_owned(), Upstream::new(policy));
        }
        self.upstreams.get_mut(name)
    }

    /// The breaker of `tenant`; `None` where there is room for no further one.
    fn breaker(&mut self, name: &str, tenant: &TenantId, now: u64) -> Option<&mut Breaker> {
        if self.breakers >= BREAKERS_MAX && now >= self.swept {
            self.swept = now.saturating_add(SWEEP_MS);
            for upstream in self.upstreams.values_mut() {
                upstream.tenants.retain(|_, breaker| !breaker.is_idle(now));
            }
            self.breakers = self
                .upstreams
                .values()
                .map(|upstream| upstream.tenants.len())
                .sum();
        }
        let has_room = self.breakers < BREAKERS_MAX;
        let upstream = self.upstreams.get_mut(name)?;
        if !upstream.tenants.contains_key(tenant) {
            if !has_room {
                return None;
            }
            self.breakers += 1;
            upstream
                .tenants
                .insert(tenant.clone(), Breaker::new(upstream.policy));
        }
        upstream.tenants.get_mut(tenant)
    }
}

/// A call that is not made now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    /// Not before so many milliseconds is it asked for again.
    pub ms: u64,
    /// Whether an operator holds the breaker open, which ends by another word of an operator only.
    pub is_forced: bool,
}

/// An admitted call. Dropped without [`Admitted::ended`], it says nothing about the upstream.
pub struct Admitted {
    breakers: Arc<Breakers>,
    upstream: Arc<str>,
    tenant: TenantId,
    end: CallEnd,
}

impl Admitted {
    pub fn ended(mut self, end: CallEnd) {
        self.end = end;
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.breakers.record(&self.upstream, &self.tenant, self.end);
    }
}

impl Breakers {
    pub fn new(
        policies: BTreeMap<String, BreakerPolicy>,
        names: Names,
        clock: Arc<dyn Clock>,
        metrics: Arc<Metrics>,
    ) -> Arc<Self> {
        let upstreams = policies.into_iter();
        let known = Known {
            upstreams: upstreams
                .map(|(name, policy)| (name, Upstream::new(policy)))
                .collect(),
            names,
            ..Known::default()
        };
        Self::with(known, clock, metrics)
    }

    /// Breakers with one policy, of upstreams that become known by their calls.
    pub fn of_any(policy: BreakerPolicy, clock: Arc<dyn Clock>, metrics: Arc<Metrics>) -> Arc<Self> {
        let known = Known {
            policy: Some(policy),
            ..Known::default()
        };
        Self::with(known, clock, metrics)
    }

    fn with(known: Known, clock: Arc<dyn Clock>, metrics: Arc<Metrics>) -> Arc<Self> {
        for upstream in known.upstreams.keys() {
            metrics.breakers_opened.with_label_values(&[&**upstream]);
        }
        Arc::new(Self {
            known: Mutex::new(known),
            clock,
            metrics,
        })
    }

    /// Asks for a call.
    ///
    /// # Errors
    /// [`Refused`] says when to ask again, and who holds the breaker open.
    pub fn admit(self: &Arc<Self>, upstream: &Arc<str>, tenant: &TenantId) -> Result<Admitted, Refused> {
        let now = self.now_ms();
        let mut guard = self.known();
        let forced = guard.upstream(upstream).and_then(|at| at.forced(tenant));
        match forced {
            Some(BreakerForce::Open) => {
                return Err(Refused {
                    ms: FORCED_WAIT_MS,
                    is_forced: true,
                });
            }
            Some(BreakerForce::Closed) => {}
            Some(BreakerForce::Auto) | None => {
                let breaker = guard.breaker(upstream, tenant, now);
                if let Some(Admission::Wait { ms }) = breaker.map(|breaker| breaker.admit(now)) {
                    return Err(Refused { ms, is_forced: false });
                }
            }
        }
        drop(guard);
        Ok(Admitted {
            breakers: Arc::clone(self),
            upstream: Arc::clone(upstream),
            tenant: tenant.clone(),
            end: CallEnd::Abandoned,
        })
    }

    fn record(&self, upstream: &str, tenant: &TenantId, end: CallEnd) {
        let now = self.now_ms();
        let mut known = self.known();
        let at = known.upstreams.get_mut(upstream);
        // What an operator lets through or holds back tells nothing about when to open or close.
        let at = at.filter(|at| matches!(at.forced(tenant), None | Some(BreakerForce::Auto)));
        let Some(breaker) = at.and_then(|at| at.tenants.get_mut(tenant)) else {
            return;
        };
        let was_open = breaker.is_open(now);
        breaker.record(now, end);
        let opened = !was_open && breaker.is_open(now);
        drop(known);
        if opened {
            self.metrics.breakers_opened.with_label_values(&[upstream]).inc();
            tracing::warn!(upstream, %tenant, "breaker opens: calls are held back");
        }
    }

    /// Sets what an operator says, for one tenant or for all that have no word of their own. A breaker that is set to
    /// closed forgets why it was open: it begins again when it decides again. An upstream may be given by its name in the manifest.
    pub fn force(&self, upstream: &str, tenant: Option<&TenantId>, force: BreakerForce) -> Forced {
        let now = self.now_ms();
        let mut known = self.known();
        let meant = known.meant(upstream);
        let mut said = Forced::Unknown;
        for upstream in &meant {
            let at = known.upstreams.get_mut(upstream);
            if at.is_some_and(|at| at.set(tenant, force, now)) {
                said = Forced::Now;
            } else if said == Forced::Unknown {
                said = Forced::Before;
            }
        }
        drop(known);
        if said == Forced::Now {
            tracing::warn!(target: "audit", upstream, tenant = tenant.map(TenantId::as_str), ?force, "breaker is set by an operator");
        }
        said
    }

    /// Takes over what operators have said to the breakers of the worker before, of the upstreams that are still called.
    pub fn keep_forced(&self, before: &Self) {
        let mut known = self.known();
        for (name, old) in &before.known().upstreams {
            if let Some(upstream) = known.upstreams.get_mut(name) {
                upstream.forced = old.forced;
                upstream.forced_tenants.clone_from(&old.forced_tenants);
            }
        }
    }

    /// The upstreams, and for each the tenants whose breaker is not simply closed, at most `limit` of them.
    pub fn view(&self, limit: usize) -> Vec<BreakerView> {
        let now = self.now_ms();
        let known = self.known();
        let mut views = Vec::new();
        for (name, upstream) in &known.upstreams {
            let names = known.names_of(name);
            views.push(BreakerView {
                upstream: name.clone(),
                names: names.clone(),
                tenant: None,
                state: stands(upstream.forced, BreakerState::Closed),
                forced: upstream.forced,
            });
            let of_tenants = upstream.states(now).filter_map(|(tenant, state)| {
                let forced = upstream.forced_tenants.get(tenant).copied();
                // What is said of all tenants is said once.
                let told = forced.is_some() || upstream.forced.is_none() && state != BreakerState::Closed;
                told.then(|| BreakerView {
                    upstream: name.clone(),
                    names: names.clone(),
                    tenant: Some(tenant.clone()),
                    state,
                    forced,
                })
            });
            views.extend(of_tenants);
        }
        views.truncate(limit);
        views
    }

    /// Where the breaker stands that holds back most; closed where there is none.
    pub fn worst(&self) -> BreakerState {
        let now = self.now_ms();
        let known = self.known();
        let states = known.upstreams.values().flat_map(|upstream| {
            let others = stands(upstream.forced, BreakerState::Closed);
            let each = upstream.states(now).map(|(_, state)| state);
            each.chain([others])
        });
        states.max().unwrap_or(BreakerState::Closed)
    }

    /// Sets the gauges of what is known here.
    pub fn gauge(&self) {
        let now = self.now_ms();
        let known = self.known();
        for (name, upstream) in &known.upstreams {
            // An operator's word counts for tenants that have not called yet.
            let others = upstream
                .forced
                .map(|forced| stands(Some(forced), BreakerState::Closed));
            let states: Vec<BreakerState> = upstream
                .states(now)
                .map(|(_, state)| state)
                .chain(others)
                .collect();
            for state in BreakerState::ALL {
                let count = states.iter().filter(|found| **found == state).count();
                self.metrics
                    .breakers
                    .with_label_values(&[name.as_str(), state.as_str()])
                    .set(i64::try_from(count).unwrap_or(i64::MAX));
            }
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.clock.monotonic().as_millis()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::kernel::ids::TimeMs;

    /// Does not advance until it is set.
    #[derive(Default)]
    struct Hand(AtomicU64);

    impl Clock for Hand {
        fn now(&self) -> TimeMs {
            TimeMs(0)
        }

        fn monotonic(&self) -> Duration {
            Duration::from_millis(self.0.load(Ordering::Relaxed))
        }
    }

    const POLICY: BreakerPolicy = BreakerPolicy {
        window_ms: 1_000,
        calls_min: 4,
        failure_rate: 0.5,
        open_ms: 500,
        probes: 2,
    };

    struct Rig {
        breakers: Arc<Breakers>,
        clock: Arc<Hand>,
        metrics: Arc<Metrics>,
        bank: Arc<str>,
        acme: TenantId,
    }

    impl Rig {
        fn new() -> Self {
            let (clock, metrics) = (Arc::new(Hand::default()), Arc::new(Metrics::new()));
            let policies = BTreeMap::from([("bank".to_owned(), POLICY), ("effect:pay".to_owned(), POLICY)]);
            let called = BTreeSet::from(["bank".to_owned(), "effect:pay".to_owned()]);
            Self {
                breakers: Breakers::new(
                    policies,
                    Names::from([("money".to_owned(), called)]),
                    Arc::clone(&clock) as Arc<dyn Clock>,
                    Arc::clone(&metrics),
                ),
                clock,
                metrics,
                bank: Arc::from("bank"),
                acme: TenantId::parse("acme").expect("legal"),
            }
        }

        /// As many calls as fit, each with this end.
        fn call(&self, times: usize, end: CallEnd) -> usize {
            let admitted = (0..times).filter_map(|_| self.breakers.admit(&self.bank, &self.acme).ok());
            admitted.map(|call| call.ended(end)).count()
        }

        fn force(&self, tenant: Option<&TenantId>, force: BreakerForce) {
            assert_eq!(self.breakers.force("bank", tenant, force), Forced::Now);
        }

        /// What is shown of all tenants, and of acme where it is told apart.
        fn shown(&self) -> (BreakerState, Option<BreakerState>) {
            let views = self.breakers.view(10);
            let of_acme = views.iter().find(|view| view.tenant.as_ref() == Some(&self.acme));
            (views[0].state, of_acme.map(|view| view.state))
        }

        /// Closed, half open, open.
        fn gauged(&self) -> [i64; 3] {
            self.breakers.gauge();
            BreakerState::ALL.map(|state| {
                let gauge = &self.metrics.breakers;
                gauge.with_label_values(&["bank", state.as_str()]).get()
            })
        }
    }

    use BreakerState::{Closed, Open};

    #[test]
    fn a_breaker_that_an_operator_sets_is_shown_as_it_is_set() {
        let rig = Rig::new();
        rig.call(4, CallEnd::Failed);
        assert_eq!((rig.shown(), rig.gauged()), ((Closed, Some(Open)), [0, 0, 1]));
        rig.force(Some(&rig.acme), BreakerForce::Closed);
        assert_eq!((rig.shown(), rig.gauged()), ((Closed, Some(Closed)), [1, 0, 0]));
        rig.force(None, BreakerForce::Open);
        assert_eq!((rig.shown(), rig.gauged()), ((Open, None), [0, 0, 2]));
        assert_eq!(rig.call(1, CallEnd::Answered), 0);
        rig.force(None, BreakerForce::Auto);
        assert_eq!((rig.shown(), rig.gauged()), ((Closed, None), [1, 0, 0]));
    }

    #[test]
    fn a_name_of_the_manifest_means_all_breakers_of_the_calls_to_it() {
        let rig = Rig::new();
        let set = |upstream: &str| rig.breakers.force(upstream, None, BreakerForce::Open);
        assert_eq!(set("nobody"), Forced::Unknown);
        assert_eq!(set("effect:pay"), Forced::Now);
        assert_eq!(rig.shown(), (Closed, None));
        assert_eq!((set("money"), set("money")), (Forced::Now, Forced::Before));
        let views = rig.breakers.view(10);
        let shown: Vec<_> = views
            .iter()
            .map(|view| (view.upstream.as_str(), view.names.join(","), view.state))
            .collect();
        assert_eq!(
            shown,
            [
                ("bank", "money".to_owned(), Open),
                ("effect:pay", "money".to_owned(), Open)
            ]
        );
    }

    #[test]
    fn a_call_that_an_operator_holds_back_is_told_from_one_that_the_breaker_does() {
        let rig = Rig::new();
        let forced = || {
            rig.breakers
                .admit(&rig.bank, &rig.acme)
                .err()
                .map(|refused| refused.is_forced)
        };
        assert_eq!(forced(), None);
        rig.call(4, CallEnd::Failed);
        assert_eq!(forced(), Some(false));
        rig.force(None, BreakerForce::Open);
        assert_eq!(forced(), Some(true));
        rig.force(None, BreakerForce::Auto);
        assert_eq!(forced(), Some(false));
    }

    #[test]
    fn a_word_about_a_tenant_that_has_not_called_yet_is_shown_and_counted() {
        let rig = Rig::new();
        rig.force(None, BreakerForce::Open);
        assert_eq!((rig.shown(), rig.gauged()), ((Open, None), [0, 0, 1]));
        assert_eq!(rig.breakers.worst(), Open);
        rig.force(Some(&rig.acme), BreakerForce::Closed);
        assert_eq!((rig.shown(), rig.gauged()), ((Open, Some(Closed)), [1, 0, 1]));
    }

    #[test]
    fn a_breaker_that_was_set_to_closed_begins_empty_when_it_decides_again() {
        let rig = Rig::new();
        rig.call(4, CallEnd::Failed);
        rig.force(None, BreakerForce::Closed);
        rig.clock.0.store(600, Ordering::Relaxed);
        assert_eq!(rig.call(28, CallEnd::Answered), 28);
        assert_eq!(rig.call(28, CallEnd::Failed), 28, "every call is made");
        rig.force(None, BreakerForce::Auto);
        assert_eq!(rig.shown(), (Closed, None));
        assert_eq!(rig.call(1, CallEnd::Failed), 1);
        assert_eq!(rig.shown(), (Closed, None), "one failure does not open it");
        rig.call(3, CallEnd::Failed);
        assert_eq!(rig.shown(), (Closed, Some(Open)));
    }

    #[test]
    fn a_breaker_that_was_set_to_open_is_as_it_was_when_it_decides_again() {
        let rig = Rig::new();
        rig.call(4, CallEnd::Failed);
        rig.force(None, BreakerForce::Open);
        rig.force(None, BreakerForce::Auto);
        assert_eq!(rig.shown(), (Closed, Some(Open)));
    }
}
