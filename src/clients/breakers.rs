//! The breakers of a worker or a gateway: one for each tenant and upstream, so that one tenant's trouble with an upstream
//! is not another's.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::kernel::breaker::{Admission, Breaker, BreakerPolicy, BreakerState, CallEnd};
use crate::kernel::ids::TenantId;
use crate::ports::clock::Clock;
use crate::ports::control::{BreakerForce, BreakerView};
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

    /// Where a breaker stands for its calls, whatever the reason.
    fn state(&self, tenant: &TenantId, breaker: &Breaker, now: u64) -> BreakerState {
        match self.forced_tenants.get(tenant).copied().or(self.forced) {
            Some(BreakerForce::Open) => BreakerState::Open,
            Some(BreakerForce::Closed) => BreakerState::Closed,
            Some(BreakerForce::Auto) | None => breaker.state(now),
        }
    }
}

impl Known {
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
        clock: Arc<dyn Clock>,
        metrics: Arc<Metrics>,
    ) -> Arc<Self> {
        let upstreams = policies.into_iter();
        let known = Known {
            upstreams: upstreams
                .map(|(name, policy)| (name, Upstream::new(policy)))
                .collect(),
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
        Arc::new(Self {
            known: Mutex::new(known),
            clock,
            metrics,
        })
    }

    /// Asks for a call. `Err`: not before so many milliseconds.
    pub fn admit(self: &Arc<Self>, upstream: &Arc<str>, tenant: &TenantId) -> Result<Admitted, u64> {
        let now = self.now_ms();
        let mut guard = self.known();
        let forced = guard
            .upstream(upstream)
            .and_then(|at| at.forced_tenants.get(tenant).copied().or(at.forced));
        match forced {
            Some(BreakerForce::Open) => return Err(FORCED_WAIT_MS),
            Some(BreakerForce::Closed) => {}
            Some(BreakerForce::Auto) | None => {
                let breaker = guard.breaker(upstream, tenant, now);
                if let Some(Admission::Wait { ms }) = breaker.map(|breaker| breaker.admit(now)) {
                    return Err(ms);
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
        let breaker = known
            .upstreams
            .get_mut(upstream)
            .and_then(|upstream| upstream.tenants.get_mut(tenant));
        let Some(breaker) = breaker else { return };
        let was_open = breaker.is_open(now);
        breaker.record(now, end);
        let opened = !was_open && breaker.is_open(now);
        drop(known);
        if opened {
            self.metrics.breakers_opened.with_label_values(&[upstream]).inc();
            tracing::warn!(upstream, %tenant, "breaker opens: calls are held back");
        }
    }

    /// Sets what an operator says, for one tenant or for all that have no word of their own. `false`: no such
    /// upstream.
    pub fn force(&self, upstream: &str, tenant: Option<&TenantId>, force: BreakerForce) -> bool {
        let mut known = self.known();
        let Some(at) = known.upstreams.get_mut(upstream) else {
            return false;
        };
        match (tenant, force) {
            (None, BreakerForce::Auto) => {
                at.forced = None;
                at.forced_tenants.clear();
            }
            (None, force) => {
                at.forced = Some(force);
                at.forced_tenants.clear();
            }
            (Some(tenant), BreakerForce::Auto) if at.forced.is_none() => {
                at.forced_tenants.remove(tenant);
            }
            (Some(tenant), force) => {
                if at.forced_tenants.len() >= BREAKERS_MAX {
                    at.forced_tenants.pop_first();
                }
                at.forced_tenants.insert(tenant.clone(), force);
            }
        }
        drop(known);
        tracing::warn!(target: "audit", upstream, tenant = tenant.map(TenantId::as_str), ?force, "breaker is set by an operator");
        true
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
            views.push(BreakerView {
                upstream: name.clone(),
                tenant: None,
                state: BreakerState::Closed,
                forced: upstream.forced,
            });
            let of_tenant = |tenant: &TenantId| {
                let state = upstream
                    .tenants
                    .get(tenant)
                    .map_or(BreakerState::Closed, |breaker| breaker.state(now));
                let forced = upstream.forced_tenants.get(tenant).copied();
                let told = state != BreakerState::Closed || forced.is_some();
                told.then(|| BreakerView {
                    upstream: name.clone(),
                    tenant: Some(tenant.clone()),
                    state,
                    forced,
                })
            };
            let forced = upstream
                .forced_tenants
                .keys()
                .filter(|tenant| !upstream.tenants.contains_key(tenant));
            views.extend(upstream.tenants.keys().chain(forced).filter_map(of_tenant));
        }
        views.truncate(limit);
        views
    }

    /// Where the breaker stands that holds back most; closed where there is none.
    pub fn worst(&self) -> BreakerState {
        let now = self.now_ms();
        let known = self.known();
        let states = known.upstreams.values().flat_map(|upstream| {
            let all = upstream.forced.is_some_and(|forced| forced == BreakerForce::Open);
            let each = upstream
                .tenants
                .iter()
                .map(|(tenant, breaker)| upstream.state(tenant, breaker, now));
            each.chain(all.then_some(BreakerState::Open))
        });
        states.max().unwrap_or(BreakerState::Closed)
    }

    /// Sets the gauges of what is known here.
    pub fn gauge(&self) {
        let now = self.now_ms();
        let known = self.known();
        for (name, upstream) in &known.upstreams {
            for state in BreakerState::ALL {
                let tenants = upstream
                    .tenants
                    .iter()
                    .filter(|(tenant, breaker)| state == upstream.state(tenant, breaker, now));
                let count = i64::try_from(tenants.count()).unwrap_or(i64::MAX);
                self.metrics
                    .breakers
                    .with_label_values(&[name.as_str(), state.as_str()])
                    .set(count);
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
