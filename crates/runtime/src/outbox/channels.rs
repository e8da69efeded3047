//! Places for submissions: how many are made at the same time, for one tenant and aggregate type and in all.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::kernel::ids::TenantId;

/// What has places of its own: commands of one tenant for aggregates of one type.
pub type Channel = (TenantId, Arc<str>);

/// Places of all channels. Each has one of its own, so that others which are slow cannot keep it from submitting; what
/// it has beyond that comes from those that all share.
pub struct Channels {
    /// Most places of one channel.
    each: usize,
    common: Arc<Semaphore>,
    open: Mutex<BTreeMap<Channel, Arc<Places>>>,
}

struct Places {
    /// All that the channel may have at the same time.
    all: Semaphore,
    own: Arc<Semaphore>,
}

/// A channel's place, free again when it is dropped.
pub struct Place<'c> {
    _of_all: OwnedOfAll<'c>,
    _permit: OwnedSemaphorePermit,
}

/// Counts towards what the channel may have. The channel is forgotten with the last of them.
struct OwnedOfAll<'c> {
    channels: &'c Channels,
    channel: Channel,
    places: Arc<Places>,
    is_entered: bool,
}

impl Drop for OwnedOfAll<'_> {
    fn drop(&mut self) {
        if self.is_entered {
            self.places.all.add_permits(1);
        }
        let mut open = self.channels.open();
        // The map's and this one.
        if Arc::strong_count(&self.places) == 2 {
            open.remove(&self.channel);
        }
    }
}

impl Channels {
    pub fn new(each: usize, all: usize) -> Self {
        Self {
            each: each.clamp(1, Semaphore::MAX_PERMITS),
            common: Arc::new(Semaphore::new(all.min(Semaphore::MAX_PERMITS))),
            open: Mutex::default(),
        }
    }

    /// Waits for a place, behind those of the same channel that came before.
    pub async fn enter(&self, channel: &Channel) -> Place<'_> {
        let places = Arc::clone(self.open().entry(channel.clone()).or_insert_with(|| {
            Arc::new(Places {
                all: Semaphore::new(self.each),
                own: Arc::new(Semaphore::new(1)),
            })
        }));
        let mut of_all = OwnedOfAll {
            channels: self,
            channel: channel.clone(),
            places,
            is_entered: false,
        };
        let permit = of_all.places.all.acquire().await;
        permit.expect("the semaphore is never closed").forget();
        of_all.is_entered = true;
        let permit = tokio::select! {
            biased;
            permit = Arc::clone(&of_all.places.own).acquire_owned() => permit,
            permit = Arc::clone(&self.common).acquire_owned() => permit,
        };
        Place {
            _of_all: of_all,
            _permit: permit.expect("the semaphores are never closed"),
        }
    }

    fn open(&self) -> MutexGuard<'_, BTreeMap<Channel, Arc<Places>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn channel(tenant: &str, aggregate_type: &str) -> Channel {
        (TenantId::parse(tenant).expect("legal"), aggregate_type.into())
    }

    /// All places that the channel gets at once.
    fn taken<'c>(channels: &'c Channels, channel: &Channel) -> Vec<Place<'c>> {
        std::iter::from_fn(|| channels.enter(channel).now_or_never()).collect()
    }

    #[test]
    fn a_channel_has_no_more_than_its_places_and_always_one_of_its_own() {
        let channels = Channels::new(4, 5);
        let slow = taken(&channels, &channel("acme", "Stock"));
        assert_eq!(slow.len(), 4, "its own and three of the common ones");
        let slower = taken(&channels, &channel("globex", "Stock"));
        assert_eq!(slower.len(), 3, "its own and what is left");
        for other in [channel("acme", "Shipment"), channel("initech", "Stock")] {
            assert_eq!(taken(&channels, &other).len(), 1, "its own");
        }
        drop(slow);
        assert_eq!(taken(&channels, &channel("initech", "Stock")).len(), 4);
        drop(slower);
        assert!(
            channels.open().is_empty(),
            "channels without submissions are forgotten"
        );
        assert_eq!(channels.common.available_permits(), 5);
    }
}
