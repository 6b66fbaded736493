//! Runs the cases side by side, on every transport, and prints the results.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use mq_broker::{Settings, auth::Access};
use mq_codec::QoS;
use mq_testkit::{SCHEMES, Scheme, TestBroker};
use mq_transport::{ConnectOptions, Connector, Trust};
use tokio::{
    sync::Semaphore,
    task::{Id, JoinSet},
};

use crate::{
    case::{BrokerKind, Case, LIMITED_KEEP_ALIVE},
    guard::Guard,
    lab::{Lab, Target},
    options::Options,
    packet::Version,
    streams,
};

/// Cases at once: most of their time is waiting.
const AT_ONCE: usize = 32;

/// The time limit of a case, which no case comes near.
const LONGEST: Duration = Duration::from_secs(90);

/// Run of a case.
#[derive(Clone, Debug)]
struct Job {
    case: Case,
    version: Version,
    target: Arc<Target>,
}

/// The names of cases, each once.
pub(crate) struct Outcome {
    pub(crate) run: BTreeSet<&'static str>,
    /// On any transport and in any version.
    pub(crate) failed: BTreeSet<&'static str>,
}

/// Runs the chosen cases and prints the results.
pub(crate) fn run(options: &Options, cases: &[Case]) -> Outcome {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    runtime.unwrap().block_on(run_all(options, cases))
}

async fn run_all(options: &Options, cases: &[Case]) -> Outcome {
    let seed = options.seed.unwrap_or_else(|| fastrand::u32(..1 << 20));
    println!("seed {seed} (--seed sets another)");
    let began = Instant::now();
    let brokers = Brokers::start(options, seed).await;
    let wanted = |case: &&Case| {
        let filters = &options.filters;
        filters.is_empty() || filters.iter().any(|part| case.name.contains(part))
    };
    let mut jobs = Vec::new();
    let mut left_out = Vec::new();
    for case in cases.iter().filter(wanted) {
        for target in brokers.targets(case.broker) {
            if let Some(why) = streams::why_not(case).filter(|_| target.on_streams) {
                left_out.push((case.name, target.name(), why));
                continue;
            }
            for version in case.versions {
                jobs.push(Job {
                    case: *case,
                    version: *version,
                    target: Arc::clone(target),
                });
            }
        }
    }
    let results = run_jobs(jobs).await;
    brokers.shutdown().await;
    let mut outcome = report(&results, began.elapsed());
    if !left_out.is_empty() {
        println!("{} cases not run, by other rules:", left_out.len());
    }
    for (case, target, why) in left_out {
        println!("  {case} over {target}: {why}");
    }
    // What is left is not of a case: this process runs the broker as well.
    for said in take_panics() {
        println!("FAILED the broker panicked: {said}");
        outcome.failed.insert("the broker");
    }
    outcome
}

/// The brokers under test, each with an address or several.
struct Brokers {
    own: Vec<TestBroker>,
    any: Vec<Arc<Target>>,
    limited: Vec<Arc<Target>>,
    guarded: Vec<Arc<Target>>,
}

impl Brokers {
    async fn start(options: &Options, seed: u32) -> Self {
        let target = |address, connector, on_streams, own| {
            Arc::new(Target {
                address,
                connector,
                on_streams,
                own,
                seed,
            })
        };
        if let Some(address) = &options.broker {
            let trust = match &options.ca {
                Some(file) => Trust::CaFile(file.clone()),
                None => Trust::Insecure,
            };
            let options = ConnectOptions {
                trust,
                ..ConnectOptions::default()
            };
            let connector = Connector::new(options).unwrap();
            return Self {
                own: Vec::new(),
                any: vec![target(address.clone(), connector, false, false)],
                limited: Vec::new(),
                guarded: Vec::new(),
            };
        }
        let usual = TestBroker::start_with(no_waits).await;
        let limited = TestBroker::start_with(limits).await;
        let guarded = TestBroker::start_with(guard).await;
        let targets = |broker: &TestBroker| {
            let each = SCHEMES.iter().map(|scheme| (*scheme, false));
            each.chain([(Scheme::Quic, true)])
                .map(|(scheme, on_streams)| {
                    let connector = broker.connector(false);
                    target(broker.address(scheme), connector, on_streams, true)
                })
                .collect()
        };
        Self {
            any: targets(&usual),
            limited: targets(&limited),
            guarded: targets(&guarded),
            own: vec![usual, limited, guarded],
        }
    }

    fn targets(&self, kind: BrokerKind) -> &[Arc<Target>] {
        match kind {
            BrokerKind::Any => &self.any,
            BrokerKind::Limited => &self.limited,
            BrokerKind::Guarded => &self.guarded,
        }
    }

    async fn shutdown(self) {
        for broker in self.own {
            broker.shutdown().await;
        }
    }
}

/// Lifts the limit of protocol errors, since many cases break the protocol, from one address.
fn no_waits(settings: &mut Settings) {
    settings.quotas.protocol_errors_per_minute = None;
}

fn guard(settings: &mut Settings) {
    no_waits(settings);
    settings.access = Access::custom(Arc::new(Guard));
    // Many cases fail on purpose, from one address.
    settings.failures_per_minute = None;
}

fn limits(settings: &mut Settings) {
    no_waits(settings);
    settings.protocol.maximum_qos = QoS::AtLeastOnce;
    settings.protocol.retain_available = false;
    settings.protocol.max_keep_alive = Some(LIMITED_KEEP_ALIVE);
}

/// The place and message of each failure, by the task of the case.
static PANICS: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());

/// Keeps the message of a panicking task, in place of printing it among all others.
fn keep_panics() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let Some(task) = tokio::task::try_id() else {
            return usual(panic);
        };
        let said = panic.payload_as_str().unwrap_or("it panicked");
        let place = panic.location().map(|at| {
            let file = at.file().rsplit('/').next().unwrap_or_default();
            format!(" ({file}:{})", at.line())
        });
        let said = format!("{said}{}", place.unwrap_or_default());
        let mut panics = PANICS.lock().unwrap_or_else(PoisonError::into_inner);
        panics.insert(task.to_string(), said);
    }));
}

fn take_panics() -> Vec<String> {
    let mut panics = PANICS.lock().unwrap_or_else(PoisonError::into_inner);
    core::mem::take(&mut *panics).into_values().collect()
}

/// Runs the jobs, and returns the outcome of each; `Err` has the reason of a failure.
async fn run_jobs(jobs: Vec<Job>) -> Vec<(Job, Result<(), String>)> {
    keep_panics();
    let places = Arc::new(Semaphore::new(AT_ONCE));
    let mut running = JoinSet::new();
    let mut by_task: HashMap<Id, Job> = HashMap::new();
    for job in jobs {
        let lab = Lab::new(Arc::clone(&job.target), job.version);
        let (places, run) = (Arc::clone(&places), job.case.run);
        let task = running.spawn(async move {
            let _place = places.acquire_owned().await;
            tokio::time::timeout(LONGEST, run(lab)).await
        });
        by_task.insert(task.id(), job);
    }
    let mut results = Vec::new();
    while let Some(ended) = running.join_next_with_id().await {
        let (id, result) = match ended {
            Ok((id, Ok(()))) => (id, Ok(())),
            Ok((id, Err(_))) => (id, Err(format!("it took longer than {LONGEST:?}"))),
            Err(error) => {
                let mut panics = PANICS.lock().unwrap_or_else(PoisonError::into_inner);
                let said = panics.remove(&error.id().to_string());
                (error.id(), Err(said.unwrap_or_else(|| error.to_string())))
            }
        };
        results.push((by_task.remove(&id).unwrap(), result));
    }
    results
}

/// Prints failures and a table.
fn report(results: &[(Job, Result<(), String>)], took: Duration) -> Outcome {
    let mut failed = BTreeSet::new();
    // A transport's name and, in the order of the versions, how many runs passed and failed.
    let mut table: BTreeMap<String, [(usize, usize); 3]> = BTreeMap::new();
    for (job, result) in results {
        let target = job.target.name();
        let row = table.entry(target.clone()).or_default();
        let count = &mut row[job.version as usize];
        match result {
            Ok(()) => count.0 += 1,
            Err(why) => {
                count.1 += 1;
                failed.insert(job.case.name);
                let version = job.version.name();
                println!("FAILED {} over {target}, {version}: {why}", job.case.name);
            }
        }
    }
    println!("\n{:<10} {:>12} {:>12} {:>12}", "", "3.1", "3.1.1", "5.0");
    for (target, counts) in table {
        let cells = counts.map(|(passed, failed)| {
            let cell = match failed {
                0 => format!("{passed} ok"),
                _ => format!("{passed} ok {failed} bad"),
            };
            format!("{cell:>12}")
        });
        println!("{target:<10} {}", cells.join(" "));
    }
    let passed = results.iter().filter(|(_, result)| result.is_ok()).count();
    println!(
        "\n{passed} of {} runs passed in {:.1} s",
        results.len(),
        took.as_secs_f64()
    );
    Outcome {
        run: results.iter().map(|(job, _)| job.case.name).collect(),
        failed,
    }
}
