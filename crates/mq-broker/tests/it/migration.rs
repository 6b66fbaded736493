//! A broker that goes on from a store of an earlier format.

use std::{io::Read as _, sync::Arc, time::Duration};

use mq_broker::{
    Broker, DiskStore, Durability, Settings,
    auth::{Access, Authenticator, BoxFuture, LogIn, Principal, Refusal},
};
use mq_client::{Client, ClientBuilder, Error, QoS, ReasonCode, Reconnect};

/// Lets everybody in by the name that they give.
#[derive(Debug)]
struct ByName;

impl Authenticator for ByName {
    fn authenticate<'a>(&'a self, log_in: &'a LogIn) -> BoxFuture<'a, Result<Principal, Refusal>> {
        let principal = Principal::new(log_in.user_name.clone(), &log_in.client_id);
        Box::pin(std::future::ready(Ok(principal)))
    }
}

const URL: &str = "mem://migration";

fn device(user: &str) -> ClientBuilder {
    Client::builder(URL)
        .unwrap()
        .client_id("device")
        .unwrap()
        .credentials(user, "")
        .unwrap()
        .clean_start(false)
        .session_expiry(Duration::from_hours(1))
        .reconnect(Reconnect::never())
}

#[tokio::test]
async fn the_first_user_that_takes_up_a_session_without_one_has_it_from_then_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let mut bytes = Vec::new();
    let fixture = &include_bytes!("../data/store-format-1.gz")[..];
    flate2::read::GzDecoder::new(fixture)
        .read_to_end(&mut bytes)
        .unwrap();
    std::fs::write(&path, bytes).unwrap();
    for restarted in [false, true] {
        let mut settings = Settings::new(vec![URL.parse().unwrap()]);
        let store = DiskStore::open(&path, Durability::Always).unwrap();
        settings.store = Some(Arc::new(store).into());
        settings.access = Access::authenticated(ByName);
        let broker = Broker::start(settings).await.unwrap();
        if !restarted {
            let mut ann = device("ann");
            let mut messages = ann.subscribe_early("plant/#", QoS::ExactlyOnce).unwrap();
            let ann = ann.build().await.unwrap();
            assert!(ann.last_connected().unwrap().session_present);
            let mut kept = Vec::new();
            while kept.len() < 4 {
                let message = messages.recv().await.unwrap();
                // The retained one comes with the subscription, when it likes.
                if !message.retain {
                    kept.push(message.payload);
                }
            }
            assert_eq!(kept, ["in flight 1", "in flight 2", "queued 1", "queued 2"]);
            ann.disconnect().await.unwrap();
        }
        match device("bob").build().await {
            Err(Error::Refused { reason }) => {
                assert_eq!(reason, ReasonCode::ClientIdentifierNotValid);
            }
            other => panic!("it should be refused, not {other:?}"),
        }
        broker.shutdown().await;
    }
}
