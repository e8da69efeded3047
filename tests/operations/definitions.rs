//! What runs in the scene: small sagas, each for one thing that an operation needs.

/// Waits, acts and waits again, with something to undo behind the first wait, and a timer.
const VISIT: &str = r"
apiVersion: sagas/v1
kind: Saga
name: visit
input: {type: object}
state: {init: {reminded: false}}
timers:
  remind: {after: 1h, set: {reminded: true}}
steps:
  ask: {wait: {signal: go, timeout: 1h}}
  book: {needs: [ask], effect: divide, with: {by: 1}, compensate: {effect: divide, with: {by: 2}}}
  leave: {needs: [book], wait: {signal: leave, timeout: 1h}}
";

/// Fails at its second step, and the first attempt to undo the first one is rejected: an operator has to decide.
const REPAIR: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: repair
input: {type: object}
steps:
  first: {effect: divide, with: {by: 1}, compensate: {effect: call, with: {path: "${key}"}, retry: {attempts: 1}}}
  second: {needs: [first], effect: divide, with: {by: 0}}
"#;

/// Its first attempt is rejected, and the next one is an hour away.
const PATIENCE: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: patience
input: {type: object}
steps:
  call: {effect: call, with: {path: "${key}"}, retry: {errors: [permanent], attempts: 3, backoff: {initial: 1h}}}
"#;

/// Waits for the holder of a token.
const CONTRACT: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: contract
input: {type: object}
state: {init: {signed: ""}}
steps:
  sign:
    effect: sign
    with: {contract: "${key}"}
    wait: {callback: true, timeout: 1h}
    set: {signed: "${signal.name}"}
    compensate: none
"#;

/// Its command stays where it is: no worker takes it.
const POLL: &str = r"
apiVersion: sagas/v1
kind: Saga
name: poll
input: {type: object}
steps:
  answer: {effect: survey, with: {}, timeout: 1h}
";

/// Registers an alias.
const PARCEL: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: parcel
start: Parcel.Packed
key: {"Parcel.*": event.data.id}
events: {Carrier.Delivered: {by: {tracking: event.data.no}}}
handlers:
  Parcel.Packed: {alias: {tracking: "${event.data.no}"}}
steps:
  deliver: {wait: {event: Carrier.Delivered, timeout: 24h}}
"#;

/// Its planned time is on a leap day, so none comes during a test.
const LEAP: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: leap
schedule: {cron: "0 0 29 FEB *", zone: Europe/Berlin, catch_up: none}
state: {init: {at: "${input.time}"}}
steps:
  wait: {wait: {signal: go, timeout: 1h}}
"#;

/// Divides 100 by what its events carry, so a zero is a dead letter.
const RATIO: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: ratio
start: Ratio.Opened
key: {"Ratio.*": event.data.ratio}
state: {init: {shares: []}}
handlers:
  Ratio.Divided:
    set: {shares: "${state.shares + [100 / event.data.by]}"}
machine:
  initial: open
  states:
    open:
      handlers:
        Ratio.Closed: {to: closed}
    closed: {final: true}
"#;

/// By their names.
pub const SAGAS: [(&str, &str); 8] = [
    ("visit", VISIT),
    ("repair", REPAIR),
    ("patience", PATIENCE),
    ("contract", CONTRACT),
    ("poll", POLL),
    ("parcel", PARCEL),
    ("leap", LEAP),
    ("ratio", RATIO),
];

/// By their names, without the head that [`effects`] puts before each.
const EFFECTS: [(&str, &str); 4] = [
    (
        "divide",
        "transform: {}\nresult: {share: \"${100 / input.by}\"}\n",
    ),
    (
        "call",
        "http: {method: POST, url: \"${upstreams.desk}/once/${url(input.path)}\"}\n",
    ),
    (
        "sign",
        "http:\n  method: POST\n  url: \"${upstreams.desk}/sign\"\n  \
         body: {contract: \"${input.contract}\", answer: \"${command.token}\"}\n",
    ),
    ("survey", "external: {}\n"),
];

/// The effects as files, by their names.
pub fn effects() -> impl Iterator<Item = (&'static str, String)> {
    EFFECTS.into_iter().map(|(name, rest)| {
        let text = format!("apiVersion: sagas/v1\nkind: Effect\nname: {name}\n{rest}");
        (name, text)
    })
}

/// A saga of this name that has two versions; the second one has something in addition.
pub fn deal(name: &str) -> [String; 2] {
    let first = format!(
        "apiVersion: sagas/v1\nkind: Saga\nname: {name}\ninput: {{type: object}}\nstate: {{init: {{}}}}\n\
         steps:\n  sign: {{wait: {{signal: sign, timeout: 30d}}}}\n"
    );
    let second = format!("{first}  tell: {{publish: {{type: deal.told}}}}\n");
    [first, second]
}
