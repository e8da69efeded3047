//! Waiting on the command line: for the outcome of a request (`--wait`), and for an instance (`instance wait`).

use std::time::Duration;

use clap::Args;
use serde_json::{Map, Value};

use super::NameArguments;
use crate::app::exit::{self, Failure};
use crate::app::{SystemClock, out};
use crate::cli::client::{Client, escaped};
use crate::cli::output::Column;
use crate::kernel::duration::Millis;
use crate::ports::clock::Clock as _;

/// Longest wait that one request asks for; a runner may grant less.
const WAIT_ONCE: Duration = Duration::from_secs(30);
/// Pause before a runner that did not answer is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(500);

/// Of every request to an instance.
#[derive(Debug, Args)]
pub struct WaitArguments {
    /// Wait for the outcome, at most this long, e.g. 5s, 2m; without a value 30s. Exit code 6: it is still pending then.
    #[arg(long, value_name = "DURATION", num_args = 0..=1, default_missing_value = "30s", value_parser = duration)]
    wait: Option<Duration>,
    /// Id of this request: a repetition with the same id and the same body changes nothing and gets the same answer.
    #[arg(long, value_name = "ID")]
    request_id: Option<String>,
}

/// Reads `30s`, `5m`.
pub fn duration(text: &str) -> Result<Duration, String> {
    Millis::parse(text)
        .map(Millis::duration)
        .map_err(|error| error.to_string())
}

impl WaitArguments {
    /// Sends a request and waits for its outcome, if that is asked for.
    pub fn post(
        &self,
        client: &Client,
        path: &str,
        mut body: Map<String, Value>,
        wait_for: Option<&str>,
    ) -> Result<Value, Failure> {
        self.name(&mut body);
        let body = Value::Object(body);
        let Some(wait) = self.wait else {
            return client.post_json(path, &body);
        };
        let more = wait_for.map_or_else(String::new, |end| format!("&wait_for={end}"));
        let path = format!("{path}?wait={}ms{more}", wait.as_millis());
        client.post_patiently(&path, &body, wait)
    }

    /// The same of a request to delete what is at the path.
    pub fn delete(
        &self,
        client: &Client,
        path: &str,
        mut body: Map<String, Value>,
    ) -> Result<Value, Failure> {
        self.name(&mut body);
        let wait = self.wait.unwrap_or_default();
        let query = self.wait.map(|wait| format!("?wait={}ms", wait.as_millis()));
        let path = format!("{path}{}", query.unwrap_or_default());
        client.delete_json(&path, &Value::Object(body), wait)
    }

    fn name(&self, body: &mut Map<String, Value>) {
        if let Some(id) = &self.request_id {
            body.insert("request_id".to_owned(), id.as_str().into());
        }
    }
}

/// What an outcome means for the exit code. What was not applied is a conflict already.
pub fn judged(outcome: &Value) -> Result<(), Failure> {
    if outcome["state"] != "pending" {
        return Ok(());
    }
    let text = |key: &str| outcome[key].as_str().unwrap_or_default();
    let message = format!(
        "the request is stored and still pending, {}: {}",
        text("reason"),
        text("message")
    );
    Err(Failure::new(exit::NOT_IN_TIME, message))
}

#[derive(Debug, Args)]
pub struct InstanceWaitArguments {
    /// What to wait for: end, phase=PHASE, step=STEP (done), or step=STEP:STATUS.
    #[arg(long = "for", value_name = "WHAT", default_value = "end")]
    awaited: String,
    /// How long to wait, e.g. 30s, 5m.
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration)]
    timeout: Duration,
    #[command(flatten)]
    name: NameArguments,
}

const REACHED: &[Column] = &[
    Column::value("Reached", "/reached"),
    Column::value("Ended", "/ended"),
    Column::value("Phase", "/instance/phase").judged(super::judged),
    Column::value("Failure", "/instance/failure"),
    Column::number("Generation", "/instance/generation"),
    Column::time("Updated", "/instance/updated"),
];

/// Waits until an instance has got somewhere; also over a restart of the runner.
pub fn wait(arguments: &InstanceWaitArguments) -> Result<(), Failure> {
    let client = Client::new(&arguments.name.common.server)?;
    let path = format!(
        "{}/wait?for={}",
        arguments.name.path(&client)?,
        escaped(&arguments.awaited)
    );
    let clock = SystemClock::new();
    let until = clock.monotonic() + arguments.timeout;
    let mut generation = String::new();
    let mut seen = Value::Null;
    loop {
        let left = until.saturating_sub(clock.monotonic());
        let once = left.min(WAIT_ONCE);
        let asked = format!("{path}&wait={}ms{generation}", once.as_millis());
        match client.get_patiently(&asked, once) {
            Ok(answer) => {
                if answer["reached"] == true || answer["ended"] == true {
                    return told(arguments, &answer);
                }
                // What begins behind its end is another instance.
                generation = format!("&generation={}", answer["instance"]["generation"]);
                seen = answer;
            }
            Err(failure) if failure.code == exit::UNAVAILABLE && !left.is_zero() => {
                out::note(format_args!("{failure}; asking again"));
                std::thread::sleep(ASK_AGAIN.min(left));
            }
            Err(failure) => {
                arguments.name.explain(&client, &failure);
                return Err(failure);
            }
        }
        if until <= clock.monotonic() {
            if seen.is_null() {
                return Err(Failure::new(exit::UNAVAILABLE, "no runner has answered in time"));
            }
            return told(arguments, &seen);
        }
    }
}

fn told(arguments: &InstanceWaitArguments, answer: &Value) -> Result<(), Failure> {
    arguments.name.common.output.object(REACHED, answer)?;
    let phase = answer["instance"]["phase"].as_str().unwrap_or_default();
    let awaited = &arguments.awaited;
    match (answer["reached"] == true, answer["ended"] == true) {
        (true, _) => Ok(()),
        (false, true) => {
            let message = format!("the instance has ended as {phase}, without {awaited}");
            Err(Failure::new(exit::ENDED_OTHERWISE, message))
        }
        (false, false) => {
            let message = format!("{awaited} was not reached in time; the instance is {phase}");
            Err(Failure::new(exit::NOT_IN_TIME, message))
        }
    }
}
