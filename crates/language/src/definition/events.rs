//! Reading what a saga says about its events: their schemas, the versions it takes, how older ones become new.

use std::collections::BTreeMap;

use super::actions::Reading;
use super::codes;
use super::fields::{self, Fields};
use super::grammar;
use super::model::EventDefinition;
use super::texts::{self, Readable};
use super::yaml::Entry;
use crate::expr::{Root, Template};

/// Most versions of one event type.
const VERSIONS_MAX: usize = 64;

impl<'r> Reading<'r, '_> {
    pub fn events(&mut self, entry: &'r Entry<'_>) -> BTreeMap<String, EventDefinition> {
        let mut events = BTreeMap::new();
        let entries = fields::entries(&entry.value, &entry.key_span, "events", self.findings);
        for entry in entries.unwrap_or_default() {
            if fields::is_event_type(&entry.key, &entry.key_span, self.findings)
                && let Some(event) = self.event(entry)
            {
                events.insert(entry.key.clone().into_owned(), event);
            }
        }
        events
    }

    fn event(&mut self, entry: &'r Entry<'_>) -> Option<EventDefinition> {
        let fields = Fields::read(
            &entry.value,
            &entry.key_span,
            &grammar::saga::EVENT,
            self.findings,
        )?;
        let from = fields
            .get("from")
            .map(|from| self.from(from, &entry.key))
            .unwrap_or_default();
        if fields.get("from").is_some() {
            for key in ["versions", "upcast"] {
                if let Some(stray) = fields.get(key) {
                    let message = format!(
                        "a fact of a saga has no versions: \"from\" and \"{key}\" exclude each other"
                    );
                    self.findings
                        .error(codes::CONTRADICTION, stray.key_span.clone(), message);
                }
            }
        }
        let said = fields.get("schema");
        let schema = said.and_then(|schema| self.schemas.read(schema, self.findings));
        if let (Some(said), Some(schema)) = (said, &schema) {
            self.hears(said, schema, &entry.key, &from);
        }
        let versions = fields
            .get("versions")
            .map(|versions| self.versions(versions))
            .unwrap_or_default();
        let upcast = fields
            .get("upcast")
            .map(|upcast| self.upcast(upcast, &versions))
            .unwrap_or_default();
        Some(EventDefinition {
            from,
            schema,
            versions,
            upcast,
        })
    }

    /// In ascending order.
    fn versions(&mut self, entry: &'r Entry<'_>) -> Vec<u32> {
        let items = fields::one_or_many(&entry.value);
        if items.is_empty() || items.len() > VERSIONS_MAX {
            let message = format!("{} versions, expected 1 to {VERSIONS_MAX}", items.len());
            self.findings
                .error(codes::WRONG_VALUE, entry.key_span.clone(), message);
        }
        let mut versions: Vec<u32> = items
            .iter()
            .filter_map(|item| {
                let number = fields::whole(item)?;
                u32::try_from(number).ok()
            })
            .collect();
        if versions.len() != items.len() {
            let what = "versions as whole numbers";
            fields::expected(&entry.value, &entry.key_span, what, self.findings);
        }
        versions.sort_unstable();
        versions.dedup();
        versions
    }

    fn upcast(&mut self, entry: &'r Entry<'_>, versions: &[u32]) -> BTreeMap<u32, Template> {
        let mut upcast = BTreeMap::new();
        let entries = fields::entries(&entry.value, &entry.key_span, "upcast", self.findings);
        for entry in entries.unwrap_or_default() {
            let Ok(version) = entry.key.parse::<u32>() else {
                let message = format!("\"{}\" is not a version", entry.key.escape_debug());
                self.findings
                    .error(codes::WRONG_VALUE, entry.key_span.clone(), message);
                continue;
            };
            if versions.contains(&version) {
                let message = format!("version {version} is taken as it is, by \"versions\"");
                self.findings
                    .error(codes::CONTRADICTION, entry.key_span.clone(), message);
            }
            let template = texts::template(&entry.value, Readable::roots(&[Root::Event]), self.findings);
            upcast.insert(version, template);
        }
        upcast
    }
}
