use super::*;

fn berlin() -> Zone {
    Zone::named("Europe/Berlin").expect("bundled")
}

fn time(text: &str) -> TimeMs {
    TimeMs(text.parse::<Timestamp>().expect("RFC 3339").as_millisecond())
}

/// The instants behind `from`, without date of the year and seconds.
fn instants(cron: &str, zone: &Zone, from: &str, count: usize) -> Vec<String> {
    let cron = Cron::parse(cron).expect("an expression");
    let mut at = time(from);
    let mut found = Vec::new();
    for _ in 0..count {
        at = cron.next(zone, at).expect("another one");
        found.push(at.to_string()[5..16].replace('T', " "));
    }
    found
}

#[test]
fn fields_are_minute_hour_day_month_and_weekday() {
    let utc = Zone::utc();
    let from = "2026-01-31T10:00:00Z";
    let cases: &[(&str, &[&str])] = &[
        ("0 6 * * *", &["02-01 06:00", "02-02 06:00"]),
        ("*/20 9-10 * * *", &["01-31 10:20", "01-31 10:40", "02-01 09:00"]),
        ("5,35 23 31 * *", &["01-31 23:05", "01-31 23:35", "03-31 23:05"]),
        ("0 0 1 */3 *", &["04-01 00:00", "07-01 00:00", "10-01 00:00"]),
        ("30 8 * JAN-mar MON-FRI", &["02-02 08:30", "02-03 08:30"]),
        ("0 12 * * 0", &["02-01 12:00", "02-08 12:00"]),
        ("0 12 * * 7", &["02-01 12:00", "02-08 12:00"]),
        ("0 12 * * 5-7", &["01-31 12:00", "02-01 12:00", "02-06 12:00"]),
        // Either kind of day.
        ("0 0 13 * FRI", &["02-06 00:00", "02-13 00:00", "02-20 00:00"]),
        // A day of the week that is also one of the month's.
        ("0 0 */2 * MON", &["02-09 00:00", "02-23 00:00"]),
        ("0 0 29 2 *", &["02-29 00:00"]),
        ("10-50/20 0 1 1 *", &["01-01 00:10", "01-01 00:30", "01-01 00:50"]),
    ];
    for (cron, expected) in cases {
        assert_eq!(&instants(cron, &utc, from, expected.len()), expected, "{cron}");
    }
}

#[test]
fn a_time_that_does_not_exist_runs_once_when_the_clock_is_set_forward() {
    let from = "2026-03-28T12:00:00Z";
    let cases: &[(&str, &[&str])] = &[
        ("30 2 * * *", &["03-29 01:00", "03-30 00:30"]),
        // Several of them are one run.
        ("0,30 2 * * *", &["03-29 01:00", "03-30 00:00", "03-30 00:30"]),
        // It is the same run as one that is planned for that moment.
        ("0 2,3 * * *", &["03-29 01:00", "03-30 00:00", "03-30 01:00"]),
        ("30 2,3 * * *", &["03-29 01:00", "03-29 01:30", "03-30 00:30"]),
        (
            "0 */2 * * *",
            &[
                "03-28 13:00",
                "03-28 15:00",
                "03-28 17:00",
                "03-28 19:00",
                "03-28 21:00",
                "03-28 23:00",
                "03-29 01:00",
                "03-29 02:00",
            ],
        ),
    ];
    for (cron, expected) in cases {
        assert_eq!(
            &instants(cron, &berlin(), from, expected.len()),
            expected,
            "{cron}"
        );
    }
}

#[test]
fn a_time_that_happens_twice_runs_once() {
    let from = "2026-10-24T22:00:00Z";
    let cases: &[(&str, &[&str])] = &[
        ("30 2 * * *", &["10-25 00:30", "10-26 01:30"]),
        ("*/30 2 * * *", &["10-25 00:00", "10-25 00:30", "10-26 01:00"]),
        (
            "0 1-4 * * *",
            &[
                "10-24 23:00",
                "10-25 00:00",
                "10-25 02:00",
                "10-25 03:00",
                "10-26 00:00",
            ],
        ),
    ];
    for (cron, expected) in cases {
        assert_eq!(
            &instants(cron, &berlin(), from, expected.len()),
            expected,
            "{cron}"
        );
    }
    // Also for those who ask between the two.
    let between = "2026-10-25T01:10:00Z";
    assert_eq!(instants("30 2 * * *", &berlin(), between, 1), ["10-26 01:30"]);
}

#[test]
fn intervals_go_on_through_the_changes() {
    let spring = instants("*/15 * * * *", &berlin(), "2026-03-29T00:30:00Z", 4);
    assert_eq!(
        spring,
        ["03-29 00:45", "03-29 01:00", "03-29 01:15", "03-29 01:30"]
    );
    let autumn = instants("*/30 * * * *", &berlin(), "2026-10-24T23:30:00Z", 6);
    assert_eq!(
        autumn,
        [
            "10-25 00:00",
            "10-25 00:30",
            "10-25 01:00",
            "10-25 01:30",
            "10-25 02:00",
            "10-25 02:30"
        ]
    );
    let hourly = instants("0 0-23 * * *", &berlin(), "2026-10-24T23:30:00Z", 3);
    assert_eq!(hourly, ["10-25 00:00", "10-25 01:00", "10-25 02:00"]);
    let of_day = instants("45 * 26 10 *", &berlin(), "2026-10-25T00:00:00Z", 2);
    assert_eq!(of_day, ["10-25 23:45", "10-26 00:45"]);
}

#[test]
fn zones_with_odd_changes_have_their_times() {
    // Half an hour forward at 02:00.
    let lord_howe = Zone::named("Australia/Lord_Howe").expect("bundled");
    let found = instants("15 2 * * *", &lord_howe, "2026-10-03T00:00:00Z", 2);
    assert_eq!(found, ["10-03 15:30", "10-04 15:15"]);
    // A day that was left out.
    let apia = Zone::named("Pacific/Apia").expect("bundled");
    let found = instants("0 12 * * *", &apia, "2011-12-29T12:00:00Z", 3);
    assert_eq!(found, ["12-29 22:00", "12-30 10:00", "12-30 22:00"]);
    // Midnight does not exist.
    let beirut = Zone::named("Asia/Beirut").expect("bundled");
    let found = instants("0 * 29 3 *", &beirut, "2026-03-28T12:00:00Z", 2);
    assert_eq!(found, ["03-28 22:00", "03-28 23:00"]);
}

#[test]
fn a_mistake_in_a_cron_expression_is_reported_with_its_place() {
    let cases = [
        (
            "0 6 * *",
            0..7,
            "a cron expression has five fields (minute, hour, day of the month, month, day of the week), this one has 4",
        ),
        (
            "* * * * * *",
            0..11,
            "a cron expression has five fields (minute, hour, day of the month, month, day of the week), this one has 6",
        ),
        (
            "@daily",
            0..6,
            "a cron expression has five fields (minute, hour, day of the month, month, day of the week), this one has 1",
        ),
        (
            "0 24 * * *",
            2..4,
            "hour: \"24\" is not allowed; allowed are 0 to 23",
        ),
        (
            "1,,2 * * * *",
            0..4,
            "minute: \"\" is not allowed; allowed are 0 to 59",
        ),
        (
            "0 6 L * *",
            4..5,
            "day of the month: \"L\" is not allowed; allowed are 1 to 31",
        ),
        (
            "0 6 * * MON,FRY",
            12..15,
            "day of the week: \"FRY\" is not allowed; allowed are 0 to 7, or SUN to SAT",
        ),
        ("20-10 * * * *", 0..5, "minute: the range 20-10 goes backwards"),
        (
            "0/15 * * * *",
            0..4,
            "minute: \"0/15\": a step follows * or a range, such as */5 or 10-20/5",
        ),
        (
            "*/0 * * * *",
            0..3,
            "minute: \"0\" is not a step, allowed are 1 to 59",
        ),
        (
            "0 0 30 2 *",
            0..10,
            "no day fits: the months that are named do not have such a day",
        ),
        (
            "+1 * * * *",
            0..2,
            "minute: \"+1\" is not allowed; allowed are 0 to 59",
        ),
    ];
    for (text, at, message) in cases {
        let error = Cron::parse(text).expect_err(text);
        assert_eq!((error.at, error.message.as_str()), (at, message), "{text}");
    }
}

#[test]
fn a_zone_has_the_name_of_the_database() {
    assert_eq!(berlin().name(), "Europe/Berlin");
    assert_eq!(
        berlin().shown(time("2026-07-01T04:00:00Z")),
        "2026-07-01T06:00:00+02:00"
    );
    let near = |name: &str| Zone::named(name).expect_err(name);
    assert_eq!(near("Europe/Berln").as_deref(), Some("Europe/Berlin"));
    assert_eq!(near("europe/berlin").as_deref(), Some("Europe/Berlin"));
    assert_eq!(near("nowhere at all"), None);
}

proptest::proptest! {
    /// The next instant is behind the one before, shows what the expression says, and nothing lies between.
    #[test]
    fn instants_are_those_that_the_clock_shows(
        minute in 0_u32..60, hour in 0_u32..24, every in 1_u32..30, from in 1_700_000_000_000_i64..1_900_000_000_000,
    ) {
        let zone = Zone::named("America/New_York").expect("bundled");
        for text in [format!("{minute} {hour} * * *"), format!("*/{every} * * * *"), format!("{minute} * * * 1-5")] {
            let cron = Cron::parse(&text).expect("an expression");
            let next = cron.next(&zone, TimeMs(from)).expect("there is one");
            proptest::prop_assert!(next.0 > from);
            let same = cron.next(&zone, TimeMs(next.0 - 1));
            proptest::prop_assert_eq!(same, Some(next), "{}", text);
            let middle = TimeMs(i64::midpoint(from, next.0 - 1));
            proptest::prop_assert_eq!(cron.next(&zone, middle), Some(next), "{}", text);
        }
    }
}
