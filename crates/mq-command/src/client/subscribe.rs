//! `mq sub`.

use std::{
    io::{IsTerminal as _, Write as _},
    num::NonZeroU64,
};

use anyhow::{Context as _, bail};
use jiff::Zoned;
use mq_client::{
    Client, Incoming, Outgoing, QoS, RetainHandling, SubscribeOptions, Subscription,
    SubscriptionOptions, TopicFilter,
};

use super::{
    Outcome,
    args::{BrokerArgs, qos},
    connect,
    escape::escaped,
    goodbye::{Goodbye, until_end},
    properties::Properties,
    template::Template,
};
use crate::ends::INTERRUPT;

/// Options of `sub`.
#[derive(clap::Args, Clone, Debug)]
#[command(disable_help_flag = true)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a switch of the command line"
)]
pub(crate) struct Args {
    /// Topic filter; may be given several times
    #[arg(short = 't', long, value_name = "FILTER")]
    topic: Vec<String>,
    /// Do not print messages of these topics
    #[arg(short = 'T', long, value_name = "FILTER", value_parser = filter)]
    filter_out: Vec<TopicFilter>,
    /// End these subscriptions of the session
    #[arg(short = 'U', long, value_name = "FILTER", value_parser = filter)]
    unsubscribe: Vec<TopicFilter>,
    /// QoS
    #[arg(short = 'q', long, default_value = "0", value_parser = qos)]
    qos: QoS,
    /// End after so many messages
    #[arg(short = 'C', value_name = "COUNT")]
    count: Option<NonZeroU64>,
    /// End after so many seconds, with exit code 27
    #[arg(short = 'W', value_name = "SECONDS")]
    timeout: Option<NonZeroU64>,
    /// End once the broker has granted the subscriptions
    #[arg(short = 'E')]
    exit_after_granted: bool,
    /// Print the topic in front of each message
    #[arg(short = 'v', long)]
    verbose: bool,
    /// Format of a message, such as "%I %t %p"
    #[arg(short = 'F', long, value_name = "FORMAT", conflicts_with = "json")]
    format: Option<String>,
    /// Print each message as JSON: -F %j
    #[arg(long)]
    json: bool,
    /// Print JSON on several lines
    #[arg(long)]
    pretty: bool,
    /// Print no end of line behind a message
    #[arg(short = 'N')]
    no_newline: bool,
    /// Print control characters as they came to a terminal, too, which then acts on them
    #[arg(long)]
    raw: bool,
    /// Do not print retained messages
    #[arg(short = 'R', conflicts_with = "retained_only")]
    no_retained: bool,
    /// Print retained messages alone, and end with the first other one
    #[arg(long)]
    retained_only: bool,
    /// Remove the retained messages that come
    #[arg(long)]
    remove_retained: bool,
    #[command(flatten)]
    pub(crate) broker: BrokerArgs,
}

fn filter(text: &str) -> Result<TopicFilter, String> {
    TopicFilter::new(text).map_err(|error| error.to_string())
}

/// Switches of the command line for printing.
#[derive(Clone, Copy, Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a switch of the command line"
)]
pub(crate) struct Look {
    /// `true` to print the topic in front of each message, and `(null)` for one without a payload.
    pub(crate) verbose: bool,
    /// `true` to print JSON on several lines.
    pub(crate) pretty: bool,
    /// `true` to print no end of line behind a message.
    pub(crate) no_newline: bool,
    /// `true` to print control characters as they came, also to a terminal.
    pub(crate) raw: bool,
}

/// Prints messages.
pub(crate) struct Printer {
    template: Template,
    look: Look,
    /// `true` if messages are printed so that they cannot control a terminal.
    escape: bool,
}

impl Printer {
    pub(crate) fn new(format: Option<&str>, mut look: Look) -> anyhow::Result<Self> {
        // A format says itself what is printed.
        look.verbose &= format.is_none();
        Ok(Self {
            template: match format {
                Some(format) => Template::parse(format)?,
                None => Template::payload(),
            },
            look,
            escape: !look.raw && std::io::stdout().is_terminal(),
        })
    }

    /// Writes a message at once: whoever reads a pipe waits for it. One without a payload is nothing to print,
    /// unless its topic or a format is.
    pub(crate) fn print(&self, message: &Incoming) -> std::io::Result<()> {
        if message.payload.is_empty() && !self.look.verbose && self.template == Template::payload()
        {
            return Ok(());
        }
        let mut out = Vec::new();
        if self.look.verbose {
            if self.escape {
                out.extend_from_slice(escaped(message.topic.as_bytes()).as_bytes());
            } else {
                out.extend_from_slice(message.topic.as_bytes());
            }
            out.push(b' ');
        }
        if self.look.verbose && message.payload.is_empty() {
            out.extend_from_slice(b"(null)");
        }
        let now = Zoned::now();
        self.template
            .write(message, &now, self.look.pretty, self.escape, &mut out);
        if !self.look.no_newline {
            out.push(b'\n');
        }
        let mut stdout = std::io::stdout().lock();
        stdout.write_all(&out)?;
        stdout.flush()
    }
}

pub(crate) async fn run(args: Args) -> anyhow::Result<Outcome> {
    let ended = until_end(args.timeout, async |goodbye| follow(args, goodbye).await).await?;
    // Ctrl-C is the usual end of a subscriber.
    let is_usual = ended == Outcome::Signalled(INTERRUPT);
    Ok(if is_usual { Outcome::Done } else { ended })
}

async fn follow(args: Args, goodbye: &Goodbye) -> anyhow::Result<Outcome> {
    let format = if args.json {
        Some("%j")
    } else {
        args.format.as_deref()
    };
    let look = Look {
        verbose: args.verbose,
        pretty: args.pretty,
        no_newline: args.no_newline,
        raw: args.raw,
    };
    let printer = Printer::new(format, look)?;
    let plan = connect::plan(&args.broker)?;
    let filters: Vec<_> = args.topic.iter().cloned().chain(plan.topic).collect();
    if filters.is_empty() && args.unsubscribe.is_empty() {
        bail!(connect::NO_TOPIC);
    }
    let options = subscribe_options(&args, &filters, &plan.properties)?;
    // What waited in a session that is kept comes before this client can subscribe again.
    let mut waited = plan.client.messages();
    let client = goodbye.connect(plan.client).await?;
    for filter in &args.unsubscribe {
        client.unsubscribe(filter.clone()).await?;
    }
    // Dropped behind DISCONNECT: earlier it would end the subscription.
    let mut subscribed = match options {
        Some(options) => Some(client.subscribe_with(options).await?),
        None => None,
    };
    let outcome = if args.exit_after_granted {
        Ok(Outcome::Done)
    } else {
        print_all(&args, &printer, &client, (&mut waited, &mut subscribed)).await
    };
    // What was printed is printed, whatever becomes of the last packet.
    let _ = client.disconnect().await;
    outcome
}

fn subscribe_options(
    args: &Args,
    filters: &[String],
    properties: &Properties,
) -> anyhow::Result<Option<SubscribeOptions>> {
    let mut filters = filters.iter();
    let Some(first) = filters.next() else {
        return Ok(None);
    };
    let options = SubscriptionOptions {
        retain_handling: if args.no_retained {
            RetainHandling::DoNotSend
        } else {
            RetainHandling::Send
        },
        ..SubscriptionOptions::from(args.qos)
    };
    let mut subscribe = SubscribeOptions::to(first.as_str(), options)?;
    for filter in filters {
        subscribe = subscribe.and_to(filter.as_str(), options)?;
    }
    for (name, value) in &properties.subscribe {
        subscribe = subscribe.user_property(name.clone(), value.clone())?;
    }
    Ok(Some(subscribe))
}

/// Waits for the next message of a subscription; never returns without a subscription.
async fn next(subscription: &mut Option<Subscription>) -> Option<Incoming> {
    match subscription {
        Some(subscription) => subscription.recv().await,
        None => std::future::pending().await,
    }
}

async fn print_all(
    args: &Args,
    printer: &Printer,
    client: &Client,
    (waited, subscribed): (&mut Subscription, &mut Option<Subscription>),
) -> anyhow::Result<Outcome> {
    let mut left = args.count.map(NonZeroU64::get);
    loop {
        let message = tokio::select! {
            biased;
            message = waited.recv() => message,
            message = next(subscribed) => message,
        };
        let Some(message) = message else {
            return Err(connect::ended(client).await);
        };
        if args.retained_only && !message.retain {
            return Ok(Outcome::Done);
        }
        if args.no_retained && message.retain {
            continue;
        }
        if args
            .filter_out
            .iter()
            .any(|filter| filter.matches(&message.topic))
        {
            continue;
        }
        if args.remove_retained && message.retain {
            let nothing = Outgoing::new(message.topic.clone(), "").qos(QoS::AtLeastOnce);
            client.send(nothing.retain(true)).await?;
        }
        printer
            .print(&message)
            .context("the message cannot be printed")?;
        if let Some(left) = &mut left {
            *left -= 1;
            if *left == 0 {
                return Ok(Outcome::Done);
            }
        }
    }
}
