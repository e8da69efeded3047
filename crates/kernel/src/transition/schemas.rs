//! Gates at run time: events must be of a version and shape that the saga knows, and so must the state it leaves.

use saga_runner_language::definition::model::EventDefinition;
use saga_runner_language::expr::Template;
use saga_runner_language::json::Json;

use super::run::Run;
use super::scope::Locals;
use super::{EVENT_SCHEMA, EVENT_VERSION, Rejection};
use crate::input::DomainEvent;

impl<'a> Run<'a> {
    /// Checks the version and the data of an event that something is said about. Data of an older version is
    /// replaced by what its upcast makes of it; expressions see nothing else then.
    pub(super) fn admit(&mut self) -> Result<(), Rejection> {
        let Some(event) = self.event() else {
            return Ok(());
        };
        let Some(known) = self.ground.definition.events.get(&event.event_type) else {
            return Ok(());
        };
        if let Some(upcast) = known.upcast.get(&event.schema_version) {
            self.upcast(event, upcast)?;
        } else if !known.versions.is_empty() && !known.versions.contains(&event.schema_version) {
            return Err(unknown_version(event, known));
        }
        let Some(schema) = &known.schema else {
            return Ok(());
        };
        let root = self.event_root()?;
        let data = root.get("data").unwrap_or(&Json::Null);
        schema.check(data).map_err(|violation| Rejection {
            reason: EVENT_SCHEMA,
            message: format!(
                "event {} of type {}, version {}: data {violation}",
                event.event_id, event.event_type, event.schema_version
            ),
        })
    }

    fn upcast(&mut self, event: &'a DomainEvent, upcast: &Template) -> Result<(), Rejection> {
        let place = || format!("events.{}.upcast.{}", event.event_type, event.schema_version);
        let data = self.render(upcast, Locals::default(), place)?;
        let data = self.parse_owned(data, "upcast")?;
        let root = event.root(self.ground.input.time, data.clone());
        self.parsed.event = Some(self.ground.values.keep(root));
        Ok(())
    }

    /// Checks the state that the transition leaves behind.
    pub(super) fn check_state(&mut self) -> Result<(), Rejection> {
        let Some(schema) = &self.ground.definition.state_schema else {
            return Ok(());
        };
        let state = self.state_root()?;
        schema.check(state).map_err(|violation| Rejection {
            reason: "state.schema",
            message: format!("the state would not fit its schema: {violation}"),
        })
    }
}

fn unknown_version(event: &DomainEvent, known: &EventDefinition) -> Rejection {
    let versions: Vec<String> = known
        .versions
        .iter()
        .chain(known.upcast.keys())
        .map(ToString::to_string)
        .collect();
    Rejection {
        reason: EVENT_VERSION,
        message: format!(
            "event {} of type {} has version {}, taken are {}",
            event.event_id,
            event.event_type,
            event.schema_version,
            versions.join(", ")
        ),
    }
}
