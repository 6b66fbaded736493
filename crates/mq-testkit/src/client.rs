//! What tests expect of a client, and fail without.

use std::time::Duration;

use mq_client::{ClientBuilder, Error, Incoming, ReasonCode, Subscription};

/// The next message.
///
/// # Panics
/// If none comes within 20 s, or the subscription has ended.
pub async fn next(messages: &mut Subscription) -> Incoming {
    tokio::time::timeout(Duration::from_secs(20), messages.recv())
        .await
        .expect("a message should come")
        .expect("the client is connected")
}

/// Why the broker does not let it in.
///
/// # Panics
/// If it does, or is not there.
pub async fn refused(builder: ClientBuilder) -> ReasonCode {
    match builder.build().await {
        Err(Error::Refused { reason }) => reason,
        other => panic!("it should be refused, not {other:?}"),
    }
}

/// Gets in and leaves again.
///
/// # Panics
/// If the broker does not let it.
pub async fn comes_and_goes(builder: ClientBuilder) {
    let client = builder.build().await.expect("it should be let in");
    client.disconnect().await.expect("it should leave in order");
}
