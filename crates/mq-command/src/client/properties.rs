//! `-D PACKET NAME VALUE`: properties of MQTT 5.

use anyhow::{Context as _, anyhow, bail};
use bytes::Bytes;
use mq_client::{ByteStr, ConnectProperties, PublishProperties, TopicName, WillProperties};

use super::args::JOINT;

/// The properties of each packet.
#[derive(Debug, Default)]
pub(crate) struct Properties {
    pub(crate) connect: ConnectProperties,
    pub(crate) publish: PublishProperties,
    pub(crate) will: WillProperties,
    pub(crate) subscribe: Vec<(ByteStr, ByteStr)>,
}

impl Properties {
    /// Reads all `-D`, each of which has the words joined.
    pub(crate) fn parse(all: &[String]) -> anyhow::Result<Self> {
        let mut properties = Self::default();
        for one in all {
            let words: Vec<_> = one.split(JOINT).collect();
            let shown = match words[..] {
                [packet, name @ "authentication-data", ..] => format!("{packet} {name} …"),
                _ => words.join(" "),
            };
            properties
                .set(&words)
                .with_context(|| format!("-D {shown}"))?;
        }
        Ok(properties)
    }

    fn set(&mut self, words: &[&str]) -> anyhow::Result<()> {
        let (packet, name, values) = match words {
            [packet, name, values @ ..] if !values.is_empty() => (*packet, *name, values),
            _ => bail!("needs a packet, a name and a value"),
        };
        if name == "user-property" {
            let [name, value] = values else {
                bail!("needs a name and a value");
            };
            let pair = (ByteStr::new(*name)?, ByteStr::new(*value)?);
            match packet {
                "connect" => self.connect.user_properties.push(pair),
                "publish" => self.publish.user_properties.push(pair),
                "will" => self.will.user_properties.push(pair),
                "subscribe" => self.subscribe.push(pair),
                _ => bail!("{packet} has no user properties here"),
            }
            return Ok(());
        }
        let value = values[0];
        match packet {
            "connect" => self.set_connect(name, value),
            "publish" => self.set_publish(name, value),
            "will" => self.set_will(name, value),
            _ => Err(anyhow!("{packet} has no properties here")),
        }
    }

    fn set_connect(&mut self, name: &str, value: &str) -> anyhow::Result<()> {
        let connect = &mut self.connect;
        match name {
            "session-expiry-interval" => connect.session_expiry_interval = Some(value.parse()?),
            "receive-maximum" => connect.receive_maximum = Some(value.parse()?),
            "maximum-packet-size" => connect.maximum_packet_size = Some(value.parse()?),
            "topic-alias-maximum" => connect.topic_alias_maximum = Some(value.parse()?),
            "request-response-information" => {
                connect.request_response_information = Some(flag(value)?);
            }
            "request-problem-information" => {
                connect.request_problem_information = Some(flag(value)?);
            }
            "authentication-method" => connect.authentication_method = Some(ByteStr::new(value)?),
            "authentication-data" => {
                connect.authentication_data = Some(Bytes::copy_from_slice(value.as_bytes()));
            }
            _ => bail!("CONNECT has no such property"),
        }
        Ok(())
    }

    fn set_publish(&mut self, name: &str, value: &str) -> anyhow::Result<()> {
        let publish = &mut self.publish;
        match name {
            "content-type" => publish.content_type = Some(ByteStr::new(value)?),
            "correlation-data" => publish.correlation_data = Some(bytes(value)),
            "message-expiry-interval" => publish.message_expiry_interval = Some(value.parse()?),
            "payload-format-indicator" => publish.payload_is_utf8 = Some(flag(value)?),
            "response-topic" => publish.response_topic = Some(topic(value)?),
            _ => bail!("PUBLISH has no such property here"),
        }
        Ok(())
    }

    fn set_will(&mut self, name: &str, value: &str) -> anyhow::Result<()> {
        let will = &mut self.will;
        match name {
            "content-type" => will.content_type = Some(ByteStr::new(value)?),
            "correlation-data" => will.correlation_data = Some(bytes(value)),
            "message-expiry-interval" => will.message_expiry_interval = Some(value.parse()?),
            "payload-format-indicator" => will.payload_is_utf8 = Some(flag(value)?),
            "response-topic" => will.response_topic = Some(topic(value)?),
            "will-delay-interval" => will.will_delay_interval = Some(value.parse()?),
            _ => bail!("a will has no such property"),
        }
        Ok(())
    }
}

/// Parses a topic name, which the property holds as text.
fn topic(text: &str) -> anyhow::Result<ByteStr> {
    let name = TopicName::new(text)?;
    Ok(ByteStr::new(name.as_str())?)
}

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn flag(text: &str) -> anyhow::Result<bool> {
    match text {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => bail!("0 or 1, not {text}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> anyhow::Result<Properties> {
        Properties::parse(&[words.join(&JOINT.to_string())])
    }

    #[test]
    fn each_property_goes_into_its_packet() {
        let publish = parse(&["publish", "content-type", "text/plain"]).unwrap();
        assert_eq!(publish.publish.content_type.as_deref(), Some("text/plain"));
        let will = parse(&["will", "will-delay-interval", "7"]).unwrap();
        assert_eq!(will.will.will_delay_interval, Some(7));
        let user = parse(&["connect", "user-property", "a", "b"]).unwrap();
        assert_eq!(user.connect.user_properties.len(), 1);
    }

    #[test]
    fn a_mistake_is_named_in_one_line() {
        for words in [
            &["publish", "content-type"][..],
            &["publish", "no-such-thing", "x"],
            &["subscribe", "content-type", "x"],
            &["connect", "receive-maximum", "0"],
            &["publish", "payload-format-indicator", "yes"],
        ] {
            let error = format!("{:#}", parse(words).unwrap_err());
            assert!(
                error.starts_with("-D ") && error.lines().count() == 1,
                "{error}"
            );
        }
    }
}
