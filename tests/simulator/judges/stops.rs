//! A process that is told to stop waits for the calls that are under way.

use crate::plan::Action;
use crate::run::Simulation;
use crate::upstream::Call;
use crate::workload::Verb;

pub fn judge(simulation: &Simulation) -> Vec<String> {
    let calls = simulation.upstream.calls();
    let mut faults = Vec::new();
    for (process, told) in &simulation.stopped {
        let under_way = calls.iter().filter(|call| {
            let is_over = call.has_ended || call.given_up.is_some_and(|at| at < *told);
            call.process == *process && call.began <= *told && !is_over
        });
        for call in under_way.filter(|call| !is_taken_back(simulation, call)) {
            faults.push(format!(
                "{} of {} was under way when process {process} was told to stop, and was cut off",
                call.effect, call.of
            ));
        }
    }
    faults
}

/// Somebody has taken back what the call is for: then nobody waits for its end.
fn is_taken_back(simulation: &Simulation, call: &Call) -> bool {
    let (tenant, key) = call.of.split_once('/').expect("a tenant and a key");
    // A part has the key of its order, and the number of a round.
    let is_meant = |of: &str| key == of || key.rsplit_once('-').is_some_and(|(order, _)| order == of);
    let mut actions = simulation.plan.actions.iter();
    actions.any(|(_, action)| match action {
        Action::Event(event) => {
            event.name == "Pay.Withdrawn" && event.tenant == tenant && is_meant(&event.key)
        }
        Action::Ask(request) => {
            matches!(request.verb, Verb::Cancel(_)) && request.tenant == tenant && is_meant(&request.key)
        }
        _ => false,
    })
}
