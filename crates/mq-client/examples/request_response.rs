//! Asks a question and answers it, with MQTT 5.0's response topic and correlation data:
//! `request_response URL [CA-FILE]`.
#![expect(clippy::print_stdout, reason = "an example says what it does")]

use anyhow::Context;
use mq_client::{Client, ConnectOptions, Connector, QoS, Subscription, Trust};

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let mut args = std::env::args().skip(1);
    let url = args
        .next()
        .context("usage: request_response URL [CA-FILE]")?;
    let trust = args.next().map_or(Trust::System, Trust::ca_file);
    let connector = Connector::new(ConnectOptions::new().trust(trust))?;

    let connect = async || {
        let builder = Client::builder(&url)?;
        builder.connector(connector.clone()).build().await
    };
    let server = connect().await?;
    let questions = server.subscribe("example/square", QoS::AtLeastOnce).await?;
    let answering = tokio::spawn(answer(server.clone(), questions));

    let client = connect().await?;
    let ask = async |n: u32| client.request("example/square", n.to_string()).await;
    let answers = tokio::try_join!(ask(1), ask(2), ask(3))?;
    for (n, answer) in [(1, answers.0), (2, answers.1), (3, answers.2)] {
        println!("{n} squared is {}", answer.text()?);
    }
    client.disconnect().await?;
    server.disconnect().await?;
    answering.await?
}

/// Squares numbers until the client ends.
async fn answer(client: Client, mut questions: Subscription) -> anyhow::Result<()> {
    while let Some(question) = questions.recv().await {
        let n: u64 = question.text()?.parse()?;
        client.respond(&question, (n * n).to_string()).await?;
    }
    Ok(())
}
