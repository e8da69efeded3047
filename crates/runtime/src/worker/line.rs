//! A line for something scarce: what comes free goes to the tenant that has the fewest of it, and among those with
//! equally many to the one that has waited longest. A tenant that sends without end so waits behind itself.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, oneshot};

use crate::kernel::ids::TenantId;

/// Those who wait, and what each tenant has.
pub struct Line<P> {
    inner: Arc<Inner<P>>,
    /// One of those who wait asks for all of them, so that they do not overtake each other there.
    asking: tokio::sync::Mutex<()>,
    /// Most that a tenant may have whose entries are bounded, where others have so much.
    most: Box<dyn Fn(usize) -> usize + Send + Sync>,
}

struct Inner<P> {
    state: Mutex<State<P>>,
    /// Somebody has come, or has less than before.
    changed: Notify,
}

struct State<P> {
    tenants: BTreeMap<TenantId, Tenant<P>>,
    /// Tenants that wait, by what they have and when the first of their entries came.
    order: BTreeSet<(usize, u64, TenantId)>,
    last_ticket: u64,
    /// What all tenants have.
    given: usize,
}

struct Tenant<P> {
    has: usize,
    waiting: VecDeque<Waiting<P>>,
    /// Where it stands in the order.
    stands: Option<(usize, u64)>,
}

/// How much of what is scarce a tenant may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// No more than its share, by what others have.
    Share,
    /// As much as is free.
    Free,
}

struct Waiting<P> {
    ticket: u64,
    bound: Bound,
    granted: oneshot::Sender<Granted<P>>,
}

/// Something that a tenant has, free again when it is dropped.
pub struct Granted<P> {
    _permit: P,
    tenant: TenantId,
    inner: Arc<Inner<P>>,
}

impl<P> Drop for Granted<P> {
    fn drop(&mut self) {
        let is_awaited = {
            let mut state = self.inner.lock();
            state.change(&self.tenant, |tenant| tenant.has -= 1);
            state.given -= 1;
            !state.order.is_empty()
        };
        if is_awaited {
            self.inner.changed.notify_one();
        }
    }
}

/// An entry of the line, out of it when it is dropped.
struct InLine<'l, P> {
    inner: &'l Inner<P>,
    tenant: &'l TenantId,
    ticket: u64,
}

impl<P> Drop for InLine<'_, P> {
    fn drop(&mut self) {
        let ticket = self.ticket;
        self.inner.lock().change(self.tenant, |tenant| {
            tenant.waiting.retain(|waiting| waiting.ticket != ticket);
        });
    }
}

impl<P> Inner<P> {
    fn lock(&self) -> MutexGuard<'_, State<P>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<P> State<P> {
    /// Changes what a tenant has or waits for, and its place in the order with it.
    fn change<T>(&mut self, name: &TenantId, change: impl FnOnce(&mut Tenant<P>) -> T) -> Option<T> {
        let tenant = self.tenants.get_mut(name)?;
        let changed = change(tenant);
        let stands = tenant.waiting.front().map(|first| (tenant.has, first.ticket));
        if stands != tenant.stands {
            if let Some((has, ticket)) = std::mem::replace(&mut tenant.stands, stands) {
                self.order.remove(&(has, ticket, name.clone()));
            }
            if let Some((has, ticket)) = stands {
                self.order.insert((has, ticket, name.clone()));
            }
        }
        if tenant.has == 0 && tenant.waiting.is_empty() {
            self.tenants.remove(name);
        }
        Some(changed)
    }

    fn tenant(&mut self, name: &TenantId) -> &mut Tenant<P> {
        self.tenants.entry(name.clone()).or_insert_with(|| Tenant {
            has: 0,
            waiting: VecDeque::new(),
            stands: None,
        })
    }

    /// The tenant whose turn it is.
    fn next(&self, most: &impl Fn(usize) -> usize) -> Option<TenantId> {
        let may_have_more = |(has, _, name): &&(usize, u64, TenantId)| {
            let first = self.tenants.get(name).and_then(|tenant| tenant.waiting.front());
            first.is_some_and(|first| first.bound == Bound::Free || *has < most(self.given - has))
        };
        self.order
            .iter()
            .find(may_have_more)
            .map(|(_, _, name)| name.clone())
    }

    /// Takes the entry out of the line whose turn it is.
    fn take_next(
        &mut self,
        most: &impl Fn(usize) -> usize,
    ) -> Option<(TenantId, oneshot::Sender<Granted<P>>)> {
        let name = self.next(most)?;
        let granted = self.change(&name, |tenant| {
            let first = tenant.waiting.pop_front()?;
            tenant.has += 1;
            Some(first.granted)
        });
        let granted = granted.flatten()?;
        self.given += 1;
        Some((name, granted))
    }
}

impl<P> Line<P> {
    /// A line in which no tenant gets more than `most` by entries that are bounded; it is told what others have.
    pub fn new(most: impl Fn(usize) -> usize + Send + Sync + 'static) -> Self {
        Self {
            inner: Arc::new(Inner {
                state: Mutex::new(State {
                    tenants: BTreeMap::new(),
                    order: BTreeSet::new(),
                    last_ticket: 0,
                    given: 0,
                }),
                changed: Notify::new(),
            }),
            asking: tokio::sync::Mutex::new(()),
            most: Box::new(most),
        }
    }

    /// Waits for a turn of `tenant`. Whoever waits asks for what is scarce by `free`, whose future may be dropped.
    pub async fn enter<F: Future<Output = P>>(
        &self,
        tenant: &TenantId,
        bound: Bound,
        free: impl Fn() -> F,
    ) -> Granted<P> {
        let (granted, turn) = oneshot::channel();
        let ticket = {
            let mut state = self.inner.lock();
            state.last_ticket += 1;
            let ticket = state.last_ticket;
            // So that there is one to change.
            state.tenant(tenant);
            let entry = Waiting {
                ticket,
                bound,
                granted,
            };
            state.change(tenant, |tenant| tenant.waiting.push_back(entry));
            ticket
        };
        let _in_line = InLine {
            inner: &self.inner,
            tenant,
            ticket,
        };
        self.inner.changed.notify_one();
        tokio::select! {
            biased;
            granted = turn => granted.expect("an entry stays in the line until it is granted or its guard is dropped"),
            never = self.ask(free) => match never {},
        }
    }

    /// Something for `tenant`, if there is some that nobody waits for.
    pub fn try_enter(
        &self,
        tenant: &TenantId,
        bound: Bound,
        free: impl FnOnce() -> Option<P>,
    ) -> Option<Granted<P>> {
        let mut state = self.inner.lock();
        let has = state.tenants.get(tenant).map_or(0, |tenant| tenant.has);
        if bound == Bound::Share && has >= (self.most)(state.given - has) || state.next(&self.most).is_some()
        {
            return None;
        }
        let permit = free()?;
        state.tenant(tenant);
        state.change(tenant, |tenant| tenant.has += 1);
        state.given += 1;
        drop(state);
        Some(self.granted(tenant.clone(), permit))
    }

    /// Tenants other than this one that have something or wait for it, and what they have.
    pub fn others(&self, tenant: &TenantId) -> (usize, usize) {
        let state = self.inner.lock();
        let own = state.tenants.get(tenant);
        let tenants = state.tenants.len() - usize::from(own.is_some());
        (tenants, state.given - own.map_or(0, |own| own.has))
    }

    /// Asks for all who wait, one after the other.
    async fn ask<F: Future<Output = P>>(&self, free: impl Fn() -> F) -> Infallible {
        let _asking = self.asking.lock().await;
        loop {
            while self.inner.lock().next(&self.most).is_none() {
                // A change in between is kept for this one, who alone waits for it.
                self.inner.changed.notified().await;
            }
            let permit = free().await;
            let next = self.inner.lock().take_next(&self.most);
            let Some((tenant, entry)) = next else { continue };
            // Whoever has left meanwhile gives it back by the drop.
            let _left = entry.send(self.granted(tenant, permit));
        }
    }

    fn granted(&self, tenant: TenantId, permit: P) -> Granted<P> {
        Granted {
            _permit: permit,
            tenant,
            inner: Arc::clone(&self.inner),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::{OwnedSemaphorePermit, Semaphore};
    use tokio::task::JoinHandle;

    use super::*;

    type Places = Line<OwnedSemaphorePermit>;

    fn tenant(name: &str) -> TenantId {
        TenantId::parse(name).expect("legal")
    }

    struct Ground {
        line: Arc<Places>,
        free: Arc<Semaphore>,
    }

    impl Ground {
        fn new(places: usize, most: usize) -> Self {
            Self {
                line: Arc::new(Line::new(move |_| most)),
                free: Arc::new(Semaphore::new(places)),
            }
        }

        /// Enters in a task of its own, which is in the line when this returns.
        async fn enter(&self, name: &str) -> JoinHandle<Granted<OwnedSemaphorePermit>> {
            let (line, free) = (Arc::clone(&self.line), Arc::clone(&self.free));
            let name = tenant(name);
            let task = tokio::spawn(async move {
                let permit = || async { Arc::clone(&free).acquire_owned().await.expect("never closed") };
                line.enter(&name, Bound::Share, permit).await
            });
            // Both clocks stand still, so that this is when every task waits.
            tokio::time::sleep(Duration::from_millis(1)).await;
            task
        }

        fn at_once(&self, name: &str) -> Option<Granted<OwnedSemaphorePermit>> {
            let free = || Arc::clone(&self.free).try_acquire_owned().ok();
            self.line.try_enter(&tenant(name), Bound::Share, free)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_free_place_goes_to_the_tenant_with_the_fewest_calls() {
        let ground = Ground::new(2, 9);
        let first = ground.enter("flood").await.await.expect("free");
        let _second = ground.enter("flood").await.await.expect("free");
        let mut flood = Vec::new();
        for _ in 0..5 {
            flood.push(ground.enter("flood").await);
        }
        let healthy = ground.enter("healthy").await;
        drop(first);
        let healthy = healthy.await.expect("its turn");
        assert!(flood.iter().all(|task| !task.is_finished()));
        drop(healthy);
        flood.remove(0).await.expect("nobody else waits");
    }

    #[tokio::test(start_paused = true)]
    async fn a_bounded_tenant_waits_for_its_own_while_others_pass() {
        let ground = Ground::new(4, 2);
        let _first = ground.enter("flood").await.await.expect("free");
        let second = ground.enter("flood").await.await.expect("free");
        let third = ground.enter("flood").await;
        assert!(
            !third.is_finished(),
            "two places are free, and it has as many as it may"
        );
        let _other = ground.enter("healthy").await.await.expect("free");
        drop(second);
        third.await.expect("it has one less");
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_leaves_the_line_keeps_no_place() {
        let ground = Ground::new(1, 9);
        let only = ground.enter("a").await.await.expect("free");
        let (left, stays) = (ground.enter("b").await, ground.enter("c").await);
        left.abort();
        assert!(left.await.is_err(), "it was cut off while it asked for both");
        drop(only);
        drop(stays.await.expect("its turn"));
        assert_eq!(ground.free.available_permits(), 1);
        assert_eq!(
            ground.line.others(&tenant("a")),
            (0, 0),
            "nothing is left of those that have gone"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_newcomer_does_not_pass_waiting_calls() {
        let ground = Ground::new(2, 1);
        let has = ground.at_once("a").expect("free");
        assert!(ground.at_once("a").is_none(), "it has as many as it may");
        let other = ground.at_once("b").expect("free");
        let waits = ground.enter("c").await;
        drop(other);
        assert!(ground.at_once("d").is_none(), "it is another one's turn");
        let _granted = waits.await.expect("its turn");
        drop(has);
        assert!(ground.at_once("d").is_some());
    }
}
