//! Publishes at QoS 1, 32 in flight, for a kept session that is away: `durable URL [SECONDS]`.
//! Prints the acknowledged messages a second, which are those that the broker has promised to keep.
#![expect(clippy::print_stdout, reason = "an example says what it found")]

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use mq_client::{Client, Error, Outgoing, QoS, Version};

const IN_FLIGHT: usize = 32;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().unwrap_or_default();
    let seconds = arguments.next().and_then(|text| text.parse().ok());
    let time = Duration::from_secs(seconds.unwrap_or(5));
    let kept = Client::builder(&url)?
        .version(Version::V3_1_1)
        .client_id("kept")?
        .clean_start(false)
        .build()
        .await?;
    let messages = kept.subscribe("durable", QoS::AtLeastOnce).await?;
    kept.disconnect().await?;
    drop(messages);

    let publisher = Client::builder(&url)?
        .version(Version::V3_1_1)
        .client_id("publisher")?
        .build()
        .await?;
    let mut waiting = VecDeque::new();
    let mut count = 0_u32;
    let began = Instant::now();
    while began.elapsed() < time {
        while waiting.len() < IN_FLIGHT {
            let message = Outgoing::to("durable", vec![7; 100])?.qos(QoS::AtLeastOnce);
            waiting.push_back(publisher.send(message).await?);
        }
        if let Some(mut first) = waiting.pop_front() {
            first.acknowledged().await?;
            count += 1;
        }
    }
    let rate = f64::from(count) / began.elapsed().as_secs_f64();
    println!("{rate:.0}");
    publisher.disconnect().await
}
