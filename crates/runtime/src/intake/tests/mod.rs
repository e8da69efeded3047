//! Promises of the intake.

mod added;
mod aliases;
mod bad_messages;
mod broker;
mod facts;
mod fixtures;
mod good_messages;
mod identity;
mod reading;
mod rerouted;
mod senders;
mod world;

use std::sync::Arc;

use bytes::Bytes;

use super::decode::Decoder;
use super::route::{Outcome, Routed, Router};
use super::versions::Versions;
use crate::kernel::definition::{Definition, DefinitionSet};
use crate::kernel::ids::{TenantId, TimeMs};
use crate::kernel::input::{DomainEvent, Input, InputBody, SourceStream};
use crate::kernel::limits::Limits;
use crate::kernel::subject::Tenancy;
use crate::ports::broker::Message;
use crate::shard::mailbox::{Applied, Arrival, Unreadable};
use fixtures::{acme, event, order_saga, saga};

fn router_of(active: Vec<Arc<Definition>>, archived: Vec<Arc<Definition>>) -> Router {
    Router {
        decoder: Decoder {
            cluster: "shop".to_owned(),
            tenancy: Tenancy::Multi,
            tenants: None,
            limits: Limits::default(),
            tokens: None,
            takes_applied: Arc::default(),
            event_id_from: None,
        },
        definitions: Versions::new(Arc::new(DefinitionSet::new(active, archived))),
        shards: 8,
    }
}

fn router() -> Router {
    router_of(vec![order_saga()], Vec::new())
}

const SUBJECT: &str = "tenant.acme.aggregate.Order.o-1";

fn message(subject: &str, payload: impl AsRef<[u8]>) -> Message {
    Message {
        subject: subject.to_owned(),
        headers: Vec::new(),
        payload: Bytes::copy_from_slice(payload.as_ref()),
        stream_sequence: 7,
        consumer_sequence: 1,
        delivered: 1,
        pending: 0,
        time: TimeMs(1_700_000_000_000),
    }
}

fn with_headers(mut message: Message, headers: &[(&str, &str)]) -> Message {
    message.headers = headers
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    message
}

fn routed(router: &Router, stream: SourceStream, message: &Message) -> Vec<Routed> {
    let mut out = Vec::new();
    let outcome = router.route(stream, message, &mut out);
    assert!(matches!(outcome, Outcome::Routed | Outcome::Unclaimed));
    out
}

fn inputs(router: &Router, stream: SourceStream, message: &Message) -> Vec<Input> {
    let each = routed(router, stream, message).into_iter();
    each.map(|(_, arrival)| match arrival {
        Arrival::Input(input) | Arrival::Applied(Applied { input, .. }) => input,
        Arrival::Unreadable(found) => panic!("unreadable: {found:?}"),
    })
    .collect()
}

fn the_event(router: &Router, message: &Message) -> DomainEvent {
    let mut found = inputs(router, SourceStream::AggregateEvents, message);
    assert_eq!(found.len(), 1, "{found:?}");
    match found.remove(0).body {
        InputBody::Event(event) => event,
        other => panic!("not an event: {other:?}"),
    }
}

fn unreadable(router: &Router, stream: SourceStream, message: &Message) -> Unreadable {
    let mut found = routed(router, stream, message);
    assert_eq!(found.len(), 1, "{found:?}");
    match found.remove(0).1 {
        Arrival::Unreadable(found) => found,
        other @ (Arrival::Input(_) | Arrival::Applied(_)) => panic!("readable: {other:?}"),
    }
}
