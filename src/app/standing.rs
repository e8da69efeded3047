//! What stands in the streams where the shards stopped reading, looked up before they are opened.

use std::sync::Arc;
use std::time::Duration;

use super::StartError;
use crate::intake::stamp_of;
use crate::kernel::input::SourceStream;
use crate::ports::broker::{Broker, BrokerError, StreamState};
use crate::shard::Standing;
use crate::storage::Store;

/// Pause before a broker that did not answer is asked again.
const AGAIN: Duration = Duration::from_secs(1);

/// The messages at the positions of a shard, by [`SourceStream::index`]; `None` where there is nothing to compare.
pub(super) async fn look_up(
    broker: &Arc<dyn Broker>,
    store: &Store,
    streams: &[StreamState; 3],
) -> Result<[Option<Standing>; 3], StartError> {
    let reader = store.reader();
    let mut standing = [None; 3];
    for stream in SourceStream::ALL {
        let row = reader
            .position(stream)
            .map_err(|error| StartError::Storage(error.to_string()))?;
        if let Some(row) = row.filter(|row| row.stamp.is_some()) {
            let name = &streams[stream.index()].identity.name;
            standing[stream.index()] = at(broker, name, row.sequence).await?;
        }
    }
    Ok(standing)
}

async fn at(broker: &Arc<dyn Broker>, stream: &str, sequence: u64) -> Result<Option<Standing>, StartError> {
    loop {
        match broker.message_at(stream, sequence).await {
            Ok(found) => {
                return Ok(found.map(|message| Standing {
                    sequence,
                    stamp: stamp_of(&message),
                }));
            }
            Err(BrokerError::Unavailable(message)) => {
                tracing::warn!(stream, sequence, message, "waiting for the broker");
                tokio::time::sleep(AGAIN).await;
            }
            Err(error) => return Err(StartError::Broker(error.to_string())),
        }
    }
}
