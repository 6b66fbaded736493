//! Options that take one of a few words, each with its help.

use std::num::NonZeroU32;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use serde::de::{DeserializeOwned, IntoDeserializer as _, value};

use crate::{
    lab::placement::TrafficDirection,
    mqtt::MqttVersion,
    testbed::Topology,
    workload::{resumption::Resumption, topics::MOST},
};

pub(super) fn mqtt_version() -> impl TypedValueParser<Value = MqttVersion> {
    one_of([
        ("3.1", "MQTT 3.1"),
        ("3.1.1", "MQTT 3.1.1"),
        ("5", "MQTT 5.0"),
    ])
}

pub(crate) fn resumption() -> impl TypedValueParser<Value = Resumption> {
    one_of([
        ("full", "A full handshake each time"),
        ("resumed", "With a ticket"),
        ("0-rtt", "With a ticket, CONNECT and PUBLISH as early data"),
    ])
}

/// Parses a number of topics.
pub(crate) fn topics(text: &str) -> Result<NonZeroU32, String> {
    let topics = text.parse().ok();
    topics
        .filter(|topics| *topics <= MOST)
        .ok_or_else(|| format!("there are 1 to {MOST} topics"))
}

/// Parses a share such as `1%`, above 0 and up to 100 %.
pub(crate) fn parse_percent(text: &str) -> Result<f64, String> {
    let number = text
        .strip_suffix('%')
        .and_then(|number| number.parse().ok());
    let share = number.filter(|percent| *percent > 0.0 && *percent <= 100.0);
    let share = share.map(|percent: f64| percent / 100.0);
    share.ok_or_else(|| "a share is above 0% and up to 100%, such as 1%".to_owned())
}

pub(super) fn topology() -> impl TypedValueParser<Value = Topology> {
    one_of([
        (
            "publisher",
            "Three hosts; the link is the publisher's, the subscriber's is perfect (S22)",
        ),
        (
            "both",
            "Three hosts; both have a link like it (S21's scenario A)",
        ),
        (
            "shared",
            "Two hosts; publisher and subscriber share one and its link to the broker (W20)",
        ),
    ])
}

pub(crate) fn way() -> impl TypedValueParser<Value = TrafficDirection> {
    one_of([
        ("up", "From the clients to the broker"),
        ("down", "From the broker to the clients"),
    ])
}

/// Makes a parser of the words that a campaign file has for the values of a type.
fn one_of<T: DeserializeOwned + Clone + Send + Sync + 'static, const N: usize>(
    words: [(&'static str, &'static str); N],
) -> impl TypedValueParser<Value = T> {
    let values = words.map(|(word, help)| PossibleValue::new(word).help(help));
    PossibleValuesParser::new(values).try_map(|word| {
        T::deserialize::<value::StringDeserializer<value::Error>>(word.into_deserializer())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn takes_its_words(parser: &impl TypedValueParser) {
        let command = clap::Command::new("mqbench");
        for word in parser.possible_values().unwrap() {
            let taken = parser.parse_ref(&command, None, word.get_name().as_ref());
            assert!(taken.is_ok(), "{}", word.get_name());
        }
    }

    #[test]
    fn each_word_of_an_option_is_one_of_a_campaign_file() {
        takes_its_words(&mqtt_version());
        takes_its_words(&resumption());
        takes_its_words(&topology());
        takes_its_words(&way());
    }
}
