//! flowsdk, an MQTT client on quinn-proto in EMQX's form (ALPN `mqtt`, one bidirectional stream), against a broker:
//! `suite-flowsdk HOST:PORT`. It publishes to itself at each QoS, and every message has to come once and in order.

use std::{process::ExitCode, time::Duration};

use flowsdk::mqtt_client::{
    MqttClientOptions, MqttMessage, TokioAsyncClientConfig, TokioAsyncMqttClient,
    TokioMqttEventHandler,
};
use tokio::{sync::mpsc, time::timeout};

const MESSAGES: usize = 100;
const SOON: Duration = Duration::from_secs(20);

struct Received(mpsc::UnboundedSender<(u8, String)>);

#[async_trait::async_trait]
impl TokioMqttEventHandler for Received {
    async fn on_message_received(&mut self, message: &MqttMessage) {
        let text = String::from_utf8_lossy(&message.payload).into_owned();
        let _ = self.0.send((message.qos, text));
    }
}

type Failed = Box<dyn std::error::Error>;

async fn run(broker: &str) -> Result<(), Failed> {
    let (sender, mut received) = mpsc::unbounded_channel();
    let user = std::env::var("BROKER_USER")?;
    let password = std::env::var("BROKER_PASSWORD")?;
    let options = MqttClientOptions::builder()
        .peer(format!("quic://{broker}"))
        .client_id("suite-flowsdk")
        .username(user)
        .password(password.into_bytes())
        .keep_alive(60)
        .clean_start(true)
        .build();
    let config = TokioAsyncClientConfig::builder()
        .auto_reconnect(false)
        .quic_insecure_skip_verify(true)
        .build();
    let client = TokioAsyncMqttClient::new(options, Box::new(Received(sender)), config).await?;
    let connected = client.connect_sync().await?;
    if !connected.is_success() {
        return Err(format!("refused: {}", connected.reason_description()).into());
    }
    for qos in 0..=2 {
        let topic = format!("suite/flowsdk/{qos}");
        if !client.subscribe_sync(&topic, qos).await?.is_success() {
            return Err(format!("no subscription at QoS {qos}").into());
        }
        for number in 0..MESSAGES {
            let text = number.to_string();
            let published = client.publish_sync(&topic, text.as_bytes(), qos, false).await?;
            if !published.is_success() {
                return Err(format!("QoS {qos}, message {number}: refused").into());
            }
        }
        for number in 0..MESSAGES {
            let message = timeout(SOON, received.recv()).await?;
            if message != Some((qos, number.to_string())) {
                return Err(format!("QoS {qos}, message {number}: {message:?}").into());
            }
        }
        println!("flowsdk, QoS {qos}: {MESSAGES} messages, each once and in order");
    }
    client.ping_sync().await?;
    client.disconnect_sync().await?;
    client.shutdown().await?;
    Ok(())
}

#[tokio::main]
async fn main() -> ExitCode {
    let Some(broker) = std::env::args().nth(1) else {
        eprintln!("suite-flowsdk HOST:PORT");
        return ExitCode::FAILURE;
    };
    let _ = rustls::crypto::ring::default_provider().install_default();
    match timeout(Duration::from_secs(60), run(&broker)).await {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(error)) => {
            eprintln!("flowsdk: {error}");
            ExitCode::FAILURE
        }
        Err(_) => {
            eprintln!("flowsdk: not done in 60 s");
            ExitCode::FAILURE
        }
    }
}
