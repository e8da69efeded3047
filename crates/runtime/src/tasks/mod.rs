//! NOTICES. The one way to begin what runs for long: a task or thread that ends by a panic is counted, logged and shown
//! by readiness, and begun again where its caller says that this is safe.
//!
//! A panic is a fault of the program, and a part without the task is worse than no part: it stands while everything looks
//! well. So what cannot be begun again stays a trouble until the process ends, and the part halts:
//!
//! ```text
//! task             after a panic
//! shard            the shard is halted
//! relay            its shard halts: it would fill an outbox that nobody empties
//! reader           the stream is not read; its position stands
//! private_reader   its shard does not get the stream any more
//! http             no requests are answered
//! retention, notices, consumer, cancellations, secrets, consumers, cluster, clock, audit, rates: begun again after a pause
//! command, call, reload, migration, ownership: one piece of work ends, and whoever waits for it learns so
//! ```
//!
//! Tasks that end with a connection or a call, and whose end their callers see, need none of this. What a task tries again and
//! again without success is in [`stuck`].

pub mod stuck;

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use futures::FutureExt as _;
use tokio::task::{JoinError, JoinHandle};

use crate::ports::clock::Clock;
use crate::telemetry::Metrics;

pub use stuck::{Attempts, Stuck};

const PACE: Pace = Pace {
    first: Duration::from_secs(1),
    max: Duration::from_secs(30),
    well_after: Duration::from_secs(10),
};

/// How a task is begun again.
#[derive(Debug, Clone, Copy)]
struct Pace {
    /// Pause before it is begun again; it doubles with each further panic.
    first: Duration,
    max: Duration,
    /// How long it has to run until it counts as well.
    well_after: Duration,
}

/// What a task is there for, as metrics name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// A shard's thread.
    Shard,
    Relay,
    Retention,
    /// The shared reader of a source stream.
    Reader,
    PrivateReader,
    /// Carries the notices of shards to the readers.
    Notices,
    /// Takes commands from one consumer.
    Consumer,
    /// Hears of commands that are cancelled.
    Cancellations,
    /// One command in progress.
    Command,
    /// One call of an effect that the relay makes through the worker of its process.
    Call,
    /// Reads secrets again.
    Secrets,
    /// Looks at what the consumers hold.
    Consumers,
    /// Renews the records by which this process owns its shards.
    Cluster,
    /// Hears the broker's time.
    Clock,
    Reload,
    Migration,
    /// Carries on jobs.
    Jobs,
    /// Opens or closes a shard.
    Ownership,
    /// Writes a backup of a shard.
    Backup,
    /// Keeps ended instances in the archive before they are deleted.
    Archive,
    Http,
    /// Sends spans.
    Spans,
    /// Stores the records of the audit.
    Audit,
    /// Keeps the rates of the last hour.
    Rates,
}

impl Task {
    const ALL: [Self; 24] = [
        Self::Shard,
        Self::Relay,
        Self::Retention,
        Self::Reader,
        Self::PrivateReader,
        Self::Notices,
        Self::Consumer,
        Self::Cancellations,
        Self::Command,
        Self::Call,
        Self::Secrets,
        Self::Consumers,
        Self::Cluster,
        Self::Clock,
        Self::Reload,
        Self::Migration,
        Self::Jobs,
        Self::Ownership,
        Self::Backup,
        Self::Archive,
        Self::Http,
        Self::Spans,
        Self::Audit,
        Self::Rates,
    ];

    /// The label in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Shard => "shard",
            Self::Relay => "relay",
            Self::Retention => "retention",
            Self::Reader => "reader",
            Self::PrivateReader => "private_reader",
            Self::Notices => "notices",
            Self::Consumer => "consumer",
            Self::Cancellations => "cancellations",
            Self::Command => "command",
            Self::Call => "call",
            Self::Secrets => "secrets",
            Self::Consumers => "consumers",
            Self::Cluster => "cluster",
            Self::Clock => "clock",
            Self::Reload => "reload",
            Self::Migration => "migration",
            Self::Jobs => "jobs",
            Self::Ownership => "ownership",
            Self::Backup => "backup",
            Self::Archive => "archive",
            Self::Http => "http",
            Self::Spans => "spans",
            Self::Audit => "audit",
            Self::Rates => "rates",
        }
    }
}

/// The tasks of one process. Clones are the same.
#[derive(Clone)]
pub struct Tasks(Arc<Inner>);

struct Inner {
    metrics: Arc<Metrics>,
    /// What is wrong, by task and what it is of.
    troubles: Mutex<BTreeMap<String, String>>,
    stuck: Stuck,
    threads: Threads,
}

/// Where work runs that holds on to its thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Threads {
    /// On threads of its own.
    Own,
    /// On the one thread that everything shares, so that one order of all steps can be repeated.
    Shared,
}

/// Work that runs on a thread, or as if on one.
#[derive(Debug)]
pub struct Thread(Place);

#[derive(Debug)]
enum Place {
    Own(thread::JoinHandle<()>),
    Shared(JoinHandle<()>),
}

impl Thread {
    /// Waits for its end; whether that was not a panic.
    pub async fn ended(self) -> bool {
        match self.0 {
            Place::Own(thread) => {
                let joined = tokio::task::spawn_blocking(move || thread.join()).await;
                matches!(joined, Ok(Ok(())))
            }
            Place::Shared(task) => task.await.is_ok(),
        }
    }
}

impl fmt::Debug for Tasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tasks").finish_non_exhaustive()
    }
}

impl Tasks {
    #[must_use]
    pub fn new(metrics: &Arc<Metrics>, clock: &Arc<dyn Clock>) -> Self {
        Self::running(Threads::Own, metrics, clock)
    }

    /// Those of a process whose runtime has one thread: whatever would have a thread of its own, or would block one, runs
    /// there, too. Files and stores then stop everything else meanwhile.
    #[must_use]
    pub fn on_one_thread(metrics: &Arc<Metrics>, clock: &Arc<dyn Clock>) -> Self {
        Self::running(Threads::Shared, metrics, clock)
    }

    fn running(threads: Threads, metrics: &Arc<Metrics>, clock: &Arc<dyn Clock>) -> Self {
        for task in Task::ALL {
            metrics.task_panics.with_label_values(&[task.as_str()]);
        }
        Self(Arc::new(Inner {
            metrics: Arc::clone(metrics),
            troubles: Mutex::default(),
            stuck: Stuck::new(Arc::clone(clock)),
            threads,
        }))
    }

    /// Begins a task whose part stands without it: a panic is a trouble until the process ends. Must be called within
    /// a tokio runtime.
    pub fn spawn(
        &self,
        task: Task,
        of: impl Display,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> JoinHandle<()> {
        let (tasks, name) = (self.clone(), named(task, of));
        tokio::spawn(async move {
            if let Err(panic) = AssertUnwindSafe(work).catch_unwind().await {
                let message = tasks.panicked(task, &name, &*panic);
                tasks.trouble(&name, format!("it panicked, restart the process: {message}"));
            }
        })
    }

    /// Begins a task that may begin again whenever it panics. Must be called within a tokio runtime.
    pub fn keep<F>(
        &self,
        task: Task,
        of: impl Display,
        begin: impl FnMut() -> F + Send + 'static,
    ) -> JoinHandle<()>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        tokio::spawn(self.kept(task, of, begin))
    }

    /// The same as a future, for those who spawn it into a set of theirs.
    pub fn kept<F>(
        &self,
        task: Task,
        of: impl Display,
        begin: impl FnMut() -> F + Send + 'static,
    ) -> impl Future<Output = ()> + Send + 'static
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.paced(PACE, task, of, begin)
    }

    fn paced<F>(
        &self,
        pace: Pace,
        task: Task,
        of: impl Display,
        mut begin: impl FnMut() -> F + Send + 'static,
    ) -> impl Future<Output = ()> + Send + 'static
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (tasks, name) = (self.clone(), named(task, of));
        async move {
            let mut pause = pace.first;
            loop {
                let ended = {
                    let mut work = pin!(AssertUnwindSafe(async { begin().await }).catch_unwind());
                    tokio::select! {
                        biased;
                        ended = &mut work => ended,
                        () = tokio::time::sleep(pace.well_after) => {
                            pause = pace.first;
                            tasks.well(&name);
                            work.await
                        }
                    }
                };
                let Err(panic) = ended else {
                    tasks.well(&name);
                    return;
                };
                let message = tasks.panicked(task, &name, &*panic);
                tasks.trouble(&name, format!("it panicked and is begun again: {message}"));
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(pace.max);
            }
        }
    }

    /// Begins one piece of work with an end, and gives what it gives; an error says that it panicked. Must be called
    /// within a tokio runtime.
    pub fn once<T: Send + 'static>(
        &self,
        task: Task,
        work: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<Result<T, String>> {
        let tasks = self.clone();
        tokio::spawn(async move {
            let ended = AssertUnwindSafe(work).catch_unwind().await;
            ended.map_err(|panic| tasks.panicked(task, task.as_str(), &*panic))
        })
    }

    /// Begins work on a thread of its own, where it may hold on to the thread between two waits; `panicked` halts its part,
    /// where it ends by a panic. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// Where the system gives no thread.
    pub fn thread(
        &self,
        task: Task,
        name: String,
        work: impl Future<Output = ()> + Send + 'static,
        panicked: impl FnOnce(String) + Send + 'static,
    ) -> std::io::Result<Thread> {
        let (tasks, named) = (self.clone(), name.clone());
        let work = async move {
            if let Err(panic) = AssertUnwindSafe(work).catch_unwind().await {
                panicked(tasks.panicked(task, &named, &*panic));
            }
        };
        let place = match self.0.threads {
            Threads::Own => {
                let runtime = tokio::runtime::Handle::current();
                let thread = thread::Builder::new().name(name);
                Place::Own(thread.spawn(move || runtime.block_on(work))?)
            }
            Threads::Shared => Place::Shared(tokio::spawn(work)),
        };
        Ok(Thread(place))
    }

    /// Runs what blocks its thread, for as long as that takes.
    ///
    /// # Errors
    /// A sentence, where it panicked or the process ends.
    pub async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, String> {
        match self.0.threads {
            Threads::Own => tokio::task::spawn_blocking(work)
                .await
                .map_err(|error| error.to_string()),
            Threads::Shared => Ok(work()),
        }
    }

    /// Looks at the end of a task in a set, where a panic costs one piece of work.
    pub fn ended(&self, task: Task, ended: Result<(), JoinError>) {
        if let Err(error) = ended
            && let Ok(panic) = error.try_into_panic()
        {
            self.panicked(task, task.as_str(), &*panic);
        }
    }

    /// Counts a panic and tells it; its message.
    pub fn panicked(&self, task: Task, name: &str, panic: &(dyn Any + Send)) -> String {
        let message = text(panic);
        tracing::error!(task = task.as_str(), name, message, "a task panicked");
        let panics = &self.0.metrics.task_panics;
        panics.with_label_values(&[task.as_str()]).inc();
        message
    }

    /// What these tasks try again and again.
    #[must_use]
    pub fn stuck(&self) -> &Stuck {
        &self.0.stuck
    }

    /// What is wrong now, one line for each task.
    #[must_use]
    pub fn troubles(&self) -> Vec<String> {
        let troubles = self.troubled();
        let lines = troubles
            .iter()
            .map(|(name, trouble)| format!("{name}: {trouble}"));
        lines.collect()
    }

    /// Its part was ended and is begun again, so what was wrong with it is not trouble any more.
    pub fn forget(&self, task: Task, of: impl Display) {
        self.well(&named(task, of));
    }

    fn trouble(&self, name: &str, trouble: String) {
        self.troubled().insert(name.to_owned(), trouble);
    }

    fn well(&self, name: &str) {
        self.troubled().remove(name);
    }

    fn troubled(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.0.troubles.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn named(task: Task, of: impl Display) -> String {
    format!("{} {of}", task.as_str()).trim_end().to_owned()
}

/// The message of a panic, as far as it has one.
fn text(panic: &(dyn Any + Send)) -> String {
    let literal = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    literal
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".to_owned())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::Notify;

    use super::*;
    use crate::kernel::ids::TimeMs;

    struct Still;

    impl Clock for Still {
        fn now(&self) -> TimeMs {
            TimeMs(0)
        }

        fn monotonic(&self) -> Duration {
            Duration::ZERO
        }
    }

    fn tasks() -> (Tasks, Arc<Metrics>) {
        let metrics = Arc::new(Metrics::new());
        (
            Tasks::new(&metrics, &(Arc::new(Still) as Arc<dyn Clock>)),
            metrics,
        )
    }

    fn panics(metrics: &Metrics, task: Task) -> u64 {
        metrics.task_panics.with_label_values(&[task.as_str()]).get()
    }

    #[tokio::test]
    async fn a_task_that_panics_is_counted_and_stays_a_trouble() {
        let (tasks, metrics) = tasks();
        let task = tasks.spawn(Task::Relay, "of shard 3", async { panic!("row {}", 7) });
        task.await.expect("the panic goes no further");
        assert_eq!(panics(&metrics, Task::Relay), 1);
        let troubles = tasks.troubles();
        assert_eq!(
            troubles,
            ["relay of shard 3: it panicked, restart the process: row 7"]
        );
        let text = metrics.render();
        assert!(
            text.contains("saga_runner_task_panics_total{task=\"relay\"} 1"),
            "{text}"
        );
    }

    #[tokio::test]
    async fn a_restartable_task_restarts_after_a_pause_and_is_healthy_once_it_runs() {
        let (tasks, metrics) = tasks();
        let ms = Duration::from_millis;
        let pace = Pace {
            first: ms(1),
            max: ms(5),
            well_after: ms(10),
        };
        let (begun, end) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
        let (seen, told) = (Arc::clone(&begun), Arc::clone(&end));
        let kept = tokio::spawn(tasks.paced(pace, Task::Retention, "", move || {
            let (number, told) = (seen.fetch_add(1, Ordering::SeqCst), Arc::clone(&told));
            async move {
                assert!(number >= 5, "not yet");
                told.notified().await;
            }
        }));
        let trouble = "retention: it panicked and is begun again: not yet";
        while tasks.troubles() != [trouble] {
            tokio::task::yield_now().await;
        }
        while !tasks.troubles().is_empty() {
            tokio::time::sleep(ms(1)).await;
        }
        assert_eq!(panics(&metrics, Task::Retention), 5);
        end.notify_one();
        kept.await.expect("it ends");
        assert_eq!(begun.load(Ordering::SeqCst), 6, "an end is an end");
    }

    #[tokio::test]
    async fn a_panic_of_awaited_work_is_reported_to_its_caller() {
        let (tasks, metrics) = tasks();
        let value = tasks.once(Task::Reload, async { 7 }).await;
        assert_eq!(value.expect("no panic"), Ok(7));
        let failed: Result<(), String> = tasks
            .once(Task::Reload, async { panic!("no file") })
            .await
            .expect("caught");
        assert_eq!(failed, Err("no file".to_owned()));
        assert_eq!(panics(&metrics, Task::Reload), 1);
        assert_eq!(tasks.troubles(), Vec::<String>::new());
    }

    #[tokio::test]
    async fn a_thread_that_panics_halts_its_part() {
        for on_one_thread in [false, true] {
            let metrics = Arc::new(Metrics::new());
            let clock = Arc::new(Still) as Arc<dyn Clock>;
            let tasks = if on_one_thread {
                Tasks::on_one_thread(&metrics, &clock)
            } else {
                Tasks::new(&metrics, &clock)
            };
            let (told, heard) = std::sync::mpsc::channel();
            let thread = tasks.thread(
                Task::Shard,
                "shard-0003".to_owned(),
                async { panic!("broken") },
                move |message| told.send(message).expect("heard"),
            );
            assert!(
                thread.expect("a thread").ended().await,
                "the panic goes no further"
            );
            assert_eq!(heard.recv().as_deref(), Ok("broken"));
            assert_eq!(panics(&metrics, Task::Shard), 1);
        }
    }

    #[tokio::test]
    async fn blocking_work_runs_beside_the_runtime_or_on_its_only_thread() {
        let (clock, metrics) = (Arc::new(Still) as Arc<dyn Clock>, Arc::new(Metrics::new()));
        let here = thread::current().id();
        let thread_of = async |tasks: Tasks| tasks.blocking(|| thread::current().id()).await;
        assert_ne!(thread_of(Tasks::new(&metrics, &clock)).await, Ok(here));
        assert_eq!(thread_of(Tasks::on_one_thread(&metrics, &clock)).await, Ok(here));
    }
}
