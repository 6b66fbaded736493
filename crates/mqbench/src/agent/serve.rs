//! The agent's side.

use std::{
    io::{Read as _, Write as _},
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, bail};
use mq_measure::context::HostContext;
use mq_transport::{Address, Incoming, ListenOptions, Listener, ReloadHandle, Scheme};
use tokio::{sync::Mutex, task::JoinSet, time::timeout};

use super::{
    PROTOCOL,
    channel::{Channel, Frame, MOST},
    children::Children,
    code::Code,
    folder::{Folder, Name},
    identity::AgentState,
    message::{Reply, Report, Request},
    upgrade::{self, Slot},
};
use crate::{
    clock::{WallClock, chrony::error_bound_ns, host},
    meter,
    sut::this_software,
};

/// How long somebody may take to say who it is.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// How long a controller waits for one that is leaving, whose links are put back.
const TURN: Duration = Duration::from_secs(3);

/// Connections at once: a controller, and some that have no business here.
const CONNECTIONS: usize = 16;

/// An agent that listens.
pub(crate) struct Server {
    listener: Listener,
    shared: Arc<Shared>,
}

/// What connections share.
struct Shared {
    state: AgentState,
    options: ListenOptions,
    reload: ReloadHandle,
    /// This program, for roles.
    program: PathBuf,
    /// Its SHA-256.
    digest: String,
    /// Where a controller's program is kept; `None` if this agent takes none.
    slot: Option<Slot>,
    /// As its roles have it.
    clock: WallClock,
    lease: Duration,
    /// Whose turn it is: one controller's.
    turn: Mutex<()>,
}

/// Makes a code, good for ten minutes, for one controller to enrol with the agent of this folder.
pub(crate) fn open_code(folder: &Path) -> anyhow::Result<Code> {
    AgentState::open(folder)?.open_code(rand::random())
}

impl Server {
    /// Listens at `address` with what `folder` keeps; `program`, which is this one, does the roles. Takes
    /// another in its place from controllers if it `is_upgradable`.
    pub(crate) async fn open(
        folder: &Path,
        address: SocketAddr,
        program: PathBuf,
        lease: Duration,
        is_upgradable: bool,
    ) -> anyhow::Result<Self> {
        let state = AgentState::open(folder)?;
        // What an agent left that was killed.
        Folder::open(state.work()).context("cannot empty the work folder")?;
        let mut options = ListenOptions {
            identity: Some(state.identity()?),
            client_auth: state.client_auth(),
            alpn: vec![PROTOCOL.to_vec()],
            ..ListenOptions::default()
        };
        options.quic.idle_timeout = Some(lease);
        let url = Address::new(Scheme::Quic, address.ip().to_string(), address.port());
        let listener = Listener::bind(&url, &options).await?;
        let shared = Shared {
            reload: listener.reload_handle(),
            state,
            options,
            digest: upgrade::digest(&program).context("cannot read this program")?,
            slot: is_upgradable.then(|| Slot::of(folder)),
            program,
            clock: WallClock::from_env()?,
            lease,
            turn: Mutex::new(()),
        };
        Ok(Self {
            listener,
            shared: Arc::new(shared),
        })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> Address {
        self.listener.local_address()
    }

    /// The program that this one has to hand over to, if there is one: it can listen where this one does.
    ///
    /// # Errors
    /// If one that is not to be executed cannot be put aside.
    pub(crate) fn successor(&self) -> anyhow::Result<Option<Slot>> {
        let Shared {
            slot,
            program,
            digest,
            ..
        } = &*self.shared;
        let Some(slot) = slot else { return Ok(None) };
        Ok(slot.is_next(program, digest)?.then(|| slot.clone()))
    }

    /// Serves until it is dropped, and every role ends with it; or until a controller has sent the program
    /// that it returns.
    pub(crate) async fn run(mut self) -> anyhow::Result<Slot> {
        if let Some(slot) = &self.shared.slot {
            slot.listens()?;
        }
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                incoming = self.listener.accept() => match incoming {
                    Ok(incoming) if connections.len() < CONNECTIONS => {
                        connections.spawn(Arc::clone(&self.shared).serve(incoming));
                    }
                    // Refused by dropping it.
                    Ok(_) => {}
                    Err(error) => {
                        eprintln!("mqbench agent: {error}");
                        tokio::time::sleep(Duration::from_secs(1)).await;
                    }
                },
                Some(ended) = connections.join_next() => {
                    if let Ok(Some(slot)) = ended {
                        return Ok(slot);
                    }
                }
            }
        }
    }
}

impl Shared {
    /// Returns the program that this one has to hand over to, if it was sent one.
    async fn serve(self: Arc<Self>, incoming: Incoming) -> Option<Slot> {
        let peer = incoming.peer_address();
        let shown = peer.map_or_else(String::new, |peer| format!("{peer}: "));
        let mut upgraded = None;
        if let Err(error) = self.converse(incoming, &mut upgraded).await {
            eprintln!("mqbench agent: {shown}{error:#}");
        }
        upgraded
    }

    async fn converse(
        &self,
        incoming: Incoming,
        upgraded: &mut Option<Slot>,
    ) -> anyhow::Result<()> {
        let link = timeout(HANDSHAKE, async {
            let mut link = incoming.handshake().await?;
            link.handshake_complete().await?;
            Ok::<_, mq_transport::Error>(link)
        });
        let link = link.await.context("no handshake in time")??;
        let known = !link.info().peer_certificates.is_empty();
        let mut channel = Channel::new(link);
        if !known {
            let request = timeout(HANDSHAKE, channel.receive()).await;
            let request = request.context("nothing was said in time")??;
            let reply = self.meet_stranger(&request).await;
            channel.send_text(&reply).await?;
            channel.close().await;
            return Ok(());
        }
        let Ok(_turn) = timeout(TURN, self.turn.lock()).await else {
            let _asked = channel.receive().await?;
            let why = "another controller is at work here".to_owned();
            channel.send_text(&Reply::Refused { why }).await?;
            channel.close().await;
            return Ok(());
        };
        let folder = Folder::open(self.state.work()).context("cannot empty the work folder")?;
        let mut session = Session {
            children: Children::new(self.program.clone(), folder.clone()),
            folder,
            agent: self,
            upgraded,
        };
        let ended = session.serve(&mut channel).await;
        session.clean_up().await?;
        if session.upgraded.is_some() {
            channel.close().await;
        }
        ended
    }

    async fn report(&self) -> Report {
        let software = this_software("mqbench");
        Report {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            revision: software.revision,
            program: Some(self.digest.clone()),
            host: host(),
            machine: std::env::consts::ARCH.to_owned(),
            context: HostContext::read(),
            clock_bound_ns: error_bound_ns().await,
            interfaces: interfaces(),
            free_bytes: free_bytes(&self.state.work()),
            throttled: throttled(),
            meters: meter::on_this_host(),
        }
    }

    /// Somebody without a certificate that is known here may enrol, and nothing else.
    async fn meet_stranger(&self, frame: &Frame) -> Reply {
        let Frame::Text(text) = frame else {
            return refused("this agent does not know you");
        };
        let enrolled = match serde_json::from_slice(text) {
            Ok(Request::Enrol {
                secret,
                certificate,
            }) => self.state.enrol(&secret, &certificate),
            _ => return refused("this agent does not know you: `mqbench hosts add` with its code"),
        };
        let known = enrolled.and_then(|()| {
            let options = ListenOptions {
                client_auth: self.state.client_auth(),
                ..self.options.clone()
            };
            Ok(self.reload.reload(&options)?)
        });
        match known {
            Ok(()) => Reply::Report {
                report: Box::new(self.report().await),
            },
            Err(error) => refused(format!("{error:#}")),
        }
    }
}

/// What is done for a controller while it is connected.
struct Session<'a> {
    children: Children,
    folder: Folder,
    agent: &'a Shared,
    /// The program that this one has to hand over to once this is over.
    upgraded: &'a mut Option<Slot>,
}

impl Session<'_> {
    /// Until the controller goes, or says nothing for longer than the lease.
    async fn serve(&mut self, channel: &mut Channel) -> anyhow::Result<()> {
        let (lease, clock) = (self.agent.lease, self.agent.clock);
        loop {
            let frame = timeout(lease, channel.receive()).await;
            let frame = frame.with_context(|| format!("nothing was heard for {lease:?}"))?;
            let Ok(frame) = frame else {
                // Gone, in order or not: the same is to be done.
                return Ok(());
            };
            let Frame::Text(text) = frame else {
                bail!("a piece of a file came out of turn");
            };
            let received_ns = clock.now_ns();
            let reply = match serde_json::from_slice(&text) {
                Err(error) => refused(error.to_string()),
                Ok(Request::Clock {}) => Reply::Clock {
                    received_ns,
                    sent_ns: clock.now_ns(),
                },
                Ok(request) => self.answer(request, channel, lease).await?,
            };
            channel.send_text(&reply).await?;
            if self.upgraded.is_some() {
                return Ok(());
            }
        }
    }

    /// Does what is asked. Errors are those of the channel; what cannot be done is refused.
    async fn answer(
        &mut self,
        request: Request,
        channel: &mut Channel,
        lease: Duration,
    ) -> anyhow::Result<Reply> {
        let done = match request {
            Request::Stay {} => Ok(Reply::Done {}),
            Request::Leave {} => self.clean_up().await.map(|()| Reply::Done {}),
            Request::Report {} => Ok(Reply::Report {
                report: Box::new(self.agent.report().await),
            }),
            Request::Clock {} | Request::Enrol { .. } => Ok(refused("not now")),
            Request::Start { role } => {
                // Nothing is said out of turn: whatever comes now is the end.
                let gone = async { drop(channel.receive().await) };
                let started = self.children.start(role, gone).await;
                started.map(|(id, addresses)| Reply::Started { id, addresses })
            }
            Request::Look { id } => {
                let looked = self.children.look(id).await;
                looked.map(|state| Reply::State { state })
            }
            Request::Stop { id } => {
                let stopped = self.children.stop(id).await;
                stopped.map(|state| Reply::State { state })
            }
            Request::Upgrade { program, sha256 } => {
                let upgraded = self.upgrade(&program, &sha256).await;
                upgraded.map(|()| Reply::Done {})
            }
            Request::Put { name, size } => return self.take(channel, &name, size, lease).await,
            Request::Get { name } => return self.give(channel, &name, lease).await,
        };
        Ok(done.unwrap_or_else(|error| refused(format!("{error:#}"))))
    }

    /// Keeps a program that was put into the work folder, to hand over to it.
    async fn upgrade(&mut self, program: &Name, sha256: &str) -> anyhow::Result<()> {
        let Shared {
            slot,
            program: own,
            digest,
            ..
        } = self.agent;
        let Some(slot) = slot else {
            bail!("it was started with --no-upgrade: install the program there");
        };
        if !self.children.is_empty() {
            bail!("a role is running: a program is taken when it has ended");
        }
        let sent = self.folder.of(program);
        // No file of a controller begins with a point.
        let trial = self.folder.path().join(".trial");
        upgrade::check(&sent, sha256, &trial).await?;
        slot.keep(&sent, own, digest)?;
        *self.upgraded = Some(slot.clone());
        Ok(())
    }

    async fn clean_up(&mut self) -> anyhow::Result<()> {
        let ended = self.children.end_all().await;
        let emptied = self.folder.clear();
        ended.and(emptied.context("cannot empty the work folder"))
    }

    async fn take(
        &self,
        channel: &mut Channel,
        name: &Name,
        size: u64,
        lease: Duration,
    ) -> anyhow::Result<Reply> {
        let free = free_bytes(self.folder.path());
        if free.is_some_and(|free| free < size) {
            return Ok(refused(format!("there is no room for {size} bytes")));
        }
        let mut file = match self.folder.create(name) {
            Ok(file) => file,
            Err(error) => return Ok(refused(format!("cannot make {}: {error}", name.as_str()))),
        };
        channel.send_text(&Reply::Done {}).await?;
        let mut written: std::io::Result<()> = Ok(());
        let mut left = size;
        while left > 0 {
            let piece = timeout(lease, channel.receive_piece()).await;
            let piece = piece.context("a file ended early")??;
            if piece.is_empty() || piece.len() as u64 > left {
                bail!("a file is not as long as it was said to be");
            }
            left -= piece.len() as u64;
            // What cannot be written is read all the same: the answer comes after it.
            written = written.and_then(|()| file.write_all(&piece));
        }
        match written.and_then(|()| file.complete()) {
            Ok(()) => Ok(Reply::Done {}),
            Err(error) => Ok(refused(format!("cannot write {}: {error}", name.as_str()))),
        }
    }

    async fn give(
        &self,
        channel: &mut Channel,
        name: &Name,
        lease: Duration,
    ) -> anyhow::Result<Reply> {
        let opened = std::fs::File::open(self.folder.of(name));
        let opened = opened.and_then(|file| Ok((file.metadata()?.len(), file)));
        let (size, mut file) = match opened {
            Ok(opened) => opened,
            Err(error) => return Ok(refused(format!("cannot read {}: {error}", name.as_str()))),
        };
        channel.send_text(&Reply::File { size }).await?;
        let mut left = size;
        let mut buffer = vec![0; MOST.min(64 << 10)];
        while left > 0 {
            let most = usize::try_from(left)
                .unwrap_or(usize::MAX)
                .min(buffer.len());
            // A file that grows or shrinks meanwhile: its role is at work on it.
            file.read_exact(&mut buffer[..most])
                .with_context(|| format!("{} has changed", name.as_str()))?;
            let sent = timeout(lease, channel.send_piece(&buffer[..most])).await;
            sent.context("a file is not taken")??;
            left -= most as u64;
        }
        Ok(Reply::Done {})
    }
}

fn refused(why: impl Into<String>) -> Reply {
    Reply::Refused { why: why.into() }
}

/// Not from /sys, which shows those of the network namespace that it was mounted in.
fn interfaces() -> Vec<String> {
    let found = nix::net::if_::if_nameindex();
    let names = found.iter().flatten();
    let mut names: Vec<_> = names
        .map(|interface| interface.name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// A Raspberry Pi's firmware says it there.
fn throttled() -> Option<String> {
    let file = "/sys/devices/platform/soc/soc:firmware/get_throttled";
    let text = std::fs::read_to_string(file).ok()?;
    Some(text.trim().to_owned())
}

fn free_bytes(path: &Path) -> Option<u64> {
    let space = nix::sys::statvfs::statvfs(path).ok()?;
    // Their types are as wide as the machine's words.
    let free = u128::from(space.blocks_available()) * u128::from(space.fragment_size());
    u64::try_from(free).ok()
}
