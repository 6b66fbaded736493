//! The run of a schedule: the nodes, the clients, and what is done to them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use mq_broker::cluster::{ClusterSettings, Faults, MemoryCopy, MemoryWorld, WallClock};
use mq_client::QoS;
use mq_codec::{TopicName, Will, WillProperties};
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use super::{
    check,
    client::{Order, Publication, ScheduledClient},
    history::{self, Event, History},
    schedule::{
        FIRST_MEMBER, FIRST_MORTAL, FIRST_READER, PUBLISHERS, Part, Schedule, Step, TOPICS,
        WITNESS, client_name, is_retained, node_name, topic,
    },
};
use crate::cluster_node::Node;

/// Time within which nodes that nothing happens to any longer have done all that is due.
const ALL_IS_WELL: Duration = Duration::from_mins(3);

/// Time in which nothing more may come that was there already.
const NOTHING_COMES_TWICE: Duration = Duration::from_secs(15);

/// Time within which a node that is well lets a client in and acknowledges a message.
const READY_WITHIN: Duration = Duration::from_secs(20);

/// Time that a node may take to begin.
const START_TIMEOUT: Duration = Duration::from_secs(40);

/// Counts the runs of this process.
static RUNS: AtomicU64 = AtomicU64::new(0);

/// The outcome of a run.
pub(super) struct Outcome {
    /// All that happened, in order.
    pub(super) events: Vec<(Duration, Event)>,
    /// The rules that were broken.
    pub(super) problems: Vec<String>,
}

/// Runs a schedule in virtual time.
pub(super) fn run(schedule: &Schedule) -> Outcome {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_time().start_paused(true);
    #[cfg(tokio_unstable)]
    builder.rng_seed(tokio::runtime::RngSeed::from_bytes(
        &schedule.seed.to_le_bytes(),
    ));
    builder.build().unwrap().block_on(Run::go(schedule))
}

struct Run<'a> {
    schedule: &'a Schedule,
    world: Arc<MemoryWorld>,
    nodes: Vec<Node>,
    /// Starts of each node since the copy, and those that have to follow the next one. Lives whose numbers the values
    /// do not know any longer come again.
    starts_since_copy: Vec<usize>,
    more_starts: Vec<usize>,
    history: Arc<History>,
    clients: Vec<mpsc::UnboundedSender<Order>>,
    tasks: JoinSet<()>,
    clocks_ahead_s: Vec<Arc<AtomicI64>>,
    copy: Option<MemoryCopy>,
    published: usize,
}

impl<'a> Run<'a> {
    async fn go(schedule: &'a Schedule) -> Outcome {
        let world = MemoryWorld::new(schedule.logs, schedule.seed);
        world.set_time(SystemTime::UNIX_EPOCH + Duration::from_hours(500_000));
        let mut run = Self {
            schedule,
            world,
            nodes: Vec::new(),
            starts_since_copy: vec![0; schedule.nodes],
            more_starts: vec![0; schedule.nodes],
            history: Arc::new(History::new()),
            clients: Vec::new(),
            tasks: JoinSet::new(),
            clocks_ahead_s: Vec::new(),
            copy: None,
            published: 0,
        };
        run.begin().await;
        for (pause, step) in &schedule.steps {
            sleep(*pause).await;
            run.history.note(Event::Step(step.to_string()));
            run.step(*step).await;
        }
        run.mend().await;
        let mut problems = run.settle().await;
        problems.extend(run.probe().await);
        // In order, so that no run disturbs the next one.
        run.clients.clear();
        while run.tasks.join_next().await.is_some() {}
        let events = core::mem::take(&mut *run.history.events());
        Outcome { events, problems }
    }

    /// Starts nodes and clients, which are all subscribed then.
    async fn begin(&mut self) {
        // Runs of one seed may go on beside each other.
        let cluster = format!("schedule-{}", RUNS.fetch_add(1, Ordering::Relaxed));
        for n in 0..self.schedule.nodes {
            let ahead_s = Arc::new(AtomicI64::default());
            self.clocks_ahead_s.push(Arc::clone(&ahead_s));
            let world = Arc::clone(&self.world);
            let reads_logs_again = self.schedule.reads_logs_again;
            let change = move |cluster: &mut ClusterSettings| {
                let (world, ahead_s) = (Arc::clone(&world), Arc::clone(&ahead_s));
                cluster.wall_clock = WallClock::new(move || {
                    let ahead_s = ahead_s.load(Ordering::Relaxed);
                    let ahead = Duration::from_secs(ahead_s.unsigned_abs());
                    if ahead_s < 0 {
                        world.time() - ahead
                    } else {
                        world.time() + ahead
                    }
                });
                if reads_logs_again {
                    cluster.recent_bytes = 0;
                }
            };
            let node = Node::start_with(&cluster, node_name(n), &self.world, change);
            self.nodes.push(node.await);
        }
        let witness = usize::from(self.schedule.is_last_spared);
        for client in 0..WITNESS + witness {
            self.add_client(client);
            let node = if client == WITNESS {
                self.nodes.len() - 1
            } else {
                client % self.nodes.len()
            };
            self.order(client, Order::Go(node));
        }
        for _ in 0..100 {
            sleep(Duration::from_millis(100)).await;
            if check::all_subscribed(&self.history.events(), FIRST_READER..FIRST_MORTAL) {
                return;
            }
        }
        panic!("{}: the clients have not subscribed", self.schedule);
    }

    fn add_client(&mut self, client: usize) {
        let filters = match client {
            ..FIRST_READER | FIRST_MORTAL..WITNESS => vec![],
            FIRST_MEMBER..FIRST_MORTAL => vec![("$share/g/t/#", QoS::ExactlyOnce)],
            _ => {
                let qos = if client == FIRST_READER + 1 {
                    QoS::AtLeastOnce
                } else {
                    QoS::ExactlyOnce
                };
                vec![("t/#", qos), ("will/#", qos)]
            }
        };
        let is_mortal = (FIRST_MORTAL..WITNESS).contains(&client);
        let nodes = self.nodes.iter().map(|node| node.url().parse().unwrap());
        let client = ScheduledClient {
            client,
            nodes: nodes.collect(),
            history: Arc::clone(&self.history),
            filters,
            will: is_mortal.then_some(will),
            ends_with_connection: client == FIRST_MORTAL || client > WITNESS,
        };
        let (orders, ordered) = mpsc::unbounded_channel();
        self.clients.push(orders);
        self.tasks.spawn(client.run(ordered));
    }

    fn order(&self, client: usize, order: Order) {
        self.clients[client].send(order).unwrap();
    }

    fn publish(&mut self, publisher: usize, number_of_topic: usize, qos: QoS) {
        let number = self.published;
        self.published += 1;
        self.history.note(Event::Published {
            number,
            publisher,
            topic: number_of_topic,
            qos,
        });
        let publication = Publication {
            number,
            topic: topic(publisher, number_of_topic),
            qos,
            retain: is_retained(number_of_topic),
        };
        self.order(publisher, Order::Publish(publication));
    }

    async fn step(&mut self, step: Step) {
        match step {
            Step::Publish {
                publisher,
                topic,
                qos,
            } => self.publish(publisher, topic, qos),
            Step::Go { client, node } => self.order(client, Order::Go(node)),
            Step::Leave { client } => self.order(client, Order::Leave),
            Step::Vanish { client } => self.order(client, Order::Vanish),
            Step::Kill { node } => self.nodes[node].kill(),
            Step::End { node } => self.nodes[node].end().await,
            Step::Start { node } => self.start(node).await,
            Step::Partition { node, is_cut_off } => {
                self.world.set_partitioned(node_name(node), is_cut_off);
            }
            Step::Faults {
                max_delay_ms,
                errors,
            } => self.world.set_faults(Faults {
                max_delay: Duration::from_millis(max_delay_ms),
                errors_per_thousand: errors,
            }),
            Step::Stall { log, is_stalled } => self.world.set_log_stalled(log, is_stalled),
            Step::Lag { node, log, lags } => self.world.set_lagging(node_name(node), log, lags),
            Step::DelayEntry { log } => self.world.delay_next_entry(log),
            Step::Fill { percent } => {
                self.world
                    .set_fill_percent((percent > 0).then_some(percent));
            }
            Step::ClockSteps { node, seconds } => {
                self.clocks_ahead_s[node].store(seconds, Ordering::Relaxed);
            }
            Step::Copy => {
                self.copy = Some(self.world.copy());
                self.starts_since_copy.fill(0);
            }
            Step::SetBack(part) => self.set_back(part),
        }
    }

    /// Starts a node, unless it lives.
    async fn start(&mut self, node: usize) {
        let mut more = core::mem::take(&mut self.more_starts[node]);
        while let Some(has_begun) = self.nodes[node]
            .revive_within(&self.world, START_TIMEOUT)
            .await
        {
            self.starts_since_copy[node] += 1;
            self.history.note(Event::NodeBegan { node, has_begun });
            if more == 0 {
                return;
            }
            more -= 1;
            self.nodes[node].kill();
        }
    }

    fn set_back(&mut self, part: Part) {
        let Some(copy) = &self.copy else { return };
        match part {
            Part::All => self.world.set_back(copy),
            Part::Logs => self.world.set_logs_back(copy),
            Part::Values => self.world.set_values_back(copy),
            Part::Entries => self.world.lose_entries_since(copy),
        }
        if matches!(part, Part::All | Part::Values) {
            self.more_starts.clone_from(&self.starts_since_copy);
        }
    }

    /// Ends all that disturbs the cluster, and brings all clients that are not to stay away to a node.
    async fn mend(&mut self) {
        self.history
            .note(Event::Step(history::ALL_IS_WELL.to_owned()));
        self.world.set_faults(Faults::default());
        self.world.set_fill_percent(None);
        for log in 0..self.schedule.logs {
            self.world.set_log_stalled(log, false);
        }
        for n in 0..self.nodes.len() {
            self.world.set_partitioned(node_name(n), false);
            for log in 0..self.schedule.logs {
                self.world.set_lagging(node_name(n), log, false);
            }
        }
        // A node may learn late that its life has ended.
        for _ in 0..10 {
            for node in 0..self.nodes.len() {
                self.start(node).await;
            }
            sleep(Duration::from_secs(1)).await;
        }
        for client in 0..FIRST_MORTAL {
            self.order(client, Order::Go(client % self.nodes.len()));
        }
        for publisher in 0..PUBLISHERS {
            for topic in 0..TOPICS {
                let qos = [QoS::AtLeastOnce, QoS::ExactlyOnce][topic % 2];
                self.publish(publisher, topic, qos);
            }
        }
    }

    /// Waits until all has come that has to, and returns what is wrong then.
    async fn settle(&mut self) -> Vec<String> {
        let until = Instant::now() + ALL_IS_WELL;
        while Instant::now() < until {
            sleep(Duration::from_secs(1)).await;
            if check::missing(self.schedule, &self.history.events()).is_empty() {
                break;
            }
            for node in 0..self.nodes.len() {
                self.start(node).await;
            }
        }
        sleep(NOTHING_COMES_TWICE).await;
        check::problems(self.schedule, &self.history.events())
    }

    /// Has a new client connect to each node, and returns what is wrong with nodes and with what is retained.
    async fn probe(&mut self) -> Vec<String> {
        let first = self.clients.len();
        // One place for each client, the witness as well.
        let first = if first == WITNESS {
            self.clients.push(mpsc::unbounded_channel().0);
            first + 1
        } else {
            first
        };
        for n in 0..self.nodes.len() {
            self.add_client(first + n);
            self.order(first + n, Order::Go(n));
        }
        let nodes = self.nodes.len();
        let ready = async {
            while !check::all_subscribed(&self.history.events(), first..first + nodes) {
                sleep(Duration::from_millis(100)).await;
            }
        };
        let mut problems = Vec::new();
        if timeout(READY_WITHIN, ready).await.is_err() {
            problems.push("a node lets no client in although all is well".to_owned());
        }
        sleep(Duration::from_secs(1)).await;
        let probes = first..first + nodes;
        problems.extend(check::retained(
            self.schedule,
            &self.history.events(),
            probes,
        ));
        problems
    }
}

/// Returns the will of a client's connection, as its number decides.
fn will(client: usize, connection: usize) -> Will {
    let delay_s = check::will_delay(client, connection).as_secs();
    let properties = WillProperties {
        will_delay_interval: u32::try_from(delay_s).ok().filter(|delay_s| *delay_s > 0),
        ..WillProperties::default()
    };
    let name = client_name(client);
    Will {
        topic: TopicName::new(format!("will/{name}")).unwrap(),
        payload: connection.to_string().into(),
        qos: check::will_qos(connection),
        retain: false,
        properties,
    }
}
