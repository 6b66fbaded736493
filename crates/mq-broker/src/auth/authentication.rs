//! One connection's authentication while it is under way.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use super::{Authenticator, BoxFuture, Exchange, LogIn, Refusal, Step};

type Outcome = (Option<Box<dyn Exchange>>, Result<Step, Refusal>);

/// What runs beside a connection to find out who its client is, at first and when it
/// authenticates anew: at most one thing at a time.
#[derive(Default)]
pub(crate) struct Authentication {
    /// What goes on now.
    work: Option<BoxFuture<'static, Outcome>>,
    /// What goes on with the client's next step.
    exchange: Option<Box<dyn Exchange>>,
}

impl Authentication {
    /// Whether something goes on that [`outcome`](Self::outcome) will tell of.
    pub(crate) fn is_working(&self) -> bool {
        self.work.is_some()
    }

    /// Begins with what CONNECT brought.
    pub(crate) fn log_in(&mut self, by: Arc<dyn Authenticator>, log_in: LogIn, within: Duration) {
        self.work = Some(Box::pin(async move {
            let asked = tokio::time::timeout(within, by.authenticate(&log_in)).await;
            let principal = asked.unwrap_or(Err(Refusal::ServerUnavailable));
            let done = |principal| Step::Done {
                principal,
                data: None,
            };
            (None, principal.map(done))
        }));
    }

    /// Begins an exchange with the client.
    pub(crate) fn exchange(
        &mut self,
        exchange: Box<dyn Exchange>,
        data: Option<Bytes>,
        within: Duration,
    ) {
        self.exchange = Some(exchange);
        self.step(data, within);
    }

    /// Goes on with what the client has answered. Nothing happens if no exchange waits for it.
    pub(crate) fn step(&mut self, data: Option<Bytes>, within: Duration) {
        let Some(mut exchange) = self.exchange.take() else {
            return;
        };
        self.work = Some(Box::pin(async move {
            let step = tokio::time::timeout(within, exchange.step(data)).await;
            let step = step.unwrap_or(Err(Refusal::ServerUnavailable));
            (Some(exchange), step)
        }));
    }

    /// Resolves when what goes on has an outcome; never, if nothing does. Cancel-safe.
    pub(crate) async fn outcome(&mut self) -> Result<Step, Refusal> {
        let Some(work) = &mut self.work else {
            return std::future::pending().await;
        };
        let (exchange, step) = work.await;
        self.work = None;
        self.exchange = match step {
            Ok(Step::Continue(_)) => exchange,
            Ok(Step::Done { .. }) | Err(_) => None,
        };
        step
    }
}
