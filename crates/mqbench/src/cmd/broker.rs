//! `mqbench broker`: the broker of this project, as `mqbroker` runs it.

pub(crate) use mq_broker::cli::BrokerArgs as Args;

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    mq_broker::cli::run(args)
}
