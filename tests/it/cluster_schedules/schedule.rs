//! Schedules: what happens to a cluster and to its clients, drawn from a seed.

use std::{fmt, time::Duration};

use fastrand::Rng;
use mq_client::QoS;

/// Publishers, each with two topics of its own and one of retained messages.
pub(super) const PUBLISHERS: usize = 2;
/// Readers of all messages, at QoS 2 and at QoS 1.
pub(super) const READERS: usize = 2;
/// Members of one shared subscription.
pub(super) const MEMBERS: usize = 2;
/// Clients with wills.
pub(super) const MORTALS: usize = 2;

/// The place of each kind of client among all of them.
pub(super) const FIRST_READER: usize = PUBLISHERS;
pub(super) const FIRST_MEMBER: usize = FIRST_READER + READERS;
pub(super) const FIRST_MORTAL: usize = FIRST_MEMBER + MEMBERS;
/// A reader of all messages at a node that nothing happens to, where there is one.
pub(super) const WITNESS: usize = FIRST_MORTAL + MORTALS;
/// Clients whose place a schedule changes.
const ROAMING: usize = WITNESS;

/// A cluster, its clients, and what happens to them.
#[derive(Clone, Debug)]
pub(super) struct Schedule {
    pub(super) seed: u64,
    pub(super) nodes: usize,
    /// `true` if nothing happens to the last node.
    pub(super) is_last_spared: bool,
    pub(super) logs: u16,
    /// `true` if nodes keep no entries in memory for sessions that move.
    pub(super) reads_logs_again: bool,
    pub(super) steps: Vec<(Duration, Step)>,
}

/// Part of the storage that is set back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Part {
    All,
    Logs,
    Values,
    /// The entries since the copy are lost within the logs.
    Entries,
}

/// A thing that happens, behind a pause.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// A publisher publishes to its topic of that number; to that of its retained messages if it is the last one.
    Publish {
        publisher: usize,
        topic: usize,
        qos: QoS,
    },
    /// A client loses its link, if it has one, and connects at that node.
    Go { client: usize, node: usize },
    /// A client disconnects in order, and stays away.
    Leave { client: usize },
    /// A client loses its link, and stays away.
    Vanish { client: usize },
    /// A node ends as by `kill -9`.
    Kill { node: usize },
    /// A node ends in order.
    End { node: usize },
    /// A node begins again, unless it lives.
    Start { node: usize },
    /// A node is cut off from what all share, or that ends.
    Partition { node: usize, is_cut_off: bool },
    /// Calls of the engine take up to so long, and so many of a thousand fail.
    Faults { max_delay_ms: u64, errors: u64 },
    /// A log takes nothing, or takes entries again.
    Stall { log: u16, is_stalled: bool },
    /// A log brings a node nothing, or brings entries again.
    Lag { node: usize, log: u16, lags: bool },
    /// The next entry of a log comes only behind another one.
    DelayEntry { log: u16 },
    /// The storage is that full, in percent; 0 if it has no end.
    Fill { percent: u8 },
    /// The wall clock of a node is wrong by so many seconds.
    ClockSteps { node: usize, seconds: i64 },
    /// A copy of the storage is made.
    Copy,
    /// The storage, or a part of it, is set back to the copy.
    SetBack(Part),
}

impl Schedule {
    /// Draws a schedule.
    pub(super) fn draw(seed: u64) -> Self {
        let mut random = Rng::with_seed(seed);
        let nodes = random.usize(2..=3);
        let mut schedule = Self {
            seed,
            nodes,
            is_last_spared: nodes == 3 && random.bool(),
            logs: random.u16(1..=2),
            reads_logs_again: random.bool(),
            steps: Vec::new(),
        };
        // Some of these still break a rule (docs/guide/cluster.md, "What is not there yet").
        let set_backs = std::env::var_os("MQ_SET_BACKS");
        let is_set_back = random.u8(..4) == 0 && set_backs.is_some();
        let parts = match set_backs {
            Some(parts) if parts == "entries" => [Part::Entries; 4],
            _ => [Part::All, Part::All, Part::Logs, Part::Values],
        };
        let count = random.usize(12..48);
        let copied_at = random.usize(..count);
        let set_back_at = random.usize(copied_at..count);
        for n in 0..count {
            if is_set_back && n == copied_at {
                schedule.push(&mut random, Step::Copy);
            }
            if is_set_back && n == set_back_at {
                let part = Step::SetBack(parts[random.usize(..4)]);
                schedule.push(&mut random, part);
            }
            schedule.draw_step(&mut random);
        }
        schedule
    }

    fn push(&mut self, random: &mut Rng, step: Step) {
        let longest = match random.u8(..20) {
            0 => 6_000,
            1..5 => 1_000,
            5..12 => 100,
            _ => 5,
        };
        let pause = Duration::from_millis(random.u64(..longest));
        self.steps.push((pause, step));
    }

    /// Draws a step, and now and then one that follows from it.
    fn draw_step(&mut self, random: &mut Rng) {
        let harmed = self.nodes - usize::from(self.is_last_spared);
        let node = random.usize(..harmed);
        let any_node = random.usize(..self.nodes);
        let log = random.u16(..self.logs);
        let client = random.usize(..ROAMING);
        let step = match random.u8(..100) {
            0..38 => Step::Publish {
                publisher: random.usize(..PUBLISHERS),
                topic: random.usize(..TOPICS),
                qos: [QoS::AtLeastOnce, QoS::ExactlyOnce][random.usize(..2)],
            },
            38..56 => Step::Go {
                client,
                node: any_node,
            },
            56..60 => Step::Leave { client },
            60..65 => Step::Vanish { client },
            65..70 => {
                // A client with a will dies, and its node soon afterwards.
                let client = FIRST_MORTAL + random.usize(..MORTALS);
                self.push(random, Step::Go { client, node });
                let settle = Duration::from_millis(random.u64(..3_000));
                self.steps.push((settle, Step::Vanish { client }));
                let longest = [20, 1_000, 12_000][random.usize(..3)];
                let pause = Duration::from_millis(random.u64(..longest));
                self.steps.push((pause, Step::Kill { node }));
                return;
            }
            70..74 => Step::Kill { node },
            74..76 => Step::End { node },
            76..83 => Step::Start { node },
            83..87 => Step::Partition {
                node,
                is_cut_off: random.bool(),
            },
            87..91 => Step::Faults {
                max_delay_ms: [0, 2, 20, 200][random.usize(..4)],
                errors: [0, 0, 10, 50][random.usize(..4)],
            },
            91..93 => Step::Stall {
                log,
                is_stalled: random.bool(),
            },
            93..95 => Step::Lag {
                node,
                log,
                lags: random.bool(),
            },
            95 => Step::DelayEntry { log },
            96..98 => Step::Fill {
                percent: [0, 0, 96, 100][random.usize(..4)],
            },
            _ => Step::ClockSteps {
                node,
                seconds: random.i64(-3_600..=3_600),
            },
        };
        self.push(random, step);
    }
}

/// Topics of a publisher; the last one has its retained messages.
pub(super) const TOPICS: usize = 3;

/// Returns a topic of a publisher.
pub(super) fn topic(publisher: usize, topic: usize) -> String {
    if is_retained(topic) {
        format!("t/{publisher}/retained")
    } else {
        format!("t/{publisher}/{topic}")
    }
}

pub(super) fn is_retained(topic: usize) -> bool {
    topic + 1 == TOPICS
}

/// Returns a node's name.
pub(super) fn node_name(node: usize) -> &'static str {
    ["a", "b", "c"][node]
}

/// Returns a client's identifier.
pub(super) fn client_name(client: usize) -> String {
    match client {
        ..FIRST_READER => format!("publisher-{client}"),
        FIRST_READER..FIRST_MEMBER => format!("reader-{}", client - FIRST_READER),
        FIRST_MEMBER..FIRST_MORTAL => format!("member-{}", client - FIRST_MEMBER),
        FIRST_MORTAL..WITNESS => format!("mortal-{}", client - FIRST_MORTAL),
        WITNESS => "witness".to_owned(),
        _ => format!("probe-{}", client - WITNESS - 1),
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "MQ_SEED={}: {} nodes{}, {} logs{}",
            self.seed,
            self.nodes,
            if self.is_last_spared {
                ", the last one spared"
            } else {
                ""
            },
            self.logs,
            if self.reads_logs_again {
                ", entries are not kept in memory"
            } else {
                ""
            },
        )?;
        for (pause, step) in &self.steps {
            writeln!(f, "  +{:>5} ms  {step}", pause.as_millis())?;
        }
        Ok(())
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Publish {
                publisher,
                topic: number,
                qos,
            } => write!(
                f,
                "{} publishes to {} at {qos:?}",
                client_name(publisher),
                topic(publisher, number)
            ),
            Self::Go { client, node } => {
                write!(f, "{} goes to {}", client_name(client), node_name(node))
            }
            Self::Leave { client } => write!(f, "{} disconnects", client_name(client)),
            Self::Vanish { client } => write!(f, "{} vanishes", client_name(client)),
            Self::Kill { node } => write!(f, "{} is killed", node_name(node)),
            Self::End { node } => write!(f, "{} ends in order", node_name(node)),
            Self::Start { node } => write!(f, "{} starts", node_name(node)),
            Self::Partition { node, is_cut_off } => {
                let how = if is_cut_off { "cut off" } else { "connected" };
                write!(f, "{} is {how}", node_name(node))
            }
            Self::Faults {
                max_delay_ms,
                errors,
            } => write!(
                f,
                "calls take up to {max_delay_ms} ms, {errors} in a thousand fail"
            ),
            Self::Stall { log, is_stalled } => {
                let how = if is_stalled { "stalls" } else { "goes on" };
                write!(f, "log {log} {how}")
            }
            Self::Lag { node, log, lags } => {
                let how = if lags { "stays behind" } else { "catches up" };
                write!(f, "{} {how} with log {log}", node_name(node))
            }
            Self::DelayEntry { log } => write!(f, "log {log} holds its next entry back"),
            Self::Fill { percent } => write!(f, "the storage is {percent} % full"),
            Self::ClockSteps { node, seconds } => {
                write!(f, "the clock of {} is {seconds} s ahead", node_name(node))
            }
            Self::Copy => write!(f, "the storage is copied"),
            Self::SetBack(part) => write!(f, "the storage is set back: {part:?}"),
        }
    }
}
