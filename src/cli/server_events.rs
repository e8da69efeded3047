//! Server-sent events, as a client of the API reads them.

/// A server-sent event.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ServerEvent {
    pub id: Option<String>,
    pub name: String,
    pub data: String,
}

/// Puts server-sent events together from the pieces in which they come.
#[derive(Debug, Default)]
pub struct Reading {
    rest: Vec<u8>,
    event: ServerEvent,
}

impl Reading {
    /// The events that are complete with this piece.
    pub fn take(&mut self, chunk: &[u8]) -> Vec<ServerEvent> {
        self.rest.extend_from_slice(chunk);
        let mut events = Vec::new();
        while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line[..end]);
            let line = line.trim_end_matches('\r');
            if line.is_empty() {
                let event = std::mem::take(&mut self.event);
                if !event.data.is_empty() {
                    events.push(event);
                }
                continue;
            }
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "id" => self.event.id = Some(value.to_owned()),
                "event" => value.clone_into(&mut self.event.name),
                "data" => self.event.data.push_str(value),
                _ => {}
            }
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_put_together_from_pieces_and_comments_are_none() {
        let mut reading = Reading::default();
        assert_eq!(reading.take(b": alive\n\nid: 7\nevent: ent"), []);
        let events = reading.take(b"ry\ndata: {\"a\": 1}\n\nevent: end\ndata: {}\n\n");
        assert_eq!(
            events,
            [
                ServerEvent {
                    id: Some("7".to_owned()),
                    name: "entry".to_owned(),
                    data: "{\"a\": 1}".to_owned(),
                },
                ServerEvent {
                    id: None,
                    name: "end".to_owned(),
                    data: "{}".to_owned(),
                }
            ]
        );
    }
}
