//! The keys of a cell in a campaign file, and the values that each takes.

use std::{fmt::Display, num::NonZeroU32, str::FromStr};

use mq_netem::{Link, Medium};
use mq_transport::{KeyExchangeGroup, TlsVersion};

use super::cell::Cell;
use crate::{
    mqtt::parse_qos,
    suggestion,
    units::{parse_duration, parse_time_threshold},
    workload::topics::MOST,
};

/// The keys, as messages list them.
pub(super) const KEYS: &str = "pattern, transport, link, sub_link, topology, uplink, uplink_loss, outage, bridge, tiers, medium, stations, loss, retries, \
                    messages, size, interval, burst, topics, streams, deliveries, datagrams, qos, mqtt, congestion, tcp_congestion, \
                    quic_congestion, tls_version, group, certificate_padding, initial_rtt, initial_window, packet_threshold, \
                    time_threshold, repeat, mtu_discovery, max_ack_delay, tcp_rto_min, tcp_thin, tcp_fast_open, resumption, \
                    handover, on_handover, keep_alive, phase, tickets";

impl Cell {
    /// Sets the field that a campaign file calls `key`.
    ///
    /// # Errors
    /// The mistake in the value, without key and line; or in the name of the key.
    pub(crate) fn set(&mut self, key: &str, value: &toml::Value) -> Result<(), String> {
        match key {
            "pattern" => self.pattern = named(value)?,
            "transport" => self.transport = named(value)?,
            "topology" => self.topology = named(value)?,
            "resumption" => self.resumption = named(value)?,
            "on_handover" => self.on_handover = named(value)?,
            "tickets" => self.tickets = named(value)?,
            "mqtt" => self.mqtt = named(value)?,
            "link" => self.link = Some(link(value)?),
            "sub_link" => self.sub_link = Some(link(value)?),
            "uplink" => self.uplink = Some(link(value)?),
            "uplink_loss" => self.uplink_loss = Some(share(value)?),
            "outage" => self.outage_ns = Some(time(value)?).filter(|ns| *ns > 0),
            "bridge" => self.bridge = Some(named(value)?),
            "tiers" => self.tiers = Some(within(value, 1, 3)?),
            "handover" => self.handover = Some(link(value)?),
            "medium" => {
                let name = text(value)?;
                Medium::load(name).map_err(|error| error.to_string())?;
                self.medium = Some(name.to_owned());
            }
            "loss" => self.loss = Some(share(value)?),
            "stations" => self.stations = within(value, 1, 64)?,
            "retries" => self.retries = Some(within(value, 0, 7)?),
            "messages" => self.messages = within(value, 1, 10_000_000)?,
            "size" => self.size = within(value, crate::payload::MIN_SIZE as u64, 1 << 20)?,
            "interval" => self.interval_ns = time(value)?,
            "burst" => {
                let together: u32 = within(value, 1, 1000)?;
                self.burst = NonZeroU32::MIN.saturating_add(together - 1);
            }
            "topics" => {
                let topics: u32 = within(value, 1, MOST.get().into())?;
                self.topics = NonZeroU32::MIN.saturating_add(topics - 1);
            }
            "streams" => self.streams = parsed(value)?,
            "deliveries" => self.deliveries = parsed(value)?,
            "datagrams" => self.datagrams = yes_or_no(value)?,
            "mtu_discovery" => self.mtu_discovery = yes_or_no(value)?,
            "keep_alive" => {
                let ns = time(value)?;
                let seconds = u16::try_from(ns / 1_000_000_000).ok();
                let whole = seconds.filter(|s| *s > 0 && ns % 1_000_000_000 == 0);
                self.keep_alive_s = Some(whole.ok_or_else(|| {
                    format!("{} is not 1 to 65535 whole seconds", toml_text(value))
                })?);
            }
            "tls_version" => self.tls_version = Some(parsed::<TlsVersion>(value)?.to_string()),
            "group" => self.group = Some(parsed::<KeyExchangeGroup>(value)?.to_string()),
            "certificate_padding" => {
                self.certificate_padding =
                    Some(within(value, 0, 60_000)?).filter(|bytes| *bytes > 0);
            }
            "initial_window" => self.initial_window = Some(within(value, 1, 1000)?),
            "packet_threshold" => self.packet_threshold = Some(within(value, 1, 100)?),
            "time_threshold" => {
                self.time_threshold = Some(parse_time_threshold(&toml_text(value))?);
            }
            "initial_rtt" => self.initial_rtt_ns = Some(time(value)?),
            "repeat" => self.repeat = parsed(value)?,
            "max_ack_delay" => self.max_ack_delay_ns = Some(time(value)?),
            "phase" => self.phase = Some(named(value)?),
            "tcp_rto_min" => self.tcp_rto_min_ns = Some(time(value)?),
            "tcp_thin" => self.tcp_thin = yes_or_no(value)?,
            "tcp_fast_open" => self.tcp_fast_open = named(value)?,
            "qos" => self.qos = parse_qos(&toml_text(value))? as u8,
            "congestion" => {
                self.tcp_congestion = parsed(value)?;
                self.quic_congestion = self.tcp_congestion;
            }
            "tcp_congestion" => self.tcp_congestion = parsed(value)?,
            "quic_congestion" => self.quic_congestion = parsed(value)?,
            _ => {
                let known = KEYS.split(',').map(str::trim);
                return Err(suggestion::unknown("key", key, known));
            }
        }
        Ok(())
    }
}

/// Returns a value as a file writes it, without quotes.
pub(super) fn toml_text(value: &toml::Value) -> String {
    match value {
        toml::Value::String(text) => text.clone(),
        toml::Value::Integer(number) => number.to_string(),
        toml::Value::Float(number) => number.to_string(),
        toml::Value::Boolean(yes) => yes.to_string(),
        other => format!("this {}", other.type_str()),
    }
}

fn yes_or_no(value: &toml::Value) -> Result<bool, String> {
    let yes = value.as_bool();
    yes.ok_or_else(|| format!("{} is not true or false", toml_text(value)))
}

fn text(value: &toml::Value) -> Result<&str, String> {
    let text = value.as_str();
    text.ok_or_else(|| format!("{} is no text: write it in quotes", toml_text(value)))
}

/// Parses a value of a type that has names for its values.
fn named<T: serde::de::DeserializeOwned>(value: &toml::Value) -> Result<T, String> {
    let named: Result<T, toml::de::Error> = value.clone().try_into();
    named.map_err(|error| error.message().replace('\n', " "))
}

fn link(value: &toml::Value) -> Result<String, String> {
    let name = text(value)?;
    Link::load(name).map_err(|error| error.to_string())?;
    Ok(name.to_owned())
}

fn share(value: &toml::Value) -> Result<String, String> {
    let share = text(value)?;
    share.parse::<mq_netem::Probability>()?;
    Ok(share.to_owned())
}

fn within<T: TryFrom<u64>>(value: &toml::Value, least: u64, most: u64) -> Result<T, String> {
    let number = value
        .as_integer()
        .and_then(|number| u64::try_from(number).ok());
    number
        .filter(|number| (least..=most).contains(number))
        .and_then(|number| T::try_from(number).ok())
        .ok_or_else(|| format!("{} is not within {least} and {most}", toml_text(value)))
}

fn time(value: &toml::Value) -> Result<u64, String> {
    let time = parse_duration(text(value)?)?;
    u64::try_from(time.as_nanos()).map_err(|_| format!("{} is too long", toml_text(value)))
}

/// Parses an option of a client, which is written as its text.
fn parsed<T: FromStr<Err: Display>>(value: &toml::Value) -> Result<T, String> {
    let option: Result<T, _> = text(value)?.parse();
    option.map_err(|error| error.to_string())
}
