//! `mq watch`: what comes, as a tree of topics in the terminal.
//!
//! ```text
//! Subscription -> follow_messages -+                       +-> draw -> Screen, ten times a second
//! EventStream  -> follow_link -----+-> Mutex<State> -------+
//! keys -> Key ---------------------+
//! ```
//!
//! Messages are taken in on a thread of their own, so that neither a flood of them nor a terminal that takes nothing
//! (Ctrl-S, a stalled SSH) holds up the other side. The lock is held for one batch or one drawing into memory, never
//! while the terminal is written.

mod draw;
mod rate;
mod state;
mod terminal;
mod text;
mod topics;

use std::{
    future::poll_fn,
    io::IsTerminal as _,
    num::NonZeroUsize,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{anyhow, bail};
use crossterm::event::{
    Event as TerminalEvent, EventStream, KeyCode, KeyEvent, KeyEventKind, KeyModifiers,
};
use futures_core::Stream as _;
use mq_client::{
    Address, Client, Event, Incoming, QoS, SubscribeOptions, Subscription, SubscriptionOptions,
};
use tokio::{
    task::JoinSet,
    time::{MissedTickBehavior, interval, timeout},
};

use self::{
    state::{Key, Link, State},
    terminal::Screen,
    topics::Message,
};
use crate::client::{
    Outcome,
    args::{BrokerArgs, qos},
    connect,
};

/// Options of `watch`.
#[derive(clap::Args, Clone, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    /// Topic filter; may be given several times; else that of the URL, else #
    #[arg(short = 't', long, value_name = "FILTER")]
    topic: Vec<String>,
    /// QoS
    #[arg(short = 'q', long, default_value = "0", value_parser = qos)]
    qos: QoS,
    /// Topics that are kept; messages of further ones are counted
    #[arg(long, value_name = "COUNT", default_value = "10000")]
    topics: NonZeroUsize,
    #[command(flatten)]
    pub(crate) broker: BrokerArgs,
}

/// Shortest time between two frames, however many messages come.
const FRAME: Duration = Duration::from_millis(100);

/// Time between two frames while no message comes, so that rates and ages go on.
const IDLE_FRAME: Duration = Duration::from_secs(1);

/// Time between two readings of the round-trip time.
const READ_LINK: Duration = Duration::from_secs(2);

/// Messages that are taken in under one lock: some ten microseconds.
const BATCH: usize = 256;

/// Time that a terminal which takes no output has after a signal.
#[cfg(unix)]
const GIVE_UP: Duration = Duration::from_secs(2);

/// Runs the command, on a runtime of its own: the terminal has this thread, the network another.
pub(crate) fn run(args: &Args) -> anyhow::Result<Outcome> {
    if !std::io::stdout().is_terminal() {
        bail!("watch draws on a terminal, and the standard output is none: mq sub prints");
    }
    if args.broker.debug && std::io::stderr().is_terminal() {
        bail!("-d would write over the view: send it to a file, with 2>FILE");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let outcome = runtime.block_on(watch(args));
    runtime.shutdown_background();
    outcome
}

/// State that the tasks of the command share, behind a lock, with the beginning from which its times count.
struct Shared {
    state: Mutex<State>,
    begin: Instant,
}

impl Shared {
    /// Locks the state, also after a panic of another thread: it ends the program soon, and until then the state is
    /// good enough to draw.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        self.begin.elapsed()
    }
}

async fn watch(args: &Args) -> anyhow::Result<Outcome> {
    let plan = connect::plan(&args.broker)?;
    let filters: Vec<_> = args.topic.iter().cloned().chain(plan.topic).collect();
    let subscribe = subscribe_options(&filters, args.qos)?;
    // What cannot be had is one line, and no screen.
    let client = plan.client.build().await?;
    let events = client.events();
    let messages = client.subscribe_with(subscribe).await?;
    let shared = Arc::new(Shared {
        state: Mutex::new(State::new(args.topics.get(), up(&client, None))),
        begin: Instant::now(),
    });
    let mut work = JoinSet::new();
    work.spawn(follow_messages(client.clone(), messages, shared.clone()));
    work.spawn(follow_link(client.clone(), events, shared.clone()));
    let (stop, stopped) = tokio::sync::oneshot::channel();
    #[cfg(unix)]
    work.spawn(end_by_signal(stop)?);
    #[cfg(not(unix))]
    let _kept = stop;
    let mut screen = Screen::open().map_err(|error| anyhow!("the terminal: {error}"))?;
    let outcome = show(&mut screen, &shared, &mut work, stopped).await;
    drop(screen);
    drop(work);
    // The view is over, whatever becomes of the last packet.
    let _ = timeout(Duration::from_secs(2), client.disconnect()).await;
    outcome
}

fn subscribe_options(filters: &[String], qos: QoS) -> anyhow::Result<SubscribeOptions> {
    let everything = ["#".to_owned()];
    let filters = if filters.is_empty() {
        &everything
    } else {
        filters
    };
    // So that a message which the broker keeps from now on has its mark.
    let options = SubscriptionOptions {
        retain_as_published: true,
        ..SubscriptionOptions::from(qos)
    };
    let mut subscribe = SubscribeOptions::to(filters[0].as_str(), options)?;
    for filter in &filters[1..] {
        subscribe = subscribe.and_to(filter.as_str(), options)?;
    }
    Ok(subscribe)
}

/// Draws, and does what keys ask for, until the end.
async fn show(
    screen: &mut Screen,
    shared: &Shared,
    work: &mut JoinSet<anyhow::Result<Outcome>>,
    mut stopped: tokio::sync::oneshot::Receiver<u8>,
) -> anyhow::Result<Outcome> {
    let mut keys = EventStream::new();
    let mut frames = interval(FRAME);
    frames.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut drawn, mut messages) = (None::<Instant>, 0);
    let mut is_new = true;
    loop {
        tokio::select! {
            // Keys and signals before frames, so that a slow terminal still ends.
            biased;
            signal = &mut stopped => return Ok(signal.map_or(Outcome::Done, Outcome::Signalled)),
            ended = work.join_next() => match ended {
                Some(Ok(Ok(_))) => {}
                Some(Ok(Err(error))) => return Err(error),
                Some(Err(error)) => match error.try_into_panic() {
                    Ok(panic) => std::panic::resume_unwind(panic),
                    Err(error) => return Err(error.into()),
                },
                None => bail!("nothing is left to show"),
            },
            event = poll_fn(|cx| Pin::new(&mut keys).poll_next(cx)) => {
                let Some(event) = event else {
                    return Ok(Outcome::Done);
                };
                if let Some(key) = meaning(&event?)
                    && !shared.lock().press(key, shared.now())
                {
                    return Ok(Outcome::Done);
                }
                is_new = true;
            }
            _ = frames.tick() => {
                let count = shared.lock().messages();
                is_new |= count != messages;
                if !is_new && drawn.is_some_and(|drawn| drawn.elapsed() < IDLE_FRAME) {
                    continue;
                }
                (messages, is_new) = (count, false);
                screen.0.draw(|frame| draw::draw(frame, &mut shared.lock(), shared.now()))?;
                drawn = Some(Instant::now());
            }
        }
    }
}

/// Returns the key that an event of the terminal stands for. A change of the terminal's size is found when the next frame is drawn.
fn meaning(event: &TerminalEvent) -> Option<Key> {
    let TerminalEvent::Key(KeyEvent {
        code,
        modifiers,
        kind: KeyEventKind::Press | KeyEventKind::Repeat,
        ..
    }) = event
    else {
        return None;
    };
    Some(match code {
        KeyCode::Char('c') if modifiers.contains(KeyModifiers::CONTROL) => Key::Interrupt,
        KeyCode::Char(_) if modifiers.intersects(KeyModifiers::CONTROL | KeyModifiers::ALT) => {
            return None;
        }
        KeyCode::Char(one) => Key::Char(*one),
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::Left => Key::Left,
        KeyCode::Right => Key::Right,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::Home,
        KeyCode::End => Key::End,
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Escape,
        KeyCode::Backspace => Key::Backspace,
        _ => return None,
    })
}

/// Takes messages in until the client ends.
async fn follow_messages(
    client: Client,
    mut messages: Subscription,
    shared: Arc<Shared>,
) -> anyhow::Result<Outcome> {
    let mut batch: Vec<Incoming> = Vec::with_capacity(BATCH);
    while let Some(message) = messages.recv().await {
        batch.push(message);
        while batch.len() < BATCH
            && let Some(message) = messages.try_recv()
        {
            batch.push(message);
        }
        let now = shared.now();
        let mut state = shared.lock();
        for message in batch.drain(..) {
            let message = Message {
                topic: &message.topic,
                payload: &message.payload,
                qos: message.qos,
                retain: message.retain,
            };
            state.add(message, now);
        }
    }
    Err(connect::ended(&client).await)
}

/// Follows what becomes of the connection.
async fn follow_link(
    client: Client,
    mut events: mq_client::EventStream,
    shared: Arc<Shared>,
) -> anyhow::Result<Outcome> {
    let mut readings = interval(READ_LINK);
    let mut why = String::new();
    loop {
        let link = tokio::select! {
            event = events.recv() => match event {
                // Why it ended comes with the messages' end.
                None => return Ok(Outcome::Done),
                Some(Event::Connected(_)) => up(&client, None),
                Some(Event::Disconnected { why: error }) => {
                    why = error.to_string();
                    Link::Down { why: why.clone() }
                }
                Some(Event::Reconnecting { attempt, after }) => {
                    let after = after.as_secs_f64();
                    let why = format!("{why}; attempt {attempt} in {after:.1} s");
                    Link::Down { why }
                }
                Some(_) => continue,
            },
            _ = readings.tick() => {
                let stats = timeout(READ_LINK / 2, client.stats()).await;
                let Ok(Ok(stats)) = stats else {
                    continue;
                };
                if !client.is_connected() {
                    continue;
                }
                up(&client, stats.rtt)
            }
        };
        shared.lock().link = link;
    }
}

/// Returns the state of the link of a connected client: the broker's address, the kind of its handshake and the
/// round-trip time `rtt`.
fn up(client: &Client, rtt: Option<Duration>) -> Link {
    let how = match client.last_connected() {
        None => String::new(),
        Some(connected) => {
            let scheme = connected.link.scheme;
            let peer = connected.link.peer_address;
            let peer = peer.map(|at| Address::new(scheme, at.ip().to_string(), at.port()));
            let peer = peer.map_or_else(|| scheme.to_string(), |peer| peer.to_string());
            format!("{peer}{}", connect::how(&connected.times))
        }
    };
    Link::Up { how, rtt }
}

/// Waits for a signal that ends programs, and says so to the view. A view that hangs in a terminal which takes nothing
/// ends here.
#[cfg(unix)]
fn end_by_signal(
    stop: tokio::sync::oneshot::Sender<u8>,
) -> std::io::Result<impl Future<Output = anyhow::Result<Outcome>>> {
    use tokio::signal::unix::{SignalKind, signal};

    let mut interrupted = signal(SignalKind::interrupt())?;
    let mut terminated = signal(SignalKind::terminate())?;
    let mut hung_up = signal(SignalKind::hangup())?;
    Ok(async move {
        let which = tokio::select! {
            _ = interrupted.recv() => SignalKind::interrupt(),
            _ = terminated.recv() => SignalKind::terminate(),
            _ = hung_up.recv() => SignalKind::hangup(),
        };
        let number = u8::try_from(which.as_raw_value()).unwrap_or_default();
        let _ = stop.send(number);
        tokio::time::sleep(GIVE_UP).await;
        let _ = crossterm::terminal::disable_raw_mode();
        std::process::exit(128 + i32::from(number));
    })
}
