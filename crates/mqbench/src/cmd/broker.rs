//! `mqbench broker`: the broker of this project, as `mqbroker` runs it.

pub(crate) use mqbroker::cli::BrokerArgs as Args;

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    mqbroker::cli::run(args)
}
