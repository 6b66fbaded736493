//! Authentication of one connection while it is in progress.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use super::{Authenticator, BoxFuture, Exchange, LogIn, Refusal, Step};

type Outcome = (Option<Box<dyn Exchange>>, Result<Step, Refusal>);

/// The authentication of a connection's client, at CONNECT and on re-authentication, which runs
/// beside the connection. At most one step runs at a time.
#[derive(Default)]
pub(crate) struct Authentication {
    /// The step that runs now.
    work: Option<BoxFuture<'static, Outcome>>,
    /// The exchange that waits for the client's next step.
    exchange: Option<Box<dyn Exchange>>,
}

impl Authentication {
    /// Returns `true` if a step runs, whose result [`outcome`](Self::outcome) returns.
    pub(crate) fn is_working(&self) -> bool {
        self.work.is_some()
    }

    /// Starts the authentication by the credentials of CONNECT.
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

    /// Starts an enhanced authentication.
    pub(crate) fn exchange(
        &mut self,
        exchange: Box<dyn Exchange>,
        data: Option<Bytes>,
        within: Duration,
    ) {
        self.exchange = Some(exchange);
        self.step(data, within);
    }

    /// Continues with the client's answer. Does nothing if no exchange waits for one.
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

    /// Resolves with the outcome of the step that runs; never, if none does. Cancel-safe.
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
