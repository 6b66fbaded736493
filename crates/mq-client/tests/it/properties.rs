//! Properties of MQTT 5.0: values of the builders' methods arrive and can be read.

use std::time::Duration;

use mq_client::{Outgoing, QoS, RetainHandling, SubscribeOptions, Will};
use mq_codec::{PublishProperties, WillProperties};
use mq_proto::Session;

use crate::util::Server;

#[tokio::test(start_paused = true)]
async fn a_messages_properties_arrive_as_they_were_given() {
    let mut server = Server::bind("properties").await;
    let (client, mut peer) = server.pair(server.builder()).await;
    let message = Outgoing::to("a", "{}")
        .unwrap()
        .content_type("application/json")
        .unwrap()
        .response_topic("back")
        .unwrap()
        .correlation_data("which")
        .user_property("n", "1")
        .unwrap()
        .user_property("n", "2")
        .unwrap()
        .message_expiry(Duration::from_millis(1_001))
        .payload_is_utf8(true);
    client.send(message).await.unwrap();
    let received = peer.publish().await;
    let text = |text: &str| text.try_into().unwrap();
    let expected = PublishProperties {
        content_type: Some(text("application/json")),
        response_topic: Some(text("back")),
        correlation_data: Some("which".into()),
        user_properties: vec![(text("n"), text("1")), (text("n"), text("2"))],
        message_expiry_interval: Some(2),
        payload_is_utf8: Some(true),
        ..PublishProperties::default()
    };
    assert_eq!(*received.message.properties, expected);
}

#[tokio::test(start_paused = true)]
async fn times_that_a_property_cannot_hold_are_the_most_that_it_can() {
    let mut server = Server::bind("longest").await;
    let will = Will::to("state", "").unwrap().delay(Duration::MAX);
    let builder = server.builder().will(will).keep_alive(Duration::MAX);
    let client = builder.start().unwrap();
    let mut peer = server.link().await;
    let connect = peer.connect().await;
    assert_eq!(connect.keep_alive, u16::MAX);
    let delay = connect.will.unwrap().properties.will_delay_interval;
    assert_eq!(delay, Some(u32::MAX));
    peer.accept(Session::new(), false).await;
    let message = Outgoing::to("a", "").unwrap().message_expiry(Duration::MAX);
    client.send(message).await.unwrap();
    let expiry = peer
        .publish()
        .await
        .message
        .properties
        .message_expiry_interval;
    // One second may have begun in the queue.
    assert!(expiry >= Some(u32::MAX - 1), "{expiry:?}");
    let request = Outgoing::to("a", "").unwrap();
    let asking = tokio::spawn(async move { client.request_with(request, Duration::MAX).await });
    peer.grant().await;
    assert_eq!(
        peer.publish()
            .await
            .message
            .properties
            .message_expiry_interval,
        Some(u32::MAX)
    );
    asking.abort();
}

#[test]
fn an_invalid_topic_or_text_is_refused_by_the_method_that_takes_it() {
    let message = || Outgoing::to("a", "").unwrap();
    assert!(message().response_topic("a/+").is_err());
    assert!(message().content_type("nul\0").is_err());
    assert!(message().user_property("name", "nul\0").is_err());
    assert!(SubscribeOptions::to("a/#/b", QoS::AtMostOnce).is_err());
}

#[tokio::test(start_paused = true)]
async fn connect_and_will_carry_their_properties() {
    let mut server = Server::bind("will").await;
    let will = Will::to("state", "offline")
        .unwrap()
        .qos(QoS::AtLeastOnce)
        .retain(true)
        .delay(Duration::from_secs(10))
        .message_expiry(Duration::from_mins(1))
        .content_type("text/plain")
        .unwrap()
        .user_property("why", "lost")
        .unwrap();
    let builder = server
        .builder()
        .will(will)
        .user_property("site", "north")
        .unwrap()
        .request_response_information(true)
        .request_problem_information(false)
        .receive_maximum(7.try_into().unwrap())
        .maximum_packet_size(70_000.try_into().unwrap());
    let _client = builder.start().unwrap();
    let mut peer = server.link().await;
    let connect = peer.connect().await;
    peer.accept(Session::new(), false).await;
    let properties = connect.properties;
    let text = |text: &str| text.try_into().unwrap();
    assert_eq!(properties.user_properties, [(text("site"), text("north"))]);
    assert_eq!(properties.request_response_information, Some(true));
    assert_eq!(properties.request_problem_information, Some(false));
    assert_eq!(properties.receive_maximum.unwrap().get(), 7);
    assert_eq!(properties.maximum_packet_size.unwrap().get(), 70_000);
    let will = connect.will.unwrap();
    assert_eq!((will.qos, will.retain), (QoS::AtLeastOnce, true));
    let expected = WillProperties {
        will_delay_interval: Some(10),
        message_expiry_interval: Some(60),
        content_type: Some(text("text/plain")),
        user_properties: vec![(text("why"), text("lost"))],
        ..WillProperties::default()
    };
    assert_eq!(will.properties, expected);
}

#[tokio::test(start_paused = true)]
async fn each_filter_has_options_of_its_own() {
    let mut server = Server::bind("options").await;
    let (client, mut peer) = server.pair(server.builder()).await;
    let options = SubscribeOptions::to("a", QoS::AtLeastOnce)
        .unwrap()
        .no_local(true)
        .and_to("b", QoS::ExactlyOnce)
        .unwrap()
        .retain_as_published(true)
        .retain_handling(RetainHandling::DoNotSend)
        .user_property("n", "v")
        .unwrap();
    let (subscription, subscribe) = tokio::join!(client.subscribe_with(options), peer.grant());
    subscription.unwrap();
    let [a, b] = &subscribe.subscriptions[..] else {
        panic!("{subscribe:?}");
    };
    assert!(a.options.no_local && !a.options.retain_as_published);
    assert_eq!(a.options.retain_handling, RetainHandling::Send);
    assert!(!b.options.no_local && b.options.retain_as_published);
    assert_eq!(b.options.retain_handling, RetainHandling::DoNotSend);
    assert_eq!(b.options.qos, QoS::ExactlyOnce);
    assert_eq!(subscribe.properties.user_properties.len(), 1);
}

#[cfg(feature = "json")]
#[tokio::test(start_paused = true)]
async fn json_goes_there_and_back() {
    use mq_client::Error;

    let mut server = Server::bind("json").await;
    let (client, mut peer) = server.pair(server.builder()).await;
    let (stream, _) = tokio::join!(client.subscribe("a", QoS::AtMostOnce), peer.grant());
    let mut stream = stream.unwrap();
    let reading = vec![("inside".to_owned(), 21.5), ("outside".to_owned(), 7.25)];
    client
        .send(Outgoing::json("a", &reading).unwrap())
        .await
        .unwrap();
    let sent = peer.publish().await;
    let properties = &sent.message.properties;
    assert_eq!(properties.content_type.as_deref(), Some("application/json"));
    peer.send("a", &crate::util::text(&sent), QoS::AtMostOnce, None)
        .await;
    let received = stream.recv().await.unwrap();
    let read: Vec<(String, f64)> = received.json().unwrap();
    assert_eq!(read, reading);
    let error = received.json::<bool>().unwrap_err();
    assert!(matches!(error, Error::Payload { .. }), "{error:?}");
    // JSON has no keys but strings.
    let map = std::collections::BTreeMap::from([(vec![1], 1)]);
    assert!(matches!(
        Outgoing::json("a", &map),
        Err(Error::Payload { .. })
    ));
}
