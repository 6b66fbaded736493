//! Streams: the messages that they get, and slow and dropped streams.

use std::time::Duration;

use mq_client::{
    Error, Event, QoS, ReasonCode, SubscribeOptions, Subscription, TopicFilter, Version,
};
use mq_proto::Session;

use crate::util::{Peer, Server};

const SECOND: Duration = Duration::from_secs(1);

fn filter(text: &str) -> TopicFilter {
    TopicFilter::new(text).unwrap()
}

async fn subscribe(client: &mq_client::Client, peer: &mut Peer, filter: &str) -> Subscription {
    tokio::join!(client.subscribe(filter, QoS::ExactlyOnce), peer.grant())
        .0
        .unwrap()
}

async fn next(stream: &mut Subscription) -> String {
    let message = tokio::time::timeout(SECOND, stream.recv())
        .await
        .unwrap()
        .unwrap();
    String::from_utf8(message.payload.to_vec()).unwrap()
}

async fn is_quiet(stream: &mut Subscription) -> bool {
    tokio::time::timeout(SECOND, stream.recv()).await.is_err()
}

/// Returns `true` if the stream has ended, and all of it was read.
async fn has_ended(stream: &mut Subscription) -> bool {
    let next = tokio::time::timeout(SECOND, stream.recv()).await;
    next.is_ok_and(|message| message.is_none())
}

/// Waits until the client has acknowledged that many messages.
async fn acknowledges(peer: &mut Peer, count: usize) {
    for _ in 0..count {
        let event = tokio::time::timeout(SECOND, peer.event()).await;
        let event = event.expect("the client should acknowledge");
        assert!(
            matches!(event, Some(mq_proto::Event::Acked { .. })),
            "{event:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn messages_find_their_stream_by_identifier_or_by_filter() {
    for version in [Version::V5, Version::V3_1_1] {
        let mut server = Server::bind("find").await;
        let (client, mut peer) = server.pair(server.builder().version(version)).await;
        let mut one = subscribe(&client, &mut peer, "a/+").await;
        let mut two = subscribe(&client, &mut peer, "b/#").await;
        let ids = version == Version::V5;
        peer.send("a/1", "one", QoS::AtLeastOnce, ids.then_some(1))
            .await;
        peer.send("b/2", "two", QoS::ExactlyOnce, ids.then_some(2))
            .await;
        peer.send("c/3", "nobody's", QoS::AtMostOnce, None).await;
        assert_eq!(next(&mut one).await, "one");
        assert_eq!(next(&mut two).await, "two");
        assert!(is_quiet(&mut one).await && is_quiet(&mut two).await);
        assert_eq!(client.unmatched(), 1);
        let mut rest = client.messages();
        peer.send("c/3", "somebody's", QoS::AtMostOnce, None).await;
        assert_eq!(next(&mut rest).await, "somebody's");
    }
}

#[tokio::test(start_paused = true)]
async fn a_full_stream_stops_the_link_and_withholds_acknowledgements() {
    let mut server = Server::bind("full").await;
    let (client, mut peer) = server.pair(server.builder()).await;
    let options = SubscribeOptions::new(filter("a"), QoS::AtLeastOnce).capacity(4);
    let (stream, _) = tokio::join!(client.subscribe_with(options), peer.grant());
    let mut stream = stream.unwrap();
    for n in 0..10 {
        peer.send("a", &n.to_string(), QoS::AtLeastOnce, Some(1))
            .await;
    }
    let serving = tokio::spawn(async move {
        let mut acked = 0;
        while let Ok(event) = tokio::time::timeout(10 * SECOND, peer.event()).await {
            acked += usize::from(matches!(event, Some(mq_proto::Event::Acked { .. })));
        }
        (acked, peer)
    });
    let (acked, mut peer) = serving.await.unwrap();
    assert_eq!(acked, 4);
    // Not read at all, however much is sent; and the connection stays alive meanwhile.
    for n in 10..100 {
        peer.send("a", &n.to_string(), QoS::AtLeastOnce, Some(1))
            .await;
    }
    let serving = tokio::spawn(async move {
        let ended = tokio::time::timeout(600 * SECOND, peer.closed()).await;
        assert!(ended.is_err());
        peer
    });
    let _peer = serving.await.unwrap();
    for n in 0..100 {
        assert_eq!(next(&mut stream).await, n.to_string());
    }
    assert!(client.is_connected());
}

#[tokio::test(start_paused = true)]
async fn dropping_a_full_stream_lets_the_others_go_on() {
    let mut server = Server::bind("drop_full").await;
    let (client, mut peer) = server.pair(server.builder()).await;
    let options = SubscribeOptions::new(filter("a"), QoS::AtLeastOnce).capacity(1);
    let (slow, _) = tokio::join!(client.subscribe_with(options), peer.grant());
    let mut other = subscribe(&client, &mut peer, "b").await;
    for n in 0..5 {
        peer.send("a", &n.to_string(), QoS::AtLeastOnce, Some(1))
            .await;
    }
    tokio::time::sleep(SECOND).await;
    peer.send("b", "after", QoS::AtMostOnce, Some(2)).await;
    assert!(is_quiet(&mut other).await);
    drop(slow);
    assert_eq!(next(&mut other).await, "after");
    let mut acked = 0;
    while acked < 5 {
        match peer.event().await.unwrap() {
            mq_proto::Event::Acked { .. } => acked += 1,
            mq_proto::Event::Unsubscribe { unsubscribe, .. } => {
                assert_eq!(&*unsubscribe.filters[0], "a");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn dropping_a_stream_unsubscribes_and_unsubscribing_ends_it() {
    let mut server = Server::bind("unsubscribe").await;
    let (client, mut peer) = server.pair(server.builder()).await;
    let dropped = subscribe(&client, &mut peer, "a").await;
    drop(dropped);
    assert_eq!(peer.unsubscribe().await, ["a"]);
    let mut ended = subscribe(&client, &mut peer, "b").await;
    let (done, filters) = tokio::join!(client.unsubscribe("b"), peer.unsubscribe());
    done.unwrap();
    assert_eq!(filters, ["b"]);
    assert!(ended.recv().await.is_none());
    drop(ended);
    assert!(tokio::time::timeout(SECOND, peer.event()).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_filter_that_is_subscribed_to_right_behind_its_end_belongs_to_the_new_stream() {
    let mut server = Server::bind("end_and_again").await;
    let (client, mut peer) = server.pair(server.builder()).await;
    let mut first = subscribe(&client, &mut peer, "a").await;
    // The driver takes both requests together.
    let serving = async {
        let ended = peer.unsubscribe().await;
        (ended, peer.grant().await)
    };
    let (ended, second, requests) = tokio::join!(
        client.unsubscribe("a"),
        client.subscribe("a", QoS::AtLeastOnce),
        tokio::time::timeout(SECOND, serving)
    );
    ended.unwrap();
    let (filters, subscribe) = requests.expect("SUBSCRIBE should leave behind UNSUBSCRIBE");
    assert_eq!(filters, ["a"]);
    assert_eq!(&*subscribe.subscriptions[0].filter, "a");
    assert!(has_ended(&mut first).await);
    let mut second = second.unwrap();
    let id = second.id().map(mq_client::SubscriptionId::get);
    peer.send("a", "x", QoS::AtMostOnce, id).await;
    assert_eq!(next(&mut second).await, "x");
}

#[tokio::test(start_paused = true)]
async fn messages_read_together_with_unsuback_reach_their_stream() {
    for version in [Version::V5, Version::V3_1_1] {
        let mut server = Server::bind("with_unsuback").await;
        let (client, mut peer) = server.pair(server.builder().version(version)).await;
        let options = SubscribeOptions::new(filter("a"), QoS::AtLeastOnce).capacity(1);
        let (stream, _) = tokio::join!(client.subscribe_with(options), peer.grant());
        let mut stream = stream.unwrap();
        let id = (version == Version::V5).then_some(1);
        let (done, ()) = tokio::join!(client.unsubscribe("a"), async {
            let unsubscribe = peer.unsubscribed().await;
            for n in 0..3 {
                peer.put("a", &n.to_string(), QoS::AtLeastOnce, id);
            }
            peer.confirm(&unsubscribe).await;
        });
        done.unwrap();
        // There is room for one at a time.
        for n in 0..3 {
            acknowledges(&mut peer, 1).await;
            assert_eq!(next(&mut stream).await, n.to_string());
        }
        assert!(has_ended(&mut stream).await);
        assert_eq!(client.unmatched(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn messages_read_together_with_the_suback_of_a_successor_reach_their_stream() {
    let mut server = Server::bind("with_suback").await;
    let (client, mut peer) = server.pair(server.builder()).await;
    let mut first = subscribe(&client, &mut peer, "a").await;
    let (second, ()) = tokio::join!(client.subscribe("a", QoS::AtLeastOnce), async {
        let asked = peer.subscribe().await;
        peer.put("a", "before", QoS::AtLeastOnce, [1]);
        let granted = vec![ReasonCode::GrantedQos1];
        peer.suback(asked.packet_id, granted).await;
    });
    let mut second = second.unwrap();
    assert_eq!(next(&mut first).await, "before");
    assert!(has_ended(&mut first).await);
    acknowledges(&mut peer, 1).await;
    assert!(is_quiet(&mut second).await);
}

#[tokio::test(start_paused = true)]
async fn unmatched_messages_that_wait_for_a_dropped_stream_go_to_the_next_or_are_counted() {
    let mut server = Server::bind("unmatched_waiting").await;
    let (client, mut peer) = server.pair(server.builder()).await;
    // As many as a stream holds, and six more.
    let first = client.messages();
    for n in 0..1030 {
        peer.send("c", &n.to_string(), QoS::AtMostOnce, None).await;
    }
    tokio::time::sleep(SECOND).await;
    let mut second = client.messages();
    drop(first);
    for n in 1024..1030 {
        assert_eq!(next(&mut second).await, n.to_string());
    }
    assert_eq!(client.unmatched(), 0);
    for n in 0..1030 {
        peer.send("c", &n.to_string(), QoS::AtMostOnce, None).await;
    }
    tokio::time::sleep(SECOND).await;
    drop(second);
    tokio::time::sleep(SECOND).await;
    assert_eq!(client.unmatched(), 6);
}

#[tokio::test(start_paused = true)]
async fn a_second_subscription_takes_the_filter_over() {
    let mut server = Server::bind("take_over").await;
    let (client, mut peer) = server.pair(server.builder()).await;
    let mut first = subscribe(&client, &mut peer, "a").await;
    let mut second = subscribe(&client, &mut peer, "a").await;
    assert!(first.recv().await.is_none());
    drop(first);
    peer.send("a", "x", QoS::AtMostOnce, Some(2)).await;
    assert_eq!(next(&mut second).await, "x");
    assert!(tokio::time::timeout(SECOND, peer.event()).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_refused_subscription_is_an_error() {
    let mut server = Server::bind("sub_refused").await;
    let (client, mut peer) = server.pair(server.builder()).await;
    let options =
        SubscribeOptions::new(filter("a"), QoS::AtLeastOnce).and(filter("b"), QoS::AtLeastOnce);
    let reasons = [ReasonCode::NotAuthorized, ReasonCode::GrantedQos1];
    let (stream, ()) = tokio::join!(client.subscribe_with(options.clone()), async {
        let asked = peer.subscribe().await;
        peer.suback(asked.packet_id, reasons.to_vec()).await;
    });
    assert_eq!(stream.unwrap().granted(), reasons);
    // Only what was granted is ended.
    assert_eq!(peer.unsubscribe().await, ["b"]);
    let (refused, ()) = tokio::join!(client.subscribe_with(options), async {
        let asked = peer.subscribe().await;
        peer.suback(asked.packet_id, vec![ReasonCode::NotAuthorized; 2])
            .await;
    });
    let reason = ReasonCode::NotAuthorized;
    assert!(matches!(refused, Err(Error::SubscribeRefused { reason: r }) if r == reason));
}

#[tokio::test(start_paused = true)]
async fn with_manual_acknowledgement_the_application_decides() {
    let mut server = Server::bind("manual").await;
    let (client, mut peer) = server.pair(server.builder().manual_ack(true)).await;
    let mut stream = subscribe(&client, &mut peer, "a").await;
    for n in 0..3 {
        peer.send("a", &n.to_string(), QoS::AtLeastOnce, Some(1))
            .await;
    }
    let mut first = stream.recv().await.unwrap();
    let mut second = stream.recv().await.unwrap();
    assert!(tokio::time::timeout(SECOND, peer.event()).await.is_err());
    second.acknowledge(ReasonCode::QuotaExceeded).unwrap();
    first.ack().await.unwrap();
    let mut reasons = Vec::new();
    for _ in 0..2 {
        let Some(mq_proto::Event::Acked { reason, .. }) = peer.event().await else {
            panic!("expected PUBACK");
        };
        reasons.push(reason);
    }
    assert_eq!(reasons, [ReasonCode::Success, ReasonCode::QuotaExceeded]);

    // A ticket of a lost connection acknowledges nothing on the next one.
    let mut stale = stream.recv().await.unwrap();
    let session = peer.connection.into_session();
    drop(peer.link);
    let mut peer = server.link().await;
    peer.connect().await;
    peer.accept(session, true).await;
    assert!(!is_quiet(&mut stream).await);
    stale.ack().await.unwrap();
    assert!(tokio::time::timeout(SECOND, peer.event()).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn messages_not_taken_before_a_loss_arrive_once_more_not_twice() {
    let mut server = Server::bind("staged_lost").await;
    let (client, mut peer) = server.pair(server.builder()).await;
    let options = SubscribeOptions::new(filter("a"), QoS::ExactlyOnce).capacity(1);
    let (stream, _) = tokio::join!(client.subscribe_with(options), peer.grant());
    let mut stream = stream.unwrap();
    for n in 0..3 {
        peer.send("a", &n.to_string(), QoS::ExactlyOnce, Some(1))
            .await;
    }
    // The first is in the stream and acknowledged; the others find no room.
    let released = peer.event().await.unwrap();
    assert!(matches!(released, mq_proto::Event::Released { .. }));
    let waited = tokio::time::timeout(SECOND, peer.event()).await;
    assert!(waited.is_err(), "{waited:?}");
    let session = peer.connection.into_session();
    drop(peer.link);
    let (mut peer, first) = tokio::join!(
        async {
            // The client reads again, sees the end, and connects anew.
            let mut peer = server.link().await;
            peer.connect().await;
            peer.accept(session, true).await;
            peer
        },
        next(&mut stream)
    );
    let serving = tokio::spawn(async move { peer.closed().await });
    let mut rest = vec![first];
    while let Ok(Some(message)) = tokio::time::timeout(5 * SECOND, stream.recv()).await {
        rest.push(String::from_utf8(message.payload.to_vec()).unwrap());
    }
    assert_eq!(rest, ["0", "1", "2"]);
    serving.abort();
}

#[tokio::test(start_paused = true)]
async fn a_message_that_repeats_a_subscription_identifier_comes_once() {
    let mut server = Server::bind("repeated_identifier").await;
    let (client, mut peer) = server.pair(server.builder()).await;
    let mut stream = subscribe(&client, &mut peer, "a").await;
    peer.put("a", "x", QoS::AtLeastOnce, [1, 1]);
    peer.flush().await;
    assert_eq!(next(&mut stream).await, "x");
    acknowledges(&mut peer, 1).await;
    assert!(is_quiet(&mut stream).await);
}

#[tokio::test(start_paused = true)]
async fn a_message_of_two_streams_comes_once_to_each_though_the_link_is_lost_while_one_is_full() {
    let mut server = Server::bind("overlapping").await;
    let (client, mut peer) = server.pair(server.builder()).await;
    let mut wide = subscribe(&client, &mut peer, "a/#").await;
    let options = SubscribeOptions::new(filter("a/+"), QoS::ExactlyOnce).capacity(1);
    let (narrow, _) = tokio::join!(client.subscribe_with(options), peer.grant());
    let mut narrow = narrow.unwrap();
    for n in 0..2 {
        peer.send("a/b", &n.to_string(), QoS::ExactlyOnce, None)
            .await;
    }
    for n in 0..2 {
        assert_eq!(next(&mut wide).await, n.to_string());
    }
    let session = peer.connection.into_session();
    drop(peer.link);
    client.reconnect().unwrap();
    let mut peer = server.link().await;
    peer.connect().await;
    // The server sends again what it knows nothing of.
    peer.accept(session, true).await;
    let serving = tokio::spawn(async move { peer.closed().await });
    for n in 0..2 {
        assert_eq!(next(&mut narrow).await, n.to_string());
    }
    assert!(is_quiet(&mut narrow).await && is_quiet(&mut wide).await);
    assert_eq!(client.unmatched(), 0);
    serving.abort();
}

#[tokio::test(start_paused = true)]
async fn a_full_stream_does_not_keep_its_client_from_connecting_again() {
    let mut server = Server::bind("full_again").await;
    let (client, mut peer) = server.pair(server.builder()).await;
    let mut events = client.events();
    let options = SubscribeOptions::new(filter("a"), QoS::AtMostOnce).capacity(1);
    let (stream, _) = tokio::join!(client.subscribe_with(options), peer.grant());
    let mut stream = stream.unwrap();
    for n in 0..2 {
        peer.send("a", &n.to_string(), QoS::AtMostOnce, Some(1))
            .await;
    }
    tokio::time::sleep(SECOND).await;
    client.reconnect().unwrap();
    let _peer = server.client().await;
    let connected = async {
        loop {
            if let Event::Connected(_) = events.recv().await.unwrap() {
                break;
            }
        }
    };
    let waited = tokio::time::timeout(SECOND, connected).await;
    waited.expect("CONNACK should be read");
    for n in 0..2 {
        assert_eq!(next(&mut stream).await, n.to_string());
    }
}

#[tokio::test(start_paused = true)]
async fn a_subscription_that_is_given_up_while_offline_ends_at_the_server() {
    let mut server = Server::bind("given_up").await;
    let (client, mut peer) = server.pair(server.builder()).await;
    let mut events = client.events();
    {
        let subscribing = client.subscribe("a", QoS::AtLeastOnce);
        tokio::pin!(subscribing);
        tokio::select! {
            _ = &mut subscribing => panic!("not granted yet"),
            _ = peer.subscribe() => {}
        }
        drop(peer);
        while !matches!(events.recv().await.unwrap(), Event::Reconnecting { .. }) {}
    }
    // The server has granted it, and keeps it with the session.
    let mut peer = server.link().await;
    peer.connect().await;
    peer.accept(Session::new(), true).await;
    let ended = tokio::time::timeout(SECOND, peer.unsubscribe()).await;
    assert_eq!(ended.expect("the client should unsubscribe"), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn a_subscription_that_was_not_sent_is_given_up_without_a_packet() {
    let mut server = Server::bind("given_up_unsent").await;
    let (client, peer) = server.pair(server.builder()).await;
    let mut events = client.events();
    drop(peer);
    while !matches!(events.recv().await.unwrap(), Event::Reconnecting { .. }) {}
    let subscribing = client.subscribe("a", QoS::AtLeastOnce);
    let given_up = tokio::time::timeout(SECOND / 2, subscribing).await;
    assert!(given_up.is_err());
    let mut peer = server.link().await;
    peer.connect().await;
    peer.accept(Session::new(), true).await;
    let nothing = tokio::time::timeout(SECOND, peer.event()).await;
    assert!(nothing.is_err(), "{nothing:?}");
}

#[tokio::test(start_paused = true)]
async fn a_dropped_stream_does_not_end_the_one_that_took_its_filter_over() {
    let mut server = Server::bind("successor").await;
    let (client, mut peer) = server.pair(server.builder()).await;
    for pause in [Duration::ZERO, SECOND] {
        let old = subscribe(&client, &mut peer, "a").await;
        let asked = async {
            // Before its SUBSCRIBE is on its way, and between that and its SUBACK.
            tokio::time::sleep(pause).await;
            drop(old);
        };
        let (new, (), _) = tokio::join!(client.subscribe("a", QoS::ExactlyOnce), asked, async {
            tokio::time::sleep(2 * SECOND).await;
            peer.grant().await
        });
        let mut new = new.unwrap();
        let id = new.id().unwrap();
        peer.send("a", "on", QoS::AtMostOnce, Some(id.get())).await;
        assert_eq!(next(&mut new).await, "on");
        let more = tokio::time::timeout(SECOND, peer.event()).await;
        assert!(more.is_err(), "{more:?}");
        drop(new);
        assert_eq!(peer.unsubscribe().await, ["a"]);
    }
}
