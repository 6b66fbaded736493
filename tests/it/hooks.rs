//! Hooks of a program in its broker.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use mq_broker::{
    Broker, Settings,
    hooks::{HookClient, HookPublish, Hooks, PublishAnswer},
};
use mq_client::{Client, ClientBuilder, Error, Outgoing, QoS, ReasonCode, Reconnect, Will};
use mq_codec::{Subscription, TopicName};
use mq_proto::{CloseReason, Message};
use mq_testkit::refused;
use tokio::time::timeout;

/// In virtual time.
const SOON: Duration = Duration::from_secs(20);

/// Acts as the topic, the filter or the client identifier says, and notes what it is told.
#[derive(Debug, Default)]
struct Program(Mutex<Vec<String>>);

impl Program {
    fn note(&self, line: String) {
        self.0.lock().unwrap().push(line);
    }

    fn noted(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl Hooks for Program {
    fn on_authenticated(&self, client: HookClient<'_>) -> Result<(), ReasonCode> {
        match client.client_id {
            "unwanted" => Err(ReasonCode::QuotaExceeded),
            // CONNACK has no such reason.
            "odd" => Err(ReasonCode::TopicFilterInvalid),
            _ => Ok(()),
        }
    }

    fn on_connect(&self, client: HookClient<'_>, session_present: bool) {
        self.note(format!("{} connected {session_present}", client.client_id));
    }

    fn on_subscribe(
        &self,
        _: HookClient<'_>,
        subscription: &Subscription,
    ) -> Result<(), ReasonCode> {
        if subscription.filter.as_str() == "unwanted/#" {
            return Err(ReasonCode::QuotaExceeded);
        }
        Ok(())
    }

    fn on_publish(&self, _: HookClient<'_>, publish: HookPublish<'_>) -> PublishAnswer {
        let topic = publish.message.topic.as_str();
        match topic.split_once('/') {
            Some(("refused", _)) => PublishAnswer::Refuse(ReasonCode::QuotaExceeded),
            Some(("odd", _)) => PublishAnswer::Refuse(ReasonCode::TopicFilterInvalid),
            Some(("dropped", _)) => PublishAnswer::Drop,
            Some(("raw", rest)) => {
                let mut message = publish.message.clone();
                message.topic = TopicName::new(format!("cooked/{rest}")).unwrap();
                message.payload = "cooked".into();
                PublishAnswer::Replace(message)
            }
            Some(("deep", _)) => {
                let deep = TopicName::new("x/".repeat(1_000)).unwrap();
                PublishAnswer::Replace(Message::new(deep, "deep"))
            }
            _ => PublishAnswer::Deliver,
        }
    }

    fn on_delivered(&self, client: HookClient<'_>, message: &Message, qos: QoS) {
        let (id, topic) = (client.client_id, message.topic.as_str());
        self.note(format!("{id} has {topic} at {}", qos as u8));
    }

    fn on_disconnect(&self, client: HookClient<'_>, reason: &CloseReason) {
        let is_orderly = matches!(reason, CloseReason::ByPeer(_));
        self.note(format!("{} left {is_orderly}", client.client_id));
    }
}

fn url(name: &str) -> String {
    format!("mem://hooks-{name}")
}

fn client(name: &str, id: &str) -> ClientBuilder {
    let builder = Client::builder(&url(name)).unwrap().client_id(id).unwrap();
    builder.reconnect(Reconnect::never())
}

async fn start(name: &str) -> (Broker, Arc<Program>) {
    let program = Arc::<Program>::default();
    let mut settings = Settings::new(vec![url(name).parse().unwrap()]);
    settings.hooks = Some(Arc::clone(&program) as Arc<dyn Hooks>);
    (Broker::start(settings).await.unwrap(), program)
}

async fn send(client: &Client, topic: &str, qos: QoS) -> Result<(), Error> {
    let message = Outgoing::to(topic, "sent").unwrap().qos(qos);
    let mut receipt = client.send(message).await.unwrap();
    let acknowledged = timeout(SOON, receipt.acknowledged()).await.unwrap();
    acknowledged.map(drop)
}

#[tokio::test(start_paused = true)]
async fn a_hook_replaces_refuses_and_drops_messages() {
    let (broker, _) = start("publish").await;
    let reader = client("publish", "reader").build().await.unwrap();
    let mut all = reader.subscribe("#", QoS::ExactlyOnce).await.unwrap();
    let publisher = client("publish", "publisher").build().await.unwrap();
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
        send(&publisher, "raw/7", qos).await.unwrap();
        send(&publisher, "dropped/7", qos).await.unwrap();
        for (topic, expected) in [
            ("refused/7", ReasonCode::QuotaExceeded),
            ("odd/7", ReasonCode::UnspecifiedError),
            ("deep/7", ReasonCode::TopicNameInvalid),
        ] {
            match send(&publisher, topic, qos).await {
                Err(Error::PublishRefused { reason }) => assert_eq!(reason, expected, "{topic}"),
                other => panic!("{topic}: {other:?}"),
            }
        }
        send(&publisher, "plain/7", qos).await.unwrap();
        for (topic, payload) in [("cooked/7", "cooked"), ("plain/7", "sent")] {
            let incoming = timeout(SOON, all.recv()).await.unwrap().unwrap();
            assert_eq!(incoming.topic.as_str(), topic);
            assert_eq!(incoming.text().unwrap(), payload);
        }
    }
    broker.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_hook_refuses_clients_and_subscriptions() {
    let (broker, _) = start("refuse").await;
    let reason = refused(client("refuse", "unwanted")).await;
    assert_eq!(reason, ReasonCode::QuotaExceeded);
    let reason = refused(client("refuse", "odd")).await;
    assert_eq!(reason, ReasonCode::UnspecifiedError);
    let wanted = client("refuse", "wanted").build().await.unwrap();
    let refused = wanted.subscribe("unwanted/#", QoS::AtMostOnce).await;
    let Err(Error::SubscribeRefused { reason }) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(reason, ReasonCode::QuotaExceeded);
    wanted.subscribe("wanted/#", QoS::AtMostOnce).await.unwrap();
    broker.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_hook_is_told_what_each_client_has_received() {
    let (broker, program) = start("told").await;
    let reader = client("told", "reader").build().await.unwrap();
    let mut all = reader.subscribe("t/#", QoS::ExactlyOnce).await.unwrap();
    let publisher = client("told", "publisher").build().await.unwrap();
    let sent = Outgoing::to("t/0", "sent").unwrap();
    publisher.send(sent).await.unwrap();
    send(&publisher, "t/1", QoS::AtLeastOnce).await.unwrap();
    send(&publisher, "t/2", QoS::ExactlyOnce).await.unwrap();
    for _ in 0..3 {
        timeout(SOON, all.recv()).await.unwrap().unwrap();
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    reader.disconnect().await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let expected = [
        "reader connected false",
        "publisher connected false",
        "reader has t/0 at 0",
        "reader has t/1 at 1",
        "reader has t/2 at 2",
        "reader left true",
    ];
    assert_eq!(program.noted(), expected);
    drop(publisher);
    broker.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_will_passes_the_hook_as_a_message_does() {
    let (broker, _) = start("will").await;
    let reader = client("will", "reader").build().await.unwrap();
    let mut all = reader.subscribe("#", QoS::AtLeastOnce).await.unwrap();
    for topic in ["refused/will", "raw/will"] {
        let will = Will::to(topic, "will").unwrap();
        let mortal = client("will", "mortal").will(will).build().await.unwrap();
        broker.kick("mortal").unwrap();
        drop(mortal);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let incoming = timeout(SOON, all.recv()).await.unwrap().unwrap();
    assert_eq!(incoming.topic.as_str(), "cooked/will");
    broker.shutdown().await;
}
