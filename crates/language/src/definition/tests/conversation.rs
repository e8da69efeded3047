//! What sagas say to each other: facts that they hear, signals that they send.

use std::sync::Arc;

use super::super::DefinitionSet;
use super::super::model::{Action, Emit, Telling};
use super::{file, load, saga};

/// Loads sagas by name and body; findings as one line each.
fn loaded(sagas: &[(&str, &str)]) -> (Vec<Arc<super::Definition>>, Vec<String>) {
    let files = sagas.iter().map(|(name, body)| {
        let text =
            format!("apiVersion: sagas/v1\nkind: Saga\nname: {name}\nkey: {{\"*\": event.data.id}}\n{body}");
        file(&format!("{name}.yaml"), &text)
    });
    let loaded = load(&files.collect::<Vec<_>>(), &[]);
    let findings = loaded.diagnostics.iter().map(ToString::to_string).collect();
    (loaded.sagas, findings)
}

const HALL: &str = "start: Hall.Opened
steps: {tell: {publish: {type: seat.confirmed}}, hold: {wait: {signal: close, timeout: 1h}}}
";

#[test]
fn a_fact_is_heard_from_the_sagas_that_are_named_and_from_no_aggregate() {
    let (sagas, findings) = loaded(&[
        ("hall", HALL),
        (
            "tour",
            "start: Tour.Opened\nsteps: {tell: {publish: {type: seat.confirmed}}}\n",
        ),
        (
            "guest",
            "start: [seat.confirmed, Guest.Came]
events: {seat.confirmed: {from: [tour, hall, hall]}, saga.compensation_failed: {from: hall}}
after_end: {saga.compensation_failed: {set: {}}}
steps: {rest: {delay: 1h}}
",
        ),
    ]);
    assert_eq!(findings, [] as [String; 0]);
    let guest = sagas
        .iter()
        .find(|saga| saga.name.as_str() == "guest")
        .expect("there");
    let names = |saga: &super::Definition, event| {
        let from = saga.publishers(event).iter();
        from.map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(names(guest, "seat.confirmed"), ["hall", "tour"]);
    assert_eq!(names(guest, "Guest.Came"), [] as [&str; 0]);

    let set = DefinitionSet::new(sagas.clone(), Vec::new());
    assert_eq!(set.aggregate_types(), ["Guest", "Hall", "Tour"]);
    let publishers: Vec<&str> = set
        .publishers()
        .into_iter()
        .map(crate::ids::SagaName::as_str)
        .collect();
    assert_eq!(publishers, ["hall", "tour"]);
}

#[test]
fn the_publishers_of_a_fact_are_part_of_the_version() {
    let of = |from: &str| {
        saga(&format!(
            "events: {{Order.Seated: {{{from}}}}}\nhandlers: {{Order.Seated: {{set: {{seated: true}}}}}}\nsteps: {{a: {{delay: 1h}}}}\n"
        ))
    };
    let (plain, one, two) = (of(""), of("from: probe"), of("from: [probe, probe]"));
    assert_eq!(one.hash, two.hash);
    assert_ne!(plain.hash, one.hash);
    assert_ne!(plain.rule_text("Order.Seated"), one.rule_text("Order.Seated"));
    let (before, after) = (
        DefinitionSet::new(vec![Arc::clone(&plain)], Vec::new()),
        DefinitionSet::new(vec![Arc::clone(&one)], vec![plain]),
    );
    let more = after.hears_more_than(&before);
    assert!(more.facts && !more.events, "it is to be asked for: {more:?}");
    assert!(after.is_contested(&one.name, "Order.Seated"));
}

#[test]
fn a_fact_that_no_saga_publishes_is_told() {
    let guest = |from: &str, more: &str| {
        let body = format!(
            "start: Guest.Came\nevents: {{seat.confirmd: {{from: {from}{more}}}}}\nhandlers: {{seat.confirmd: {{set: {{}}}}}}\nsteps: {{a: {{delay: 1h}}}}\n"
        );
        loaded(&[("hall", HALL), ("guest", &body)]).1
    };
    assert_eq!(
        guest("hall", ""),
        [
            "guest.yaml:6:32: saga \"hall\" publishes no fact \"seat.confirmd\"; did you mean \"seat.confirmed\"? [SR0152]"
        ]
    );
    assert_eq!(
        guest("hal", ""),
        ["guest.yaml:6:32: unknown saga \"hal\"; did you mean \"hall\"? [SR0151]"]
    );
    let versions = guest("hall", ", versions: [2]");
    assert!(
        versions[1]
            .contains("a fact of a saga has no versions: \"from\" and \"versions\" exclude each other"),
        "{versions:?}"
    );
    let none = guest("[]", "");
    assert!(none[0].contains("expected the name of a saga"), "{none:?}");
}

const CINEMA: &str = "start: {event: Hall.Opened, set: {hall: h-1}}
facts: {seat.confirmed: {schema: {type: object, required: [guest], properties: {guest: {type: string}, row: {type: integer}}}}}
state: {init: {}, schema: {type: object, properties: {hall: {type: string}, row: {type: integer}}}}
steps: {tell: {publish: {type: seat.confirmed, payload: {guest: \"${key}\"}}}}
";

/// What is said of a saga that hears seats, with this under `events.seat.confirmed`, beside other sagas.
fn hearing(event: &str, others: &[(&str, &str)]) -> Vec<String> {
    let guest = format!(
        "start: seat.confirmed\nevents: {{seat.confirmed: {event}}}\nhandlers: {{seat.confirmed: {{set: {{row: \"${{event.data.?row.orValue(0)}}\"}}}}}}\nsteps: {{rest: {{delay: 1h}}}}\n"
    );
    let sagas = [others, &[("guest", &guest)]].concat();
    loaded(&sagas).1
}

#[test]
fn a_subscribers_schema_of_a_fact_is_checked_against_the_publishers() {
    let of = |properties: &str, more: &str| {
        let event = format!("{{from: cinema, schema: {{type: object, properties: {{{properties}}}{more}}}}}");
        hearing(&event, &[("cinema", CINEMA)])
    };
    let good = [
        of(
            "guest: {type: string}, row: {type: integer}",
            ", required: [guest]",
        ),
        of("row: {type: number}", ""),
        of("row: {type: integer}, guest: {enum: [ann, bob]}", ""),
    ];
    assert_eq!(good.concat(), [] as [String; 0]);
    let told = |findings: Vec<String>, wanted: &str| {
        let found = findings.iter().find(|finding| finding.ends_with("[SR0154]"));
        let found = found.unwrap_or_else(|| panic!("{wanted}: {findings:?}"));
        assert!(found.contains(wanted), "{found}");
    };
    told(
        of("row: {type: integer}, guest: {type: integer}", ""),
        "guest.yaml:6:99: seat.confirmed of saga cinema does not carry this: expected an integer, found a string",
    );
    told(
        of("row: {type: integer}", ", required: [row]"),
        "\"row\" may be missing here, and must be there; its file says under facts what seat.confirmed carries",
    );
    told(
        of("row: {type: integer}", ", required: [seat]"),
        "the member \"seat\" is missing",
    );
    told(
        of("row: {type: integer}, guests: {type: string}", ""),
        "there is no member \"guests\"; did you mean \"guest\"?",
    );
    told(
        of("row: {type: integer}", ", additionalProperties: false"),
        "\"guest\" is not a member of what is expected",
    );
}

#[test]
fn of_several_publishers_each_gives_what_must_be_there_and_one_what_may() {
    let plain = "start: Hall.Opened\nsteps: {tell: {publish: {type: seat.confirmed}}}\n";
    let other = CINEMA.replace("row: {type: integer}}}}}", "box: {type: integer}}}}}");
    let of = |properties: &str, tour: &str| {
        let event =
            format!("{{from: [cinema, tour], schema: {{type: object, properties: {{{properties}}}}}}}");
        hearing(&event, &[("cinema", CINEMA), ("tour", tour)])
    };
    assert_eq!(
        of("row: {type: integer}, box: {type: integer}", &other),
        [] as [String; 0]
    );
    assert_eq!(
        of("row: {type: integer}, chair: {type: string}", plain),
        [] as [String; 0]
    );
    let found = of("row: {type: integer}, chair: {type: string}", &other);
    assert!(
        found[0].contains(
            "seat.confirmed of saga cinema or tour does not carry this: there is no member \"chair\""
        ),
        "{found:?}"
    );
}

#[test]
fn a_subscriber_without_a_schema_uses_the_publishers() {
    let told = hearing("{from: cinema}", &[("cinema", CINEMA)]);
    assert_eq!(told, [] as [String; 0]);
    let other = CINEMA.replace("row: {type: integer}}}}}", "box: {type: integer}}}}}");
    let unknown = hearing("{from: cinema}", &[("cinema", &other)]);
    assert!(
        unknown[0].contains("row") && unknown[0].ends_with("[SR0173]"),
        "{unknown:?}"
    );
    let one_of_two = hearing(
        "{from: [cinema, tour]}",
        &[
            ("cinema", &other),
            (
                "tour",
                "start: Hall.Opened\nsteps: {tell: {publish: {type: seat.confirmed}}}\n",
            ),
        ],
    );
    assert_eq!(one_of_two, [] as [String; 0]);
}

#[test]
fn a_published_fact_is_checked_against_its_declared_schema() {
    let cinema = |from: &str, to: &str| loaded(&[("cinema", &CINEMA.replace(from, to))]).1;
    assert_eq!(cinema("", ""), [] as [String; 0]);
    let missing = cinema("payload: {guest: \"${key}\"}", "payload: {row: 1}");
    assert!(
        missing[0].contains("the member \"guest\" is missing"),
        "{missing:?}"
    );
    let none = cinema(", payload: {guest: \"${key}\"}", "");
    assert!(none[0].contains("the member \"guest\" is missing"), "{none:?}");
    let wrong = cinema("guest: \"${key}\"", "guest: \"${state.row}\"");
    assert!(
        wrong.iter().any(|finding| finding.ends_with("[SR0178]")),
        "{wrong:?}"
    );
    let unused = cinema(
        "publish: {type: seat.confirmed,",
        "publish: {type: seat.confirmd,",
    );
    assert!(
        unused[0].contains("nothing publishes the fact \"seat.confirmed\"; did you mean \"seat.confirmd\"?"),
        "{unused:?}"
    );
    let (before, _) = loaded(&[("cinema", CINEMA)]);
    let undeclared = CINEMA.lines().filter(|line| !line.starts_with("facts:"));
    let undeclared: Vec<&str> = undeclared.collect();
    let (after, _) = loaded(&[("cinema", &(undeclared.join("\n") + "\n"))]);
    assert_eq!(before[0].hash, after[0].hash, "what a saga does is the same");
}

const ASKS: &str = "start: Order.Placed
events: {quote.given: {from: quotes}}
steps: {ask: {publish: {type: quote.asked}}, given: {needs: [ask], wait: {event: quote.given, timeout: 1h}}}
";
const ANSWERS: &str = "start: quote.asked
events: {quote.asked: {from: orders}}
steps: {give: {publish: {type: quote.given}}}
";

#[test]
fn a_circle_of_handlers_is_told_once_and_a_step_that_waits_is_no_part_of_one() {
    let (_, findings) = loaded(&[("orders", ASKS), ("quotes", ANSWERS)]);
    assert_eq!(findings, [] as [String; 0], "a question and its answer");
    let again = ASKS.replace(
        "steps:",
        "handlers: {quote.given: {emit: {publish: {type: quote.asked}}}}\nsteps:",
    );
    let (_, findings) = loaded(&[("quotes", ANSWERS), ("orders", &again)]);
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert!(
        findings[0].starts_with(
            "orders.yaml:6:24: sagas hear each other in a circle: orders hears quote.given of quotes, quotes hears quote.asked of orders; "
        ),
        "{findings:?}"
    );
    assert!(findings[0].ends_with("[SR0153]"), "{findings:?}");
    let own = "start: A.B\nevents: {c.d: {from: own}}\nhandlers: {c.d: {emit: {publish: {type: c.d}}}}\nsteps: {a: {delay: 1h}}\n";
    let (_, findings) = loaded(&[("own", own)]);
    assert_eq!(findings.len(), 1, "{findings:?}");
    // A fact that is never published closes no circle.
    let (_, findings) = loaded(&[("own", &own.replace("emit: {publish: {type: c.d}}", "set: {}"))]);
    assert!(
        findings.iter().all(|finding| finding.contains("SR0152")),
        "{findings:?}"
    );
}

#[test]
fn a_signal_is_sent_to_a_saga_that_listens_to_it() {
    let sends = |saga: &str, name: &str| {
        let body = format!(
            "start: Guest.Came
handlers: {{Guest.Left: {{emit: [{{signal: {{saga: {saga}, key: \"${{event.data.hall}}\", name: {name}}}}}]}}}}
steps: {{tell: {{signal: {{saga: {saga}, key: h-1, name: {name}, data: {{by: \"${{key}}\"}}}}}}}}
finally: {{failed: {{signal: {{saga: {saga}, key: h-1, name: {name}}}}}}}
"
        );
        loaded(&[("hall", HALL), ("guest", &body)])
    };
    let (sagas, findings) = sends("hall", "close");
    assert_eq!(findings, [] as [String; 0]);
    let guest = sagas
        .iter()
        .find(|saga| saga.name.as_str() == "guest")
        .expect("there");
    let is_signal = |telling: &Telling| matches!(telling, Telling::Signal(signal) if signal.name == "close");
    assert!(matches!(&guest.steps[0].action, Action::Publish(telling) if is_signal(telling)));
    let [failed] = &guest.finally.failed[..] else {
        panic!("one entry")
    };
    assert!(matches!(&failed.emit, Emit::Publish(telling) if is_signal(telling)));
    let (_, unheard) = sends("hall", "clsoe");
    assert_eq!(unheard.len(), 3, "{unheard:?}");
    assert!(
        unheard[0].contains("saga \"hall\" listens to no signal \"clsoe\"; did you mean \"close\"?"),
        "{unheard:?}"
    );
    let (_, unknown) = sends("hal", "close");
    assert!(unknown[0].contains("unknown saga \"hal\""), "{unknown:?}");
}
