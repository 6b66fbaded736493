//! Expectations of a client, which fail the test if they are not met.

use std::time::Duration;

use mq_client::{Client, ClientBuilder, Error, Incoming, ReasonCode, Reconnect, Subscription};

/// Makes a builder of a client whose session outlives it and the broker, and which is back soon after a loss.
///
/// # Panics
/// If it is no URL, or no client identifier.
pub fn kept(url: &str, client_id: &str) -> ClientBuilder {
    let builder = Client::builder(url).expect("a URL");
    let builder = builder.client_id(client_id).expect("a client identifier");
    builder
        .clean_start(false)
        .session_expiry(Duration::from_hours(24))
        .reconnect(Reconnect {
            initial: Duration::from_millis(5),
            max: Duration::from_millis(20),
            jitter: 0.0,
            ..Reconnect::default()
        })
}

/// Waits for the next message.
///
/// # Panics
/// If no message comes within 20 s, or the subscription has ended.
pub async fn next(messages: &mut Subscription) -> Incoming {
    tokio::time::timeout(Duration::from_secs(20), messages.recv())
        .await
        .expect("a message should come")
        .expect("the client is connected")
}

/// Returns the reason with which the broker refuses the client.
///
/// # Panics
/// If the broker lets the client in, or does not answer.
pub async fn refused(builder: ClientBuilder) -> ReasonCode {
    match builder.build().await {
        Err(Error::Refused { reason }) => reason,
        other => panic!("it should be refused, not {other:?}"),
    }
}

/// Connects and disconnects again.
///
/// # Panics
/// If the broker refuses the client.
pub async fn comes_and_goes(builder: ClientBuilder) {
    let client = builder.build().await.expect("it should be let in");
    client.disconnect().await.expect("it should leave in order");
}
