//! The roles of a run on its hosts: the broker, the links, and the clients of each pattern.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use mq_measure::{Samples, convert::float};
use mq_transport::Address;
use tokio::time::{sleep, timeout};

use super::{
    BackgroundRole, RemoteRun,
    clocks::COMPARISON_PAUSE,
    logs::{RECEIVED, RunLogs, SAMPLES, SENT},
};
use crate::{
    broker_under_test::{BrokerOptions, Certificate, configuration},
    campaign::{cell::Cell, pattern::Pattern},
    clock::nanoseconds,
    hosts::{Machine, RemoteRole},
    lab::PATIENCE,
    units::serialized_name,
};

/// The interval at which a role is checked, and the clocks are compared meanwhile.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The longest time between comparisons of clocks during a run.
const LONGEST_COMPARISON_GAP: Duration = Duration::from_millis(500);

/// Time that the subscriber waits for the last messages.
const SUBSCRIBER_IDLE: Duration = Duration::from_secs(10);

/// Time that a run may take longer than its schedule.
const EXTRA_TIME: Duration = Duration::from_mins(3);

/// Files of the broker and of its clients, in the run's folder on a host.
const CHAIN: &str = "server.pem";
const KEY: &str = "server.key";
const CONFIGURATION: &str = "broker.toml";

impl RemoteRun<'_> {
    /// Starts the broker; returns its address.
    pub(super) async fn start_broker(&mut self) -> anyhow::Result<String> {
        let host = self.placement.broker;
        let cell = &self.request.cell;
        let padding = cell.certificate_padding.unwrap_or_default();
        let certificate = Certificate::make([host.address].into_iter(), padding.into())?;
        let configuration = configuration(&BrokerOptions::of(
            &cell.quic(),
            &cell.crypto()?.key_exchange_groups,
        ));
        for (name, content) in [
            (KEY, &certificate.key[..]),
            // As in the emulated networks, so that results compare.
            (CONFIGURATION, &configuration[..]),
        ] {
            let file = self.file(host, name)?;
            self.ssh.put(host, &file, content.as_bytes()).await?;
        }
        for host in self.placement.hosts() {
            let file = self.file(host, CHAIN)?;
            let chain = certificate.chain.as_bytes();
            self.ssh.put(host, &file, chain).await?;
        }
        // The broker listens only on the measured network.
        let listen = Address::new(cell.scheme(), host.address.to_string(), 0);
        let arguments = [
            "broker".to_owned(),
            "--announce".to_owned(),
            // The testbed has no users, so the broker accepts its hosts without a login.
            "--allow-anonymous".to_owned(),
            format!("--listen={listen}"),
            self.option(host, "--cert", CHAIN)?,
            self.option(host, "--key", KEY)?,
            self.option(host, "--config", CONFIGURATION)?,
            format!("--congestion={}", cell.congestion()),
        ];
        let mut remote = self.ssh.start(host, &arguments, false)?;
        let addresses = remote.wait_until_ready().await?;
        self.background.push(BackgroundRole {
            host,
            is_link: false,
            remote,
        });
        addresses
            .into_iter()
            .next()
            .context("the broker listens nowhere")
    }

    pub(super) async fn start_links(&mut self) -> anyhow::Result<()> {
        for shaped in &self.placement.shaped {
            let arguments = [
                "net",
                "apply",
                "--announce",
                // The lease restores the interface in time, even if ssh goes through it.
                "--even-ssh",
                &format!("--direction={}", shaped.way.name()),
                &shaped.host.interface,
                &shaped.link,
            ];
            let by_sudo = !self.session(shaped.host)?.report.may_shape;
            let arguments = arguments.map(str::to_owned);
            let mut remote = self.ssh.start(shaped.host, &arguments, by_sudo)?;
            let ready = remote.wait_until_ready().await;
            self.background.push(BackgroundRole {
                host: shaped.host,
                is_link: true,
                remote,
            });
            ready?;
        }
        Ok(())
    }

    /// Makes the arguments of a client's role.
    fn client_arguments(
        &self,
        host: &Machine,
        role: &str,
        address: &str,
    ) -> anyhow::Result<Vec<String>> {
        let cell = &self.request.cell;
        let mut arguments = vec![
            role.to_owned(),
            address.to_owned(),
            format!("--qos={}", cell.qos),
            format!("--mqtt={}", serialized_name(cell.mqtt)),
            self.option(host, "--ca", CHAIN)?,
            format!("--congestion={}", cell.congestion()),
            time_option("--connect-timeout", nanoseconds(PATIENCE)),
        ];
        let rtt = cell.initial_rtt_ns;
        arguments.extend(rtt.map(|ns| time_option("--initial-rtt", ns)));
        let version = cell.tls_version.as_ref();
        arguments.extend(version.map(|version| format!("--tls-version={version}")));
        let group = cell.group.as_ref();
        arguments.extend(group.map(|group| format!("--groups={group}")));
        let window = cell.initial_window;
        arguments.extend(window.map(|packets| format!("--initial-window={packets}")));
        let threshold = cell.packet_threshold;
        arguments.extend(threshold.map(|packets| format!("--packet-threshold={packets}")));
        let threshold = cell.time_threshold;
        arguments.extend(threshold.map(|factor| format!("--time-threshold={factor}")));
        arguments.push(format!("--repeat={}", cell.repeat));
        arguments.push(format!("--streams={}", cell.streams));
        arguments.push(format!("--deliveries={}", cell.deliveries));
        arguments.extend(cell.datagrams.then(|| "--datagrams".to_owned()));
        arguments.extend(cell.mtu_discovery.then(|| "--mtu-discovery".to_owned()));
        let delay = cell.max_ack_delay_ns;
        arguments.extend(delay.map(|ns| time_option("--max-ack-delay", ns)));
        Ok(arguments)
    }

    /// Runs the roles that send the messages of a cell.
    pub(super) async fn run_pattern(&mut self, address: &str) -> anyhow::Result<RunLogs> {
        let cell = &self.request.cell;
        let (publisher, subscriber) = (self.placement.publisher, self.placement.subscriber);
        let count = |messages: u64| format!("--count={messages}");
        let size = format!("--size={}", cell.size);
        let interval = time_option("--interval", cell.interval_ns);
        let out = self.option(publisher, "--out", SAMPLES)?;
        match cell.pattern {
            Pattern::Periodic => {
                let idle = SUBSCRIBER_IDLE.max(cell.interval() * 3);
                let receiving = self
                    .start_subscriber(address, cell.messages, idle, false)
                    .await?;
                let mut sending = self.client_arguments(publisher, "pub", address)?;
                sending.extend([count(cell.messages), size, interval, topics_option(cell)]);
                sending.push(self.option(publisher, "--log", SENT)?);
                let sending = self.ssh.start(publisher, &sending, false)?;
                self.wait_for_end(sending, publisher_timeout(cell)).await?;
                self.wait_for_end(receiving, EXTRA_TIME).await?;
                self.read_logs().await
            }
            Pattern::StopAndWait | Pattern::Reconnect => {
                // `reconnect` sends one message more, on its first connection.
                let first = u64::from(cell.pattern == Pattern::Reconnect);
                let messages = cell.messages + first;
                let receiving = self
                    .start_subscriber(address, messages, PATIENCE, true)
                    .await?;
                let mut sending = self.client_arguments(publisher, "pub", address)?;
                sending.extend([count(cell.messages), size]);
                sending.push(match cell.pattern {
                    Pattern::Reconnect => {
                        format!("--reconnect={}", serialized_name(cell.resumption))
                    }
                    _ => "--wait".to_owned(),
                });
                sending.push(self.option(publisher, "--log", SENT)?);
                let sending = self.ssh.start(publisher, &sending, false)?;
                self.relay_arrivals(receiving, sending).await?;
                self.read_logs().await
            }
            Pattern::JobResult => {
                let mut worker = self.client_arguments(subscriber, "worker", address)?;
                worker.push("--announce".to_owned());
                let mut worker = self.ssh.start(subscriber, &worker, false)?;
                worker.wait_until_ready().await?;
                let mut jobs = self.client_arguments(publisher, "rtt", address)?;
                jobs.extend([count(cell.messages), size, interval, out]);
                jobs.push(time_option("--grace", nanoseconds(SUBSCRIBER_IDLE)));
                let jobs = self.ssh.start(publisher, &jobs, false)?;
                self.wait_for_end(jobs, publisher_timeout(cell)).await?;
                self.read_samples().await
            }
            Pattern::Connect => {
                let mut connect = self.client_arguments(publisher, "connect", address)?;
                connect.extend([count(cell.messages), out]);
                connect.push(format!("--resumption={}", serialized_name(cell.resumption)));
                let connect = self.ssh.start(publisher, &connect, false)?;
                self.wait_for_end(connect, publisher_timeout(cell)).await?;
                self.read_samples().await
            }
            // `Hosts::placement` refuses them, before anything begins.
            Pattern::Storm | Pattern::HalfOpen | Pattern::Coap | Pattern::Load => {
                bail!("this pattern runs on one machine only")
            }
        }
    }

    /// Starts the subscriber; returns when it has subscribed.
    async fn start_subscriber(
        &self,
        address: &str,
        messages: u64,
        idle: Duration,
        tell: bool,
    ) -> anyhow::Result<RemoteRole> {
        let host = self.placement.subscriber;
        let mut arguments = self.client_arguments(host, "sub", address)?;
        arguments.extend(["--announce".to_owned(), format!("--count={messages}")]);
        arguments.push(time_option("--idle", nanoseconds(idle)));
        arguments.push(topics_option(&self.request.cell));
        arguments.push(self.option(host, "--log", RECEIVED)?);
        arguments.extend(tell.then(|| "--tell".to_owned()));
        let mut remote = self.ssh.start(host, &arguments, false)?;
        remote.wait_until_ready().await?;
        Ok(remote)
    }

    /// Sends the publisher the numbers of messages that have reached the subscriber, until both have ended.
    async fn relay_arrivals(
        &mut self,
        mut receiving: RemoteRole,
        mut sending: RemoteRole,
    ) -> anyhow::Result<()> {
        let began = Instant::now();
        let mut compared = began;
        while !sending.has_ended().await? {
            let line = timeout(POLL_INTERVAL, receiving.next_line()).await;
            if let Some(line) = line.unwrap_or(Ok(None))? {
                // If the publisher has ended, the loop's condition finds out why.
                let _ = sending.send_line(line).await;
            } else {
                // No message has come for a while, or all have.
                sleep(COMPARISON_PAUSE).await;
                compared = began;
            }
            if compared.elapsed() > LONGEST_COMPARISON_GAP {
                self.compare_clocks(1).await?;
                compared = Instant::now();
            }
            if began.elapsed() > publisher_timeout(&self.request.cell) {
                bail!("the publisher has not finished in time");
            }
        }
        self.wait_for_end(receiving, EXTRA_TIME).await
    }

    async fn read_logs(&self) -> anyhow::Result<RunLogs> {
        let (publisher, subscriber) = (self.placement.publisher, self.placement.subscriber);
        let (sent, received) = (
            self.file(publisher, SENT)?,
            self.file(subscriber, RECEIVED)?,
        );
        Ok(RunLogs::Pair(
            self.ssh.get(publisher, &sent).await?,
            self.ssh.get(subscriber, &received).await?,
        ))
    }

    async fn read_samples(&self) -> anyhow::Result<RunLogs> {
        let publisher = self.placement.publisher;
        let file = self.file(publisher, SAMPLES)?;
        let found = self.ssh.get(publisher, &file).await?;
        Ok(RunLogs::Samples(Samples::read_csv(
            &found[..],
            SAMPLES.as_ref(),
        )?))
    }

    /// Makes sure that the broker and the links still run: a run without them does not count.
    pub(super) async fn check_background(&mut self) -> anyhow::Result<()> {
        for background in &mut self.background {
            if background.remote.has_ended().await? {
                let (host, what) = (
                    &background.host.name,
                    if background.is_link { "link" } else { "broker" },
                );
                bail!("host {host}: its {what} ended before the run did");
            }
        }
        Ok(())
    }

    /// Waits until a role has ended well, and compares clocks meanwhile.
    async fn wait_for_end(&mut self, mut role: RemoteRole, limit: Duration) -> anyhow::Result<()> {
        let began = Instant::now();
        while !role.has_ended().await? {
            if began.elapsed() > limit {
                bail!("a role has not finished within {limit:?}");
            }
            self.compare_clocks(1).await?;
            sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }
}

/// Returns the time that a publisher may take.
fn publisher_timeout(cell: &Cell) -> Duration {
    let messages = u32::try_from(cell.messages).unwrap_or(u32::MAX);
    let each = if cell.pattern.is_scheduled() {
        cell.interval()
    } else {
        // Each message may take that long.
        PATIENCE
    };
    each.saturating_mul(messages) + EXTRA_TIME
}

/// Formats the option for the number of topics.
fn topics_option(cell: &Cell) -> String {
    format!("--topics={}", cell.topics)
}

/// Formats an option with a time.
fn time_option(option: &str, ns: u64) -> String {
    let ns = float(ns);
    format!("{option}={}us", ns / 1e3)
}
