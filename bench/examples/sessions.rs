//! Kept sessions with a subscription each, and retained messages: `sessions make|publish|read|retain URL[,URL..] COUNT`.
//!
//! `make` connects a client for each, subscribes and disconnects; `publish` sends each session a message of QoS 1; `read`
//! connects each client again, at one of the URLs in turn, until its message is there; `retain` publishes so many retained messages
//! of QoS 1. Prints the seconds that it took.
#![expect(clippy::print_stdout, reason = "an example says what it found")]

use std::time::{Duration, Instant};

use mq_client::{Client, ClientBuilder, Error, Outgoing, QoS, Subscription};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

/// Clients that connect at a time.
const AT_ONCE: u32 = 64;

/// Messages of a publisher without an acknowledgement.
const UNDER_WAY: u32 = 256;

/// Clients that come back at a time, as those of a node that has died do.
const COMING_BACK_AT_ONCE: u32 = 512;

/// Time in which each session has its message.
const PATIENCE: Duration = Duration::from_mins(5);

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [what, urls, count] = arguments.as_slice() else {
        return Err("sessions make|publish|read|retain URL[,URL..] COUNT".into());
    };
    let urls: Vec<_> = urls.split(',').map(ToOwned::to_owned).collect();
    let count: u32 = count.parse()?;
    let at_once = match what.as_str() {
        "publish" | "retain" => {
            let began = Instant::now();
            publish(&urls[0], count, what == "retain").await?;
            println!("{:.3}", began.elapsed().as_secs_f64());
            return Ok(());
        }
        "make" => AT_ONCE,
        "read" => COMING_BACK_AT_ONCE,
        other => return Err(format!("`{other}` is not make, publish, read or retain").into()),
    };
    let began = Instant::now();
    let mut clients = JoinSet::new();
    for (number, url) in (0..count).zip(urls.iter().cycle()) {
        if number >= at_once {
            clients.join_next().await.transpose()?.transpose()?;
        }
        let url = url.clone();
        if what == "make" {
            clients.spawn(make(url, number));
        } else {
            clients.spawn(async move {
                let reading = timeout(PATIENCE, read(&url, number)).await;
                reading.map_err(|_| Error::NotConnected)?
            });
        }
    }
    while let Some(done) = clients.join_next().await {
        done??;
    }
    println!("{:.3}", began.elapsed().as_secs_f64());
    Ok(())
}

fn client(url: &str, number: u32) -> Result<ClientBuilder, Error> {
    Ok(Client::builder(url)?
        .client_id(format!("session-{number}"))?
        .clean_start(false)
        .session_expiry(Duration::from_hours(1)))
}

fn topic(number: u32) -> String {
    format!("sessions/{number}")
}

async fn make(url: String, number: u32) -> Result<(), Error> {
    let client = client(&url, number)?.build().await?;
    let messages = client.subscribe(topic(number), QoS::AtLeastOnce).await?;
    client.disconnect().await?;
    drop(messages);
    Ok(())
}

async fn publish(url: &str, count: u32, retain: bool) -> Result<(), Error> {
    let client = Client::builder(url)?.build().await?;
    let mut receipts = JoinSet::new();
    for number in 0..count {
        if number >= UNDER_WAY
            && let Some(Ok(sent)) = receipts.join_next().await
        {
            sent?;
        }
        let topic = if retain {
            format!("retained/{number}")
        } else {
            topic(number)
        };
        let message = Outgoing::to(topic, "waits")?
            .qos(QoS::AtLeastOnce)
            .retain(retain);
        let mut receipt = client.send(message).await?;
        receipts.spawn(async move { receipt.acknowledged().await.map(drop) });
    }
    while let Some(sent) = receipts.join_next().await {
        sent.expect("a receipt is waited for")?;
    }
    client.disconnect().await
}

async fn read(url: &str, number: u32) -> Result<(), Error> {
    loop {
        let client = client(url, number)?;
        let mut messages = client.messages();
        // Refused while the session is still at the node that has died.
        let Ok(client) = client.build().await else {
            sleep(Duration::from_millis(100)).await;
            continue;
        };
        let has_come = came(&mut messages).await;
        let _ = client.disconnect().await;
        if has_come {
            return Ok(());
        }
    }
}

async fn came(messages: &mut Subscription) -> bool {
    matches!(messages.recv().await, Some(message) if &message.payload[..] == b"waits")
}
