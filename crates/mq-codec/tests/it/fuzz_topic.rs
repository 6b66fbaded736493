//! Runs the body of the fuzz target `topic` over filters and topics that often match and over its
//! corpus.

#[path = "../bodies/topic.rs"]
mod topic;

use proptest::{collection::vec, prelude::*, sample::select};

use crate::{corpus, runner::check};

/// Generates topics of a few levels of few letters, mostly valid.
fn levels(level: &'static [&'static str]) -> impl Strategy<Value = String> {
    vec(select(level), 1..6).prop_map(|levels| levels.join("/"))
}

#[test]
fn matching_agrees_with_the_specification_level_by_level() {
    let filter = levels(&["+", "+", "#", "a", "b", "", "$S", "$share", "a+", "ü"]);
    let topic = levels(&["a", "b", "", "$S", "ü", "long enough for words", "+"]);
    check(20_000, &(filter, topic), |(filter, topic)| {
        topic::run(format!("{filter}\n{topic}").as_bytes());
    });
}

#[test]
fn any_bytes_are_a_topic_only_if_the_specification_says_so() {
    let byte = prop_oneof![4 => select(&b"ab/+#$\n\0"[..]), 1 => any::<u8>()];
    check(5_000, &vec(byte, 0..40), |input| topic::run(&input));
}

#[test]
fn the_corpus_passes() {
    for (number, input) in (1..).zip(corpus::inputs("topic")) {
        println!("line {number}");
        topic::run(&input);
    }
}
