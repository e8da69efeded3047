//! The checks, one after the other against one worker.

use std::time::Duration;

use bytes::Bytes;

use super::super::StartError;
use super::stage::{Sent, Stage};
use super::{Check, Spec, Status};
use crate::kernel::envelope::ResultType;

/// Commands of one check.
const COMMANDS: usize = 8;
const FOREIGN_TENANT: &str = "somebody-else";
/// What requests of a killed worker may still take, until the broker has seen its connection go.
const REQUESTS_END: Duration = Duration::from_secs(1);
const WITHOUT_WORKER: &str = "needs the worker's command line (--worker)";

type Outcome = Result<String, String>;

/// The consumer first: without it there is no worker to check.
pub async fn all(spec: Spec) -> Result<Vec<Check>, StartError> {
    let mut stage = Stage::open(spec).await?;
    let mut checks = Vec::new();
    let mut note = |check: &'static str, outcome: Outcome| {
        let (status, explanation) = match outcome {
            Ok(explanation) => (Status::Passed, explanation),
            Err(explanation) => (Status::Failed, explanation),
        };
        let passed = status == Status::Passed;
        checks.push(Check {
            check,
            status,
            explanation,
        });
        passed
    };
    if !note("consumer", consumer(&stage).await) {
        return Ok(checks);
    }
    note("one result per command", answered(&mut stage).await);
    note("repeated command", repeated(&mut stage).await);
    note("answered before", answered_before(&mut stage).await);
    note("expired command", expired(&mut stage).await);
    note("unreadable command", unreadable(&mut stage).await);
    if stage.process.is_some() {
        note("result at the gate", gate(&mut stage).await);
        note("killed", killed(&mut stage).await);
        note("told to end", told_to_end(&mut stage).await);
    }
    note("results stand alone", alone(&stage).await);
    note("all acknowledged", idle(&stage).await);
    if stage.process.is_none() {
        for check in ["result at the gate", "killed", "told to end"] {
            let explanation = WITHOUT_WORKER.to_owned();
            checks.push(Check {
                check,
                status: Status::LeftOut,
                explanation,
            });
        }
    }
    if let Some(process) = &mut stage.process {
        process.kill().await;
    }
    Ok(checks)
}

async fn consumer(stage: &Stage) -> Outcome {
    let durable = &stage.durable;
    let what = format!("no worker has created the consumer {durable}");
    let found = stage
        .until(stage.spec.timeout, &what, async || stage.consumer().await)
        .await?;
    let mut faults = Vec::new();
    if found.filters != [stage.filter()] {
        faults.push(format!(
            "filters {:?}, expected {:?}",
            found.filters,
            stage.filter()
        ));
    }
    if found.ack_policy != "explicit" {
        faults.push(format!("ack_policy {}, expected explicit", found.ack_policy));
    }
    if found.deliver_policy != "all" {
        faults.push(format!("deliver_policy {}, expected all", found.deliver_policy));
    }
    if found.max_deliver > 0 {
        faults.push(format!("max_deliver {}, expected -1", found.max_deliver));
    }
    if faults.is_empty() {
        Ok(format!("{durable}, ack_wait {} ms", found.ack_wait.as_millis()))
    } else {
        Err(format!("{durable} has {}", faults.join("; ")))
    }
}

/// All results of these commands, with a word about what they say.
async fn results(stage: &Stage, sent: &[Sent], patience: Duration) -> Outcome {
    let mut counts = [0; 3];
    for command in sent {
        let result_type = stage.result(command, patience).await?;
        counts[result_type as usize] += 1;
    }
    let [succeeded, failed, timed_out] = counts;
    Ok(format!(
        "{succeeded} Succeeded, {failed} Failed, {timed_out} TimedOut"
    ))
}

async fn answered(stage: &mut Stage) -> Outcome {
    let sent = stage.send_many(COMMANDS).await?;
    results(stage, &sent, stage.spec.timeout).await
}

async fn repeated(stage: &mut Stage) -> Outcome {
    let command = stage.command(None);
    stage.send(&command).await?;
    let first = stage.result(&command, stage.spec.timeout).await?;
    stage.send(&command).await?;
    stage.idle(stage.spec.timeout).await?;
    once(stage, &command).await?;
    Ok(format!(
        "published again after {first:?}, acknowledged, one result"
    ))
}

async fn once(stage: &Stage, command: &Sent) -> Result<(), String> {
    let subject = stage.result_subject(command.id);
    match stage.results().await?.get(&subject) {
        Some(1) => Ok(()),
        found => Err(format!(
            "{} results on {subject}, expected 1",
            found.unwrap_or(&0)
        )),
    }
}

async fn answered_before(stage: &mut Stage) -> Outcome {
    let command = stage.command(None);
    stage.answer(&command).await?;
    stage.send(&command).await?;
    stage.idle(stage.spec.timeout).await?;
    once(stage, &command).await?;
    Ok("the result of another worker stands, the command is acknowledged".to_owned())
}

async fn expired(stage: &mut Stage) -> Outcome {
    let command = stage.command(Some(-1_000));
    stage.send(&command).await?;
    match stage.result(&command, stage.spec.timeout).await? {
        ResultType::TimedOut => Ok("TimedOut".to_owned()),
        other => Err(format!(
            "{other:?}, expected TimedOut: it was executed after its deadline"
        )),
    }
}

/// No syntax, no envelope, another tenant's, and a subject that names no command.
async fn unreadable(stage: &mut Stage) -> Outcome {
    let bad = [Bytes::from_static(b"{\"tenant_id\":"), Bytes::from_static(b"{}")];
    let mut unreadable = Vec::new();
    for body in bad {
        let command = Sent {
            body,
            ..stage.command(None)
        };
        stage.send(&command).await?;
        unreadable.push(command.id);
    }
    let foreign = stage.command(None);
    let text = String::from_utf8_lossy(&foreign.body);
    let own = format!("\"tenant_id\":\"{}\"", stage.spec.tenant);
    let claimed = text.replace(&own, &format!("\"tenant_id\":\"{FOREIGN_TENANT}\""));
    stage
        .send_raw(stage.command_subject(foreign.id), claimed.into())
        .await?;
    unreadable.push(foreign.id);
    let nameless = stage
        .filter()
        .replace("tenant.*.", &prefix(stage))
        .replace('>', "no-command-id");
    stage.send_raw(nameless, foreign.body.clone()).await?;
    let after = stage.command(None);
    stage.send(&after).await?;
    stage
        .result(&after, stage.spec.timeout)
        .await
        .map_err(|reason| format!("a command after unreadable ones is not answered: {reason}"))?;
    stage
        .idle(stage.spec.timeout)
        .await
        .map_err(|reason| format!("an unreadable command stays: {reason}"))?;
    let results = stage.results().await?;
    let known = |id| results.contains_key(&stage.result_subject(id));
    let failed = unreadable.into_iter().filter(|id| known(*id)).count();
    if let Some(subject) = results.keys().find(|subject| subject.contains(FOREIGN_TENANT)) {
        return Err(format!(
            "a result for a tenant that the subject does not name: {subject}"
        ));
    }
    if failed < 3 {
        return Err(format!(
            "{failed} of 3 have a result: their sagas would wait for their deadline"
        ));
    }
    Ok("dropped with a result each; the worker goes on".to_owned())
}

fn prefix(stage: &Stage) -> String {
    match stage.spec.tenant.as_str() {
        "" => String::new(),
        tenant => format!("tenant.{tenant}."),
    }
}

/// A command comes a second time, and its result stands by then.
async fn gate(stage: &mut Stage) -> Outcome {
    kill(stage).await;
    let consumer = stage.consumer().await?.ok_or("the consumer is gone")?;
    // What the worker had asked for when it was killed may still be on its way to it.
    stage.idle(patience(stage).await?).await?;
    tokio::time::sleep(REQUESTS_END).await;
    let command = stage.command(None);
    stage.send(&command).await?;
    stage.deliver_once(&consumer, stage.spec.timeout).await?;
    stage.answer(&command).await?;
    launch(stage)?;
    stage.idle(patience(stage).await?).await?;
    once(stage, &command).await?;
    Ok(format!(
        "delivered a second time and acknowledged, one result; {} must not have been executed",
        command.id
    ))
}

async fn killed(stage: &mut Stage) -> Outcome {
    let sent = stage.send_many(COMMANDS).await?;
    stage.result(&sent[0], stage.spec.timeout).await?;
    let more = stage.send_many(COMMANDS).await?;
    kill(stage).await;
    launch(stage)?;
    let patience = patience(stage).await?;
    let said = results(stage, &sent, patience).await?;
    let said_more = results(stage, &more, patience).await?;
    stage.idle(patience).await?;
    Ok(format!(
        "killed with commands in hand, started again: {said}; {said_more}"
    ))
}

async fn told_to_end(stage: &mut Stage) -> Outcome {
    let sent = stage.send_many(COMMANDS).await?;
    stage.result(&sent[0], stage.spec.timeout).await?;
    let timeout = stage.spec.timeout;
    let process = stage.process.as_mut().ok_or(WITHOUT_WORKER)?;
    let ended = process.end(timeout).await;
    launch(stage)?;
    let status = ended?;
    if !status.success() {
        return Err(format!("after SIGTERM the worker ended with {status}"));
    }
    let patience = patience(stage).await?;
    results(stage, &sent, patience).await?;
    Ok("ended by itself after SIGTERM; nothing is lost".to_owned())
}

async fn alone(stage: &Stage) -> Outcome {
    let results = stage.results().await?;
    let many: Vec<_> = results.iter().filter(|(_, count)| **count != 1).collect();
    if many.is_empty() {
        Ok(format!("{} subjects with one result each", results.len()))
    } else {
        Err(format!("subjects with more than one result: {many:?}"))
    }
}

async fn idle(stage: &Stage) -> Outcome {
    stage.idle(patience(stage).await?).await?;
    Ok("nothing is pending".to_owned())
}

/// Long enough for commands of a killed worker to come again.
async fn patience(stage: &Stage) -> Result<Duration, String> {
    let consumer = stage.consumer().await?.ok_or("the consumer is gone")?;
    Ok(stage.spec.timeout.max(consumer.ack_wait * 3))
}

async fn kill(stage: &mut Stage) {
    if let Some(process) = &mut stage.process {
        process.kill().await;
    }
}

fn launch(stage: &mut Stage) -> Result<(), String> {
    match &mut stage.process {
        Some(process) => process.launch().map_err(|error| error.to_string()),
        None => Ok(()),
    }
}
