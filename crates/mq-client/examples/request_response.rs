//! Asks a question and answers it, with MQTT 5.0's response topic and correlation data:
//! `request_response URL [CA-FILE]`.
#![expect(clippy::print_stdout, reason = "an example says what it does")]

use anyhow::Context;
use mq_client::{
    ByteStr, Bytes, Client, ConnectOptions, Connector, Outgoing, PublishProperties, QoS,
    Subscription, Trust,
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let mut args = std::env::args().skip(1);
    let url = args
        .next()
        .context("usage: request_response URL [CA-FILE]")?;
    let trust = args
        .next()
        .map_or(Trust::System, |file| Trust::CaFile(file.into()));
    let connector = Connector::new(ConnectOptions {
        trust,
        ..ConnectOptions::default()
    })?;

    let connect = async || {
        let builder = Client::builder(&url)?;
        builder.connector(connector.clone()).build().await
    };
    let server = connect().await?;
    let questions = server.subscribe("example/square", QoS::AtLeastOnce).await?;
    let answering = tokio::spawn(answer(server.clone(), questions));

    let client = connect().await?;
    let answers_to = format!("example/answers/{}", std::process::id());
    let mut answers = client
        .subscribe(answers_to.clone(), QoS::AtLeastOnce)
        .await?;
    for n in 1..=3_u32 {
        let properties = PublishProperties {
            response_topic: Some(ByteStr::new(answers_to.clone())?),
            correlation_data: Some(Bytes::copy_from_slice(&n.to_be_bytes())),
            ..PublishProperties::default()
        };
        let question = Outgoing::to("example/square", n.to_string())?
            .qos(QoS::AtLeastOnce)
            .properties(properties);
        // Nobody waits for the acknowledgement: the answer is one.
        client.send(question).await?;
    }
    for _ in 1..=3 {
        let answer = answers.recv().await.context("the client has ended")?;
        let correlation = answer.properties.into_inner().correlation_data;
        let question = correlation.context("no correlation data")?;
        let question = u32::from_be_bytes(question[..].try_into()?);
        println!(
            "{question} squared is {}",
            String::from_utf8_lossy(&answer.payload)
        );
    }
    client.disconnect().await?;
    server.disconnect().await?;
    answering.await?
}

/// Squares numbers until the client ends.
async fn answer(client: Client, mut questions: Subscription) -> anyhow::Result<()> {
    while let Some(question) = questions.recv().await {
        let n: u64 = std::str::from_utf8(&question.payload)?.parse()?;
        let properties = question.properties.into_inner();
        let to = properties.response_topic.context("no response topic")?;
        let answer = Outgoing::to(to.as_str(), (n * n).to_string())?
            .qos(QoS::AtLeastOnce)
            .properties(PublishProperties {
                correlation_data: properties.correlation_data,
                ..PublishProperties::default()
            });
        client.send(answer).await?;
    }
    Ok(())
}
