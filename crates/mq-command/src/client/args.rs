//! Options that all commands have: the broker, and who the client is.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::{ArgAction, ValueEnum, builder::ArgPredicate};
use mq_client::{QoS, QuicStreams, Version};
use mq_transport::{Repeat, TlsVersion};

use super::secret::Secret;

/// The values of `-D`, which takes two, three or four, joined into one: no command line has this character.
pub(crate) const JOINT: char = '\u{1f}';

/// Joins the words behind each `-D`.
pub(crate) fn joined(words: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut words = words.into_iter();
    let mut joined = Vec::new();
    while let Some(word) = words.next() {
        if word != "-D" && word != "--property" {
            joined.push(word);
            continue;
        }
        let mut values: Vec<_> = words.by_ref().take(3).collect();
        if values.get(1).is_some_and(|name| name == "user-property") {
            values.extend(words.next());
        }
        let mut value = OsString::from("--property=");
        for (index, part) in values.into_iter().enumerate() {
            if index > 0 {
                value.push(JOINT.to_string());
            }
            value.push(part);
        }
        joined.push(value);
    }
    joined
}

/// Broker, transport and user.
#[derive(clap::Args, Clone, Debug)]
#[command(disable_help_flag = true, disable_version_flag = true)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a switch of the command line"
)]
pub(crate) struct BrokerArgs {
    /// The broker and, if you like, the topic, such as `quic://host/topic`; or @NAME from the configuration
    /// file
    #[arg(value_name = "BROKER")]
    pub(crate) broker: Option<String>,
    /// Broker's URL, as BROKER
    #[arg(short = 'L', long, value_name = "URL", conflicts_with = "broker")]
    pub(crate) url: Option<String>,
    /// Host, without a URL
    #[arg(short = 'h', long, default_value = "localhost")]
    pub(crate) host: String,
    /// Port; else the transport's own
    #[arg(short = 'p', long)]
    pub(crate) port: Option<u16>,
    /// Transport, without a URL; tls if a certificate is given, else tcp
    #[arg(long, value_name = "NAME")]
    pub(crate) transport: Option<Transport>,
    /// A further broker, for when the first cannot be reached
    #[arg(long, value_name = "URL")]
    pub(crate) fallback: Vec<String>,
    /// Client identifier; else one by chance
    #[arg(short = 'i', long, value_name = "ID")]
    pub(crate) id: Option<String>,
    /// Beginning of the client identifier; the process identifier follows
    #[arg(short = 'I', long, value_name = "PREFIX", conflicts_with = "id")]
    pub(crate) id_prefix: Option<String>,
    /// User name
    #[arg(short = 'u', long, value_name = "NAME")]
    pub(crate) username: Option<String>,
    /// Password. Others on this machine can see it for a moment: better `MQ_PASSWORD` or --password-file
    #[arg(short = 'P', long = "pw", value_name = "TEXT", value_parser = Secret::parse)]
    pub(crate) password: Option<Secret>,
    /// A file whose first line is the password
    #[arg(long, value_name = "FILE", conflicts_with = "password")]
    pub(crate) password_file: Option<PathBuf>,
    /// MQTT version: 5, 311 or 31
    #[arg(short = 'V', long, value_name = "VERSION", default_value = "5", value_parser = version)]
    pub(crate) protocol_version: Version,
    /// Keep-alive in seconds, 0 for none
    #[arg(short = 'k', long, value_name = "SECONDS", default_value_t = 60)]
    pub(crate) keepalive: u16,
    /// Keep the session for the next connection with the same identifier
    #[arg(short = 'c', long)]
    pub(crate) disable_clean_session: bool,
    /// Seconds for which the broker keeps the session, -1 for ever (MQTT 5)
    #[arg(short = 'x', long, value_name = "SECONDS", allow_hyphen_values = true, value_parser = expiry)]
    pub(crate) session_expiry_interval: Option<Duration>,
    /// Messages of QoS 1 and 2 under way at once
    #[arg(short = 'M', long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) max_inflight: Option<u16>,
    /// Address to connect from
    #[arg(short = 'A', long = "bind", value_name = "ADDRESS")]
    pub(crate) bind: Option<std::net::IpAddr>,
    /// A property of MQTT 5: PACKET NAME VALUE, or PACKET user-property NAME VALUE
    #[arg(long = "property", short = 'D', value_name = "PACKET NAME VALUE", action = ArgAction::Append)]
    pub(crate) properties: Vec<String>,
    /// CA certificates (PEM) to trust instead of the system's
    // Hidden aliases are mqbench's names.
    #[arg(long, alias = "ca", value_name = "FILE", help_heading = "TLS and QUIC")]
    pub(crate) cafile: Option<PathBuf>,
    /// Client certificate (PEM)
    #[arg(
        long,
        alias = "client-cert",
        value_name = "FILE",
        requires = "key",
        help_heading = "TLS and QUIC"
    )]
    pub(crate) cert: Option<PathBuf>,
    /// Private key (PEM) of the client certificate
    #[arg(
        long,
        alias = "client-key",
        value_name = "FILE",
        requires = "cert",
        help_heading = "TLS and QUIC"
    )]
    pub(crate) key: Option<PathBuf>,
    /// Trust any certificate: for tests only
    #[arg(long, help_heading = "TLS and QUIC", conflicts_with = "cafile")]
    pub(crate) insecure: bool,
    /// Use TLS with the certificates that the system trusts
    #[arg(long, help_heading = "TLS and QUIC")]
    pub(crate) tls_use_os_certs: bool,
    /// Write TLS secrets where SSLKEYLOGFILE says, for Wireshark
    #[arg(long, help_heading = "TLS and QUIC")]
    pub(crate) keylog: bool,
    /// Version of TLS over TCP: 1.2 or 1.3, tlsv1.2 or tlsv1.3
    #[arg(long, value_name = "VERSION", help_heading = "TLS and QUIC", value_parser = tls_version)]
    pub(crate) tls_version: Option<TlsVersion>,
    /// Application protocol to offer instead of mqtt, such as MQTT-next over QUIC, which needs the feature mqtt-next
    #[arg(long, value_name = "NAME", help_heading = "TLS and QUIC")]
    pub(crate) tls_alpn: Option<String>,
    /// Server name to ask for and verify instead of the host
    #[arg(long, value_name = "NAME", help_heading = "TLS and QUIC")]
    pub(crate) server_name: Option<String>,
    /// QUIC stream of a message: control, per-topic, per-publish or auto
    #[arg(
        long,
        value_name = "STRATEGY",
        default_value = "control",
        help_heading = "TLS and QUIC"
    )]
    pub(crate) streams: QuicStreams,
    /// Send QoS 0 messages as QUIC datagrams, and ask the broker for the same
    #[arg(long, help_heading = "TLS and QUIC")]
    pub(crate) datagrams: bool,
    /// Small QUIC datagrams that are sent twice: off, auto, probe, or after a gap such as 3ms
    #[arg(long, value_name = "POLICY", help_heading = "TLS and QUIC")]
    pub(crate) quic_repeat: Option<Repeat>,
    /// Topic of the will
    #[arg(long, value_name = "TOPIC", help_heading = "Will")]
    pub(crate) will_topic: Option<String>,
    /// Payload of the will
    #[arg(
        long,
        value_name = "TEXT",
        requires = "will_topic",
        help_heading = "Will"
    )]
    pub(crate) will_payload: Option<String>,
    /// QoS of the will
    #[arg(long, value_name = "QOS", requires = "will_topic", value_parser = qos, help_heading = "Will",
          default_value_if("will_topic", ArgPredicate::IsPresent, "0"))]
    pub(crate) will_qos: Option<QoS>,
    /// Retain the will
    #[arg(long, requires = "will_topic", help_heading = "Will")]
    pub(crate) will_retain: bool,
    /// Say what happens
    #[arg(short = 'd', long)]
    pub(crate) debug: bool,
    /// Say nothing, not even errors
    #[arg(long)]
    pub(crate) quiet: bool,
    /// Taken and without meaning here: TCP never waits to fill packets
    #[arg(long, hide = true)]
    pub(crate) nodelay: bool,
    /// Show this
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
}

/// A transport by its name.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Transport {
    Tcp,
    Tls,
    Ws,
    Wss,
    Quic,
}

pub(crate) fn qos(text: &str) -> Result<QoS, String> {
    let number: u8 = text.parse().map_err(|_| "0, 1 or 2".to_owned())?;
    QoS::from_bits(number).ok_or_else(|| "0, 1 or 2".to_owned())
}

fn version(text: &str) -> Result<Version, String> {
    match text {
        "5" | "mqttv5" => Ok(Version::V5),
        "311" | "3.1.1" | "mqttv311" => Ok(Version::V3_1_1),
        "31" | "3.1" | "mqttv31" => Ok(Version::V3_1),
        _ => Err("5, 311 or 31".to_owned()),
    }
}

fn tls_version(text: &str) -> Result<TlsVersion, String> {
    let number = text.strip_prefix("tlsv").unwrap_or(text);
    number.parse().map_err(|_| "1.2 or 1.3".to_owned())
}

/// The longest that MQTT knows, which stands for ever (§3.1.2.11.2).
const FOR_EVER: u32 = u32::MAX;

fn expiry(text: &str) -> Result<Duration, String> {
    let seconds = match text {
        "-1" | "∞" => FOR_EVER,
        number => number
            .parse()
            .map_err(|_| "seconds, or -1 for ever".to_owned())?,
    };
    Ok(Duration::from_secs(seconds.into()))
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser};

    use super::*;

    #[test]
    fn the_words_of_a_property_become_one() {
        let words = [
            "mq",
            "pub",
            "-D",
            "publish",
            "content-type",
            "text/plain",
            "-t",
            "a",
            "-D",
            "connect",
            "user-property",
            "n",
            "v",
            "-m",
            "x",
        ];
        let joined = joined(words.map(OsString::from));
        let expected = [
            "mq",
            "pub",
            "--property=publish\u{1f}content-type\u{1f}text/plain",
            "-t",
            "a",
            "--property=connect\u{1f}user-property\u{1f}n\u{1f}v",
            "-m",
            "x",
        ];
        assert_eq!(joined, expected.map(OsString::from));
    }

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        args: BrokerArgs,
    }

    #[test]
    fn the_names_that_mqbench_has_for_tls_files_are_taken_and_not_shown() {
        let words = ["it", "--ca", "a", "--client-cert", "b", "--client-key", "c"];
        let args = Program::try_parse_from(words);
        let args = args
            .map(|program| program.args)
            .map_err(|error| error.to_string())
            .unwrap();
        let files = [args.cafile, args.cert, args.key];
        assert_eq!(files, ["a", "b", "c"].map(|file| Some(file.into())));
        let help = Program::command().render_long_help().to_string();
        for hidden in ["--ca", "--client-cert", "--client-key"] {
            assert!(!help.contains(&format!("{hidden} ")), "{help}");
        }
    }
}
