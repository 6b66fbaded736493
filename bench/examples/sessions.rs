//! Makes kept sessions with a subscription each, which then are away: `sessions URL COUNT`. Prints how many a second.
#![expect(clippy::print_stdout, reason = "an example says what it found")]

use std::time::{Duration, Instant};

use mq_client::{Client, Error, QoS};
use tokio::task::JoinSet;

/// Clients that connect at a time.
const AT_ONCE: u32 = 64;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().unwrap_or_default();
    let count: u32 = arguments.next().unwrap_or_default().parse()?;
    let began = Instant::now();
    let mut clients = JoinSet::new();
    for number in 0..count {
        if number >= AT_ONCE {
            clients.join_next().await.transpose()?.transpose()?;
        }
        clients.spawn(make(url.clone(), number));
    }
    while let Some(made) = clients.join_next().await {
        made??;
    }
    let rate = f64::from(count) / began.elapsed().as_secs_f64();
    println!("{rate:.0}");
    Ok(())
}

async fn make(url: String, number: u32) -> Result<(), Error> {
    let client = Client::builder(&url)?
        .client_id(format!("session-{number}"))?
        .clean_start(false)
        .session_expiry(Duration::from_hours(1))
        .build()
        .await?;
    let messages = client
        .subscribe(format!("sessions/{number}"), QoS::AtLeastOnce)
        .await?;
    client.disconnect().await?;
    drop(messages);
    Ok(())
}
