//! Requests: each gets its own response, in time, in bounded number, or an error that says why not.

use std::time::Duration;

use mq_client::{Client, Error, Incoming, Outgoing, QoS, ReasonCode, Version};
use mq_codec::{ByteStr, PublishProperties};
use mq_proto::{Delivery, Event, Message, Received, Session};
use tokio::task::JoinHandle;

use crate::util::{Peer, Server, now, text};

const SECOND: Duration = Duration::from_secs(1);

/// Sends a request to `square` in a task of its own, which ends with the response.
fn request(client: &Client, payload: &'static str) -> JoinHandle<Result<Incoming, Error>> {
    let client = client.clone();
    tokio::spawn(async move { client.request("square", payload).await })
}

/// Receives the next request and acknowledges it.
async fn asked(peer: &mut Peer) -> Received {
    let mut received = peer.publish().await;
    peer.ack(received.ticket.take()).await;
    received
}

/// Publishes `payload` as the response to that request.
async fn respond(peer: &mut Peer, request: &Received, payload: &str) {
    let properties = &request.message.properties;
    let topic = properties.response_topic.as_ref().unwrap().as_str();
    let data = properties.correlation_data.clone().unwrap();
    publish(peer, topic, &data, payload).await;
}

async fn publish(peer: &mut Peer, topic: &str, correlation_data: &[u8], payload: &str) {
    let mut message = Message::new(topic.try_into().unwrap(), payload.to_owned());
    message.properties = PublishProperties {
        correlation_data: Some(correlation_data.to_vec().into()),
        ..PublishProperties::default()
    }
    .into();
    let delivery = Delivery::new(message, QoS::AtLeastOnce);
    peer.connection.publish(now(), delivery).unwrap();
    // Until the client has acknowledged, and so dealt with it.
    loop {
        if let Event::Acked { .. } = peer.event().await.unwrap() {
            break;
        }
    }
}

fn payload(answer: Result<Incoming, Error>) -> String {
    answer.unwrap().text().unwrap().to_owned()
}

#[tokio::test(start_paused = true)]
async fn responses_find_their_requests_in_any_order_over_one_subscription() {
    let mut server = Server::bind("order").await;
    let builder = server.builder().client_id("a+1").unwrap();
    let (client, mut peer) = server.pair(builder).await;
    let first = request(&client, "1");
    let subscribe = peer.grant().await;
    assert_eq!(
        subscribe.subscriptions[0].filter.as_str(),
        "mq/responses/a%2B1"
    );
    let one = asked(&mut peer).await;
    let second = request(&client, "2");
    // Nothing else is subscribed to.
    let two = asked(&mut peer).await;
    assert_eq!((text(&one), text(&two)), ("1".into(), "2".into()));
    assert_eq!(one.message.properties.message_expiry_interval, Some(30));
    respond(&mut peer, &two, "4").await;
    respond(&mut peer, &one, "1").await;
    assert_eq!(payload(first.await.unwrap()), "1");
    assert_eq!(payload(second.await.unwrap()), "4");
    assert_eq!(client.unmatched_responses(), 0);
}

#[tokio::test(start_paused = true)]
async fn late_duplicate_and_unknown_responses_are_dropped_and_counted() {
    let mut server = Server::bind("stray").await;
    let builder = server.builder().request_timeout(SECOND);
    let (client, mut peer) = server.pair(builder).await;
    let first = request(&client, "1");
    peer.grant().await;
    let late = asked(&mut peer).await;
    let error = first.await.unwrap().unwrap_err();
    assert!(
        matches!(error, Error::NoResponse { after } if after == SECOND),
        "{error:?}"
    );
    respond(&mut peer, &late, "late").await;
    assert_eq!(client.unmatched_responses(), 1);

    let second = request(&client, "2");
    let twice = asked(&mut peer).await;
    respond(&mut peer, &twice, "4").await;
    respond(&mut peer, &twice, "5").await;
    assert_eq!(payload(second.await.unwrap()), "4");
    assert_eq!(client.unmatched_responses(), 2);

    let third = request(&client, "3");
    let real = asked(&mut peer).await;
    let topic = real.message.properties.response_topic.clone().unwrap();
    let mut guess = real.message.properties.correlation_data.clone().unwrap();
    // The right number without the secret, and other nonsense.
    let number = guess.split_off(8);
    for data in [&number[..], &[0; 16], &[]] {
        publish(&mut peer, topic.as_str(), data, "forged").await;
    }
    assert_eq!(client.unmatched_responses(), 5);
    respond(&mut peer, &real, "9").await;
    assert_eq!(payload(third.await.unwrap()), "9");
}

#[tokio::test(start_paused = true)]
async fn more_requests_than_may_wait_have_their_turn_when_a_place_is_free() {
    let mut server = Server::bind("places").await;
    let (client, mut peer) = server.pair(server.builder().max_requests(1)).await;
    let given_up = request(&client, "1");
    peer.grant().await;
    assert_eq!(text(&asked(&mut peer).await), "1");
    let (second, third) = (request(&client, "2"), request(&client, "3"));
    let early = tokio::time::timeout(SECOND, peer.event()).await;
    assert!(early.is_err(), "{early:?}");
    given_up.abort();
    let two = asked(&mut peer).await;
    assert_eq!(text(&two), "2");
    respond(&mut peer, &two, "4").await;
    assert_eq!(payload(second.await.unwrap()), "4");
    let three = asked(&mut peer).await;
    respond(&mut peer, &three, "9").await;
    assert_eq!(payload(third.await.unwrap()), "9");
}

#[tokio::test(start_paused = true)]
async fn the_wait_for_a_place_counts_as_well() {
    let mut server = Server::bind("turn").await;
    let (client, mut peer) = server.pair(server.builder().max_requests(1)).await;
    let _first = request(&client, "1");
    peer.grant().await;
    asked(&mut peer).await;
    let second = Outgoing::to("square", "2").unwrap();
    let error = client.request_with(second, SECOND).await.unwrap_err();
    assert!(matches!(error, Error::NoResponse { .. }), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn a_version_before_5_is_refused_at_once() {
    let mut server = Server::bind("old").await;
    let (client, _peer) = server.pair(server.builder().version(Version::V3_1_1)).await;
    let error = client.request("square", "1").await.unwrap_err();
    assert!(matches!(error, Error::NeedsVersion5 { .. }), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn a_request_outlives_its_connection_and_the_servers_session() {
    let mut server = Server::bind("again").await;
    let (client, mut peer) = server.pair(server.builder()).await;
    let asking = request(&client, "1");
    peer.grant().await;
    let before = peer.publish().await;
    assert_eq!(text(&before), "1");
    // Not acknowledged, so it comes again. One more request leaves before CONNACK says whether the server
    // has kept the session.
    drop(peer);
    let second = request(&client, "2");
    let mut peer = server.link().await;
    peer.connect().await;
    peer.accept(Session::new(), false).await;
    // Responses have somewhere to go before anybody can answer; it is asked for once.
    peer.grant().await;
    let requests = [asked(&mut peer).await, asked(&mut peer).await];
    for request in &requests {
        let n = text(request);
        respond(&mut peer, request, &n).await;
    }
    assert_eq!(payload(asking.await.unwrap()), "1");
    assert_eq!(payload(second.await.unwrap()), "2");
}

#[tokio::test(start_paused = true)]
async fn a_refused_response_topic_fails_the_requests_and_the_next_asks_again() {
    let mut server = Server::bind("refused").await;
    let (client, mut peer) = server.pair(server.builder()).await;
    let asking = [request(&client, "1"), request(&client, "2")];
    let subscribe = peer.subscribe().await;
    peer.suback(subscribe.packet_id, vec![ReasonCode::NotAuthorized])
        .await;
    for asking in asking {
        let error = asking.await.unwrap().unwrap_err();
        assert!(
            matches!(
                error,
                Error::SubscribeRefused {
                    reason: ReasonCode::NotAuthorized
                }
            ),
            "{error:?}"
        );
    }
    let third = request(&client, "3");
    peer.grant().await;
    let three = asked(&mut peer).await;
    respond(&mut peer, &three, "9").await;
    assert_eq!(payload(third.await.unwrap()), "9");
}

#[tokio::test(start_paused = true)]
async fn a_subscription_that_takes_the_response_topic_over_gives_way_to_the_next_request() {
    let mut server = Server::bind("over").await;
    let builder = server.builder().response_topic("answers").unwrap();
    let (client, mut peer) = server.pair(builder).await;
    let first = request(&client, "1");
    peer.grant().await;
    let one = asked(&mut peer).await;
    respond(&mut peer, &one, "1").await;
    first.await.unwrap().unwrap();
    let (taken, _) = tokio::join!(client.subscribe("answers", QoS::AtLeastOnce), peer.grant());
    let mut taken = taken.unwrap();
    let second = request(&client, "2");
    peer.grant().await;
    assert!(taken.recv().await.is_none());
    let two = asked(&mut peer).await;
    respond(&mut peer, &two, "4").await;
    assert_eq!(payload(second.await.unwrap()), "4");
}

#[tokio::test(start_paused = true)]
async fn a_topic_without_a_subscriber_is_told_at_once() {
    let mut server = Server::bind("nobody").await;
    let (client, mut peer) = server.pair(server.builder()).await;
    for (reason, is_right) in [
        (
            ReasonCode::NoMatchingSubscribers,
            (|error| matches!(error, Error::NoResponder)) as fn(Error) -> bool,
        ),
        (ReasonCode::NotAuthorized, |error| {
            matches!(error, Error::PublishRefused { .. })
        }),
    ] {
        let asking = request(&client, "1");
        if reason == ReasonCode::NoMatchingSubscribers {
            peer.grant().await;
        }
        let received = peer.publish().await;
        let ticket = received.ticket.unwrap();
        peer.connection.ack(now(), ticket, reason);
        peer.flush().await;
        let error = asking.await.unwrap().unwrap_err();
        assert!(is_right(error));
    }
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_client_ends_its_requests() {
    let mut server = Server::bind("end").await;
    let (client, mut peer) = server.pair(server.builder()).await;
    let asking = request(&client, "1");
    peer.grant().await;
    asked(&mut peer).await;
    let serving = tokio::spawn(async move { peer.serve().await });
    client.disconnect().await.unwrap();
    assert!(matches!(asking.await.unwrap(), Err(Error::Closed)));
    assert!(matches!(
        client.request("square", "2").await,
        Err(Error::Closed)
    ));
    serving.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn with_manual_acknowledgement_responses_are_acknowledged_all_the_same() {
    let mut server = Server::bind("manual").await;
    let (client, mut peer) = server.pair(server.builder().manual_ack(true)).await;
    let asking = request(&client, "1");
    peer.grant().await;
    let one = asked(&mut peer).await;
    // Waits for the acknowledgement.
    respond(&mut peer, &one, "1").await;
    assert_eq!(payload(asking.await.unwrap()), "1");
}

#[tokio::test(start_paused = true)]
async fn a_responder_answers_where_and_as_it_was_asked() {
    let mut server = Server::bind("responder").await;
    let (client, mut peer) = server.pair(server.builder()).await;
    let (questions, _) = tokio::join!(client.subscribe("square", QoS::AtLeastOnce), peer.grant());
    let mut questions = questions.unwrap();
    let mut message = Message::new("square".try_into().unwrap(), "12");
    message.properties = PublishProperties {
        response_topic: Some(ByteStr::new("back/here").unwrap()),
        correlation_data: Some("which".into()),
        content_type: Some(ByteStr::new("number").unwrap()),
        user_properties: vec![(ByteStr::new("a").unwrap(), ByteStr::new("b").unwrap())],
        ..PublishProperties::default()
    }
    .into();
    let delivery = Delivery::new(message, QoS::AtLeastOnce);
    peer.connection.publish(now(), delivery).unwrap();
    peer.flush().await;
    let question = questions.recv().await.unwrap();
    assert_eq!(question.content_type(), Some("number"));
    assert_eq!(question.user_properties().collect::<Vec<_>>(), [("a", "b")]);
    client.respond(&question, "144").await.unwrap();
    let answer = loop {
        if let Event::Publish(answer) = peer.event().await.unwrap() {
            break answer;
        }
    };
    assert_eq!(answer.message.topic.as_str(), "back/here");
    assert_eq!(answer.qos, QoS::AtLeastOnce);
    let data = answer.message.properties.correlation_data.clone();
    assert_eq!(data.as_deref(), Some(&b"which"[..]));
    assert_eq!(text(&answer), "144");

    peer.send("square", "13", QoS::AtMostOnce, None).await;
    let plain = questions.recv().await.unwrap();
    let refused = client.respond(&plain, "169").await;
    assert!(matches!(refused, Err(Error::NotARequest)));
}
