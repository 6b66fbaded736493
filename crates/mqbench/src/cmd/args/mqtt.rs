//! The MQTT options of clients.

use std::time::Duration;

use mq_client::{Probes, QuicStreams, Spread};
use mq_codec::QoS;
use mq_transport::Address;

use super::{transport::TransportArgs, value_parsers::mqtt_version};
use crate::{
    mqtt::{MqttOptions, MqttVersion, Route, parse_qos},
    units::parse_duration,
};

/// Longer than a TCP handshake whose SYN is lost four times.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// MQTT options of clients.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "MQTT")]
pub(crate) struct MqttArgs {
    /// Quality of service: 0, 1 or 2
    #[arg(long, default_value = "0", value_parser = parse_qos)]
    qos: QoS,
    /// MQTT version
    #[arg(long, default_value = "5", value_parser = mqtt_version())]
    mqtt: MqttVersion,
    /// Keep-alive in seconds, 0 for none
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    keep_alive: u16,
    /// QUIC subscribers send PINGREQ after this time without a packet, 0 for never
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = parse_duration)]
    probe_quiet: Duration,
    /// QUIC subscribers send PINGREQ when a busy flow stops, after this time without a packet; 0 for never
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = parse_duration)]
    probe_busy: Duration,
    /// QUIC stream of each message and each subscription: control, per-topic, per-publish or auto; per-topic:N and
    /// auto:N use at most N streams
    #[arg(long, value_name = "STRATEGY", default_value = "control")]
    pub(crate) streams: QuicStreams,
    /// Ask the broker to spread messages over its own QUIC streams by this strategy (MQTT 5)
    #[arg(long, value_name = "STRATEGY", default_value = "control")]
    deliveries: Spread,
    /// Send QoS 0 messages as QUIC datagrams, and ask the broker for the same (MQTT 5)
    #[arg(long)]
    pub(crate) datagrams: bool,
    /// User name
    #[arg(long, value_name = "NAME")]
    username: Option<String>,
    /// Password
    #[arg(
        long,
        value_name = "TEXT",
        env = "MQBENCH_PASSWORD",
        hide_env_values = true
    )]
    password: Option<String>,
    /// Timeout of a connection until CONNACK, longer for lossy links; default: 20s, and 3s for `connect`
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    connect_timeout: Option<Duration>,
}

impl MqttArgs {
    /// Returns the options with `patience` as the default timeout of a connection, for commands whose user waits for
    /// each.
    pub(crate) fn get_impatient(&self, patience: Duration) -> MqttOptions {
        MqttOptions {
            connect_timeout: self.connect_timeout.unwrap_or(patience),
            ..self.get()
        }
    }

    pub(crate) fn get(&self) -> MqttOptions {
        let some = |time: Duration| (!time.is_zero()).then_some(time);
        MqttOptions {
            qos: self.qos,
            version: self.mqtt.into(),
            keep_alive: Duration::from_secs(self.keep_alive.into()),
            probes: Probes {
                quiet: some(self.probe_quiet),
                busy: some(self.probe_busy),
            },
            user_name: self.username.clone(),
            password: self.password.clone(),
            connect_timeout: self.connect_timeout.unwrap_or(CONNECT_TIMEOUT),
            streams: self.streams.clone(),
            deliveries: self.deliveries,
            datagrams: self.datagrams,
        }
    }
}

/// Transport and MQTT options of clients.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct ClientArgs {
    #[command(flatten)]
    pub(crate) mqtt: MqttArgs,
    #[command(flatten)]
    pub(crate) transport: TransportArgs,
}

impl ClientArgs {
    /// Makes the MQTT options, and a route to `broker` with the transport options.
    pub(crate) fn get(&self, broker: &Address) -> anyhow::Result<(MqttOptions, Route)> {
        let options = self.transport.options();
        Ok((self.mqtt.get(), Route::new((broker.clone(), options))?))
    }
}
