//! Records the one result of a command, and a late outcome behind one that says that it is unknown.

use super::Executor;
use crate::ports::broker::{Expect, Publication};
use crate::worker::result::{self, Addressee, Answer, Recorded, Refusals, Stands};

impl Executor {
    /// Waits until a result of the command stands. As long as the broker takes none, the command stays in progress: given back, it
    /// would be called again.
    pub(super) async fn record(&self, to: &Addressee<'_>, answer: Answer, calls: u32) {
        let counter = self.series.of_answer(&answer);
        let happened = answer.may_have_happened();
        let late = self.late(to, &answer, calls);
        let refusals = Refusals {
            stuck: self.tasks.stuck(),
            kept: &self.series.results_kept,
            pause_max: self.settings.result_retry_max.duration(),
        };
        let instead = |reason: &str| self.publication(to, Answer::refused(happened, reason), calls);
        // Boxed: there may be tens of thousands of these tasks.
        let publication = self.publication(to, answer, calls);
        match Box::pin(result::record_or(&*self.broker, refusals, publication, instead)).await {
            Stands::Result => counter.inc(),
            Stands::Instead if happened => self.series.timed_out.inc(),
            Stands::Instead => self.series.failed.inc(),
            Stands::Other if Box::pin(self.record_late(late)).await => counter.inc(),
            Stands::Other => self.series.known.inc(),
        }
    }

    /// Records an answer behind one that says that the outcome is unknown. Refused or not, that one stands.
    async fn record_late(&self, late: Option<Box<Publication>>) -> bool {
        let Some(late) = late else { return false };
        result::completes(&*self.broker, &late).await
            && result::record(&*self.broker, self.tasks.stuck(), *late).await == Recorded::Stored
    }

    /// The same answer as a second message, for the case that an earlier message says that the
    /// outcome is unknown: what has happened has to be undone, or counts; and an operator may have been asked, whom a failure tells as much.
    fn late(&self, to: &Addressee<'_>, answer: &Answer, calls: u32) -> Option<Box<Publication>> {
        let is_told = match answer {
            Answer::Succeeded { .. } => true,
            Answer::Failed { .. } => self.definition.schemas.asks,
            Answer::TimedOut { .. } => false,
        };
        is_told.then(|| {
            Box::new(Publication {
                expect: Expect::MessageId(format!("late/{}/{}", to.tenant, to.command)),
                ..self.publication(to, answer.clone(), calls)
            })
        })
    }

    fn publication(&self, to: &Addressee<'_>, answer: Answer, calls: u32) -> Publication {
        result::publication(&self.streams.events, to, answer, calls, self.clock.now())
    }
}
