//! `mq rr`: a request, and its response.

use std::num::NonZeroU64;

use anyhow::bail;
use mq_client::{ByteStr, Outgoing, QoS, Version};

use super::{
    Outcome,
    args::{BrokerArgs, qos},
    connect,
    goodbye::{Goodbye, until_end},
    message::Source,
    subscribe::{Look, Printer},
};

/// Options of `rr`.
#[derive(clap::Args, Clone, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    /// Topic of the request
    #[arg(short = 't', long)]
    topic: Option<String>,
    /// Topic of the response; else one by chance
    #[arg(short = 'e', value_name = "TOPIC")]
    response_topic: Option<String>,
    #[command(flatten)]
    source: Source,
    /// QoS of the request and of the subscription to its response
    #[arg(short = 'q', long, default_value = "0", value_parser = qos)]
    qos: QoS,
    /// End after so many seconds without a response, with exit code 27
    #[arg(short = 'W', value_name = "SECONDS")]
    timeout: Option<NonZeroU64>,
    /// Print the topic in front of the response
    #[arg(short = 'v', long)]
    verbose: bool,
    /// Format of the response, as of `mq sub -F`
    #[arg(short = 'F', long, value_name = "FORMAT")]
    format: Option<String>,
    /// Print control characters as they came to a terminal, too, which then acts on them
    #[arg(long)]
    raw: bool,
    /// Print no end of line behind the response
    #[arg(short = 'N')]
    no_newline: bool,
    #[command(flatten)]
    pub(crate) broker: BrokerArgs,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<Outcome> {
    let look = Look {
        verbose: args.verbose,
        pretty: false,
        no_newline: args.no_newline,
        raw: args.raw,
    };
    let printer = Printer::new(args.format.as_deref(), look)?;
    if args.source.stdin_line {
        bail!("a request is one message: -s takes the standard input as a whole");
    }
    let payload = args.source.payload().await?;
    let ask = async |goodbye: &Goodbye| ask(&args, payload, &printer, goodbye).await;
    until_end(args.timeout, ask).await
}

async fn ask(
    args: &Args,
    payload: bytes::Bytes,
    printer: &Printer,
    goodbye: &Goodbye,
) -> anyhow::Result<Outcome> {
    let plan = connect::plan(&args.broker)?;
    let topic = plan.topic(args.topic.clone())?;
    let chance = || format!("mq/response/{:016x}", fastrand::u64(..));
    let response_topic = args.response_topic.clone().unwrap_or_else(chance);
    let client = goodbye.connect(plan.client).await?;
    let mut responses = client.subscribe(response_topic.as_str(), args.qos).await?;
    let mut properties = plan.properties.publish;
    let is_v5 = args.broker.protocol_version >= Version::V5;
    if is_v5 {
        properties.response_topic = Some(ByteStr::new(response_topic)?);
        // The responder returns it. Without it, a response to another requester on this topic would be taken for
        // ours.
        properties
            .correlation_data
            .get_or_insert_with(|| format!("{:016x}", fastrand::u64(..)).into());
    }
    let ours = properties.correlation_data.clone();
    let request = Outgoing::to(topic, payload)?.properties(properties);
    client.send(request.qos(args.qos)).await?;
    loop {
        let Some(response) = responses.recv().await else {
            return Err(connect::ended(&client).await);
        };
        // A responder that returns no correlation data cannot be told from another.
        if is_v5
            && response
                .correlation_data()
                .is_some_and(|data| Some(data) != ours.as_ref())
        {
            continue;
        }
        printer.print(&response)?;
        let _ = client.disconnect().await;
        return Ok(Outcome::Done);
    }
}
