//! Pages of lists that another process reads: asked for in portions, as the client takes them, so that neither process holds a page.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use axum::extract::Query;
use axum::response::Response;
use bytes::Bytes;
use futures::FutureExt as _;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::ask::{Asking, begun, head, passed_on, unreadable, whole};
use super::{RequestHead, joined};
use crate::api::ApiState;
use crate::api::extract::PageParameters;
use crate::api::pages::{self, Ask, PORTION, Portion, Refusal, Wanted};
use crate::api::problem::Problem;
use crate::ports::control::PageRequest;
use crate::ports::forwarding::Forwarding;

/// A list of which the other process is asked for a page.
pub struct List {
    state: ApiState,
    way: Arc<dyn Forwarding>,
    /// What its items are called.
    name: &'static str,
    /// What the request says of the page.
    page: PageRequest,
    head: RequestHead,
    /// Target without cursor and limit; it ends where these are added.
    target: String,
}

#[derive(Deserialize)]
struct Asked {
    after: Option<String>,
    limit: Option<String>,
}

impl List {
    /// `None` for what is no page of a list, and for a page that the other process will refuse.
    pub fn of(state: &ApiState, way: &Arc<dyn Forwarding>, asking: &Asking<'_>) -> Option<Self> {
        let name = asking.endpoint.paged()?;
        let uri = asking.request.uri();
        let Query(Asked { after, limit }) = Query::<Asked>::try_from_uri(uri).ok()?;
        let (names_after, names_limit) = (after.is_some(), limit.is_some());
        let page = PageParameters::new(after, limit).page().ok()?;
        let parts: Vec<&str> = uri.query().unwrap_or_default().split('&').collect();
        let is = |part: &str, name: &str| part.split('=').next() == Some(name);
        let is_cursor = |part: &&str| is(part, "after");
        let is_limit = |part: &&str| is(part, "limit");
        // A name that is spelt in another way would be there twice.
        if parts.iter().any(is_cursor) != names_after || parts.iter().any(is_limit) != names_limit {
            return None;
        }
        let others = parts
            .iter()
            .filter(|part| !part.is_empty() && !is_cursor(part) && !is_limit(part));
        let mut target = format!("{}?", uri.path());
        for part in others {
            target += part;
            target.push('&');
        }
        Some(Self {
            state: state.clone(),
            way: Arc::clone(way),
            name,
            page,
            head: head(asking),
            target,
        })
    }

    /// The page, sent as its client takes it.
    pub async fn answered(self) -> Response {
        let (state, name, page) = (self.state.clone(), self.name, self.page.clone());
        let list = Arc::new(self);
        let ask: Ask = Box::new(move |page| Arc::clone(&list).portion(page).boxed());
        match pages::answered(&state, name, page, ask).await {
            Ok(response) => response,
            Err(refusal) => refusal.into_response(),
        }
    }

    /// Asks for a portion.
    async fn portion(self: Arc<Self>, page: PageRequest) -> Result<Portion, Refusal> {
        let state = &self.state;
        let is_first = page.after == self.page.after && page.limit == self.page.limit;
        let places = Arc::clone(&state.forwarding.places);
        let place = if is_first {
            places.try_acquire_owned().ok()
        } else {
            places.acquire_owned().await.ok()
        };
        let _place = place.ok_or_else(|| {
            Problem::unavailable("as many requests are forwarded as http.forwards_max says; retry later")
        })?;
        let mut head = self.head.clone();
        if !is_first {
            head.target = self.target_of(&page);
        }
        let bytes = page.bytes.unwrap_or(pages::PORTION_BYTES);
        let wanted = Wanted {
            bytes: bytes.min(state.forwarding.bytes_max),
            looked_at: page.looked_at,
        };
        head.headers
            .push((PORTION.as_str().to_owned(), wanted.to_string()));
        let begun = begun(state, &*self.way, joined(&head, &[]), state.forwarding.timeout).await?;
        let whole = whole(state, begun.answer, begun.bytes).await?;
        if !begun.status.is_success() {
            let response = passed_on(begun.status, &begun.head, whole);
            return Err(Refusal::There(Box::new(response)));
        }
        let portion = read(self.name, &whole).map_err(|why| unreadable(&why))?;
        Ok(portion)
    }

    /// Target of the rest of the page.
    fn target_of(&self, page: &PageRequest) -> String {
        let mut target = format!("{}limit={}", self.target, page.limit);
        let Some(after) = &page.after else { return target };
        target += "&after=";
        for byte in after.bytes() {
            if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
                target.push(char::from(byte));
            } else {
                write!(target, "%{byte:02X}").expect("writing to a string");
            }
        }
        target
    }
}

/// Reads the answer of the other process.
fn read(name: &str, answer: &Bytes) -> Result<Portion, String> {
    fn member<'m, T: Deserialize<'m>>(members: &mut Members<'m>, name: &str) -> Result<Option<T>, String> {
        let found = members.remove(name);
        let read = found.map(|found| serde_json::from_str(found.get()));
        read.transpose().map_err(|error| format!("{name}: {error}"))
    }

    let members: Result<Members<'_>, _> = serde_json::from_slice(answer);
    let mut members = members.map_err(|error| error.to_string())?;
    let items: Option<Vec<&RawValue>> = member(&mut members, name)?;
    let mut portion = Portion {
        next: member(&mut members, "next")?,
        absent_shards: member(&mut members, "absent_shards")?.unwrap_or_default(),
        looked_at: member(&mut members, "looked_at")?,
        ..Portion::default()
    };
    for item in items.ok_or_else(|| format!("it has no {name}"))? {
        portion.push(|items| items.extend_from_slice(item.get().as_bytes()));
    }
    for (name, value) in members {
        let name = serde_json::Value::from(name);
        write!(portion.members, ",{name}:{}", value.get()).expect("writing to a string");
    }
    Ok(portion)
}

type Members<'m> = BTreeMap<String, &'m RawValue>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_portion_has_the_items_as_they_came_and_what_is_said_beside_them() {
        let answer =
            r#"{"items":[{"a": 1.50},"x"],"archived":true,"next":"0.e7","absent_shards":[3],"looked_at":9}"#;
        let portion = read("items", &Bytes::from(answer)).expect("a page");
        assert_eq!(portion.items, br#"{"a": 1.50},"x""#);
        assert_eq!((portion.count, portion.bytes), (2, 14));
        assert_eq!(
            (portion.next.as_deref(), portion.looked_at),
            (Some("0.e7"), Some(9))
        );
        assert_eq!(
            (&portion.absent_shards[..], portion.members.as_str()),
            (&[3][..], ",\"archived\":true")
        );
        let empty = read("inputs", &Bytes::from(r#"{"inputs":[]}"#)).expect("a page");
        assert_eq!((empty.count, empty.next), (0, None));
        for wrong in ["", "[]", "{}", r#"{"items":{}}"#, r#"{"items":[],"next":7}"#] {
            assert!(read("items", &Bytes::from(wrong)).is_err(), "{wrong}");
        }
    }
}
