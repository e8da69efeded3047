//! Which seeds run: some in every test, as many as `make simulate` says, and those that have found something.

#![allow(clippy::disallowed_methods, reason = "it tells how long it took")]

use std::path::Path;
use std::time::{Duration, Instant};

use super::plan::Plan;
use super::run::{Verdict, carry_out, play, record, simulate};
use super::situations::Situation;
use super::{judges, ledger, shorten};

/// Seeds whose simulations run twice: one in so many.
const TWICE_EVERY: u64 = 50;

/// Lines of a trace that are shown of a seed that fails.
const SHOWN: usize = 80;

/// Seeds that fail on one processor, after which no further ones run.
const FAILED_MAX: u64 = 3;

/// A number from the environment.
fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name}={text} is not a number")),
    )
}

fn told(verdict: &Verdict) -> String {
    let seed = verdict.seed;
    let faults = verdict.faults.join("\n  ");
    format!(
        "seed {seed} does not hold:\n  {faults}\nreplay: make simulate SEED={seed}\nshorten: make simulate SEED={seed} SHORTEN=1\n"
    )
}

/// Runs a seed that fails once more, and stores its trace; its last lines.
fn traced(failed: &Verdict) -> String {
    let again = record(failed.seed);
    if (again.hash, &again.faults) != (failed.hash, &failed.faults) {
        return "it did not fail in the same way again\n".to_owned();
    }
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("simulator");
    let file = dir.join(format!("seed-{}.trace", failed.seed));
    let lines = again.trace.join("\n") + "\n";
    let stored = std::fs::create_dir_all(&dir).and_then(|()| std::fs::write(&file, lines));
    let place = match stored {
        Ok(()) => file.display().to_string(),
        Err(error) => format!("nowhere: {error}"),
    };
    let from = again.trace.len().saturating_sub(SHOWN);
    let shown = again.trace[from..].join("\n");
    format!("the end of its trace, which is in {place}:\n{shown}\n")
}

/// A seed that does not hold.
struct Failed {
    what: String,
    trace: String,
}

/// Runs one seed, twice where that is its turn.
fn run(seed: u64) -> Result<Verdict, Failed> {
    let verdict = simulate(seed, false);
    if !verdict.faults.is_empty() {
        return Err(Failed {
            what: told(&verdict),
            trace: traced(&verdict),
        });
    }
    if seed.is_multiple_of(TWICE_EVERY) {
        let again = simulate(seed, false);
        if again.hash != verdict.hash {
            return Err(Failed {
                what: format!("seed {seed} did not run in the same way twice"),
                trace: String::new(),
            });
        }
    }
    Ok(verdict)
}

/// `SEED=n` replays one seed and prints its trace, with `KEEP=places` only these of its actions; with `SHORTEN=1` it is
/// told which of them are needed. `SEEDS=n FROM=n` runs a range on all processors, for at most `MINUTES` and until a few
/// have failed (`FAILURES=n` on one processor), and notes that with `LEDGER=1`.
#[test]
fn promises_hold_under_faults() {
    match number("SEED") {
        Some(seed) if std::env::var_os("SHORTEN").is_some() => return show_shortest(seed),
        Some(seed) => return replay(seed),
        None => {}
    }
    let (from, count) = (number("FROM").unwrap_or(1), number("SEEDS").unwrap_or(40));
    let limit = number("MINUTES").map(|minutes| Duration::from_secs(minutes * 60));
    let failed_max = number("FAILURES").unwrap_or(FAILED_MAX);
    let workers = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let begun = Instant::now();
    let next = std::sync::atomic::AtomicU64::new(from);
    let outcomes: Vec<(u64, u64, Vec<Failed>)> = std::thread::scope(|scope| {
        let work = || {
            let (mut seeds, mut steps, mut failed) = (0, 0, Vec::new());
            loop {
                let seed = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                let is_over = limit.is_some_and(|limit| begun.elapsed() > limit);
                if seed >= from + count || is_over || failed.len() as u64 >= failed_max {
                    return (seeds, steps, failed);
                }
                match run(seed) {
                    Ok(verdict) => steps += verdict.steps,
                    Err(one) => failed.push(one),
                }
                seeds += 1;
            }
        };
        let running: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        running
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .collect()
    });
    let (seeds, steps) = outcomes
        .iter()
        .fold((0, 0), |(seeds, steps), one| (seeds + one.0, steps + one.1));
    let took = begun.elapsed();
    println!(
        "{seeds} seeds from {from}, {steps} steps in {:.1} s: {} ms for each on {workers} processors",
        took.as_secs_f64(),
        took.as_millis() / u128::from(seeds.max(1))
    );
    if seeds < count {
        println!("ONLY {seeds} OF {count} SEEDS HAVE RUN");
    }
    let failed: Vec<Failed> = outcomes.into_iter().flat_map(|one| one.2).collect();
    for Failed { what, trace } in &failed {
        println!("{what}{trace}");
    }
    let failed: Vec<String> = failed.into_iter().map(|one| one.what).collect();
    if std::env::var_os("LEDGER").is_some() {
        ledger::append(from, seeds, &failed);
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// Seeds with an archive are few of a range: so many of them run, from `FROM` on. `ARCHIVED=n` runs more.
#[test]
fn an_instance_that_is_deleted_under_faults_is_in_the_archive_as_it_ended() {
    if std::env::var_os("SEED").is_some() {
        return;
    }
    let from = number("FROM").unwrap_or(1);
    let count = number("ARCHIVED").unwrap_or(10);
    let seeds = (from..).filter(|seed| Situation::of(*seed) == Some(Situation::Archived));
    let (mut deleted, mut failed) = (0, Vec::new());
    for seed in seeds.take(usize::try_from(count).expect("few")) {
        let (simulation, mut faults) = play(Plan::of(seed), false);
        if faults.is_empty() {
            faults = judges::judge(&simulation);
        }
        deleted += simulation.world.all_deleted().len();
        failed.extend(faults.into_iter().map(|fault| format!("seed {seed}: {fault}")));
    }
    println!("{count} seeds, {deleted} instances deleted");
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(deleted > 0, "nothing was deleted");
}

fn replay(seed: u64) {
    // What the runner logs stands between the lines of the trace.
    if let Some(level) = std::env::var("LOG")
        .ok()
        .and_then(|level| level.parse::<tracing::Level>().ok())
    {
        tracing_subscriber::fmt()
            .with_max_level(level)
            .without_time()
            .with_ansi(false)
            .init();
    }
    let verdict = match std::env::var("KEEP") {
        Ok(places) => carry_out(shorten::with(seed, &shorten::places(&places)), true),
        Err(_) => simulate(seed, true),
    };
    println!(
        "seed {seed}: {} lives, {:?}, hash {:016x}",
        verdict.lives, verdict.virtual_time, verdict.hash
    );
    assert!(verdict.faults.is_empty(), "{}", told(&verdict));
}

fn show_shortest(seed: u64) {
    match shorten::shorten(seed) {
        None => println!("seed {seed} holds"),
        Some((kept, verdict)) => {
            println!("{}", shorten::told(seed, &kept));
            panic!("{}", told(&verdict));
        }
    }
}
