//! The authenticator of the guarded broker.

use bytes::Bytes;
use mq_broker::auth::{
    Authenticator, Authorizer, BoxFuture, Exchange, Grant, LogIn, Principal, Refusal, Step,
};
use mq_codec::{QoS, TopicFilter};

/// The one method of enhanced authentication: both sides count in turn. CONNECT is empty and the server
/// begins with 1, or CONNECT begins with 2. The server lets a client in that has sent 4, and sends 5.
pub(crate) const METHOD: &str = "count";

/// A part of the topics to which no client may publish.
pub(crate) const FORBIDDEN: &str = "forbidden";

/// Lets every client in that names no method.
#[derive(Debug)]
pub(crate) struct Guard;

impl Authenticator for Guard {
    fn authenticate<'a>(&'a self, log_in: &'a LogIn) -> BoxFuture<'a, Result<Principal, Refusal>> {
        Box::pin(async { Ok(Principal::new(None, &log_in.client_id)) })
    }

    fn exchange(&self, method: &str, log_in: &LogIn) -> Option<Box<dyn Exchange>> {
        let principal = Principal::new(None, &log_in.client_id);
        (method == METHOD).then(|| Box::new(Count(principal)) as Box<dyn Exchange>)
    }
}

struct Count(Principal);

impl Exchange for Count {
    fn step(&mut self, data: Option<Bytes>) -> BoxFuture<'_, Result<Step, Refusal>> {
        let principal = self.0.clone();
        Box::pin(async move {
            // As if it had to be looked up somewhere.
            tokio::task::yield_now().await;
            match data.as_deref() {
                None => Ok(Step::Continue("1".into())),
                Some(b"2") => Ok(Step::Continue("3".into())),
                Some(b"4") => Ok(Step::Done {
                    principal,
                    data: Some("5".into()),
                }),
                Some(_) => Err(Refusal::NotAuthorized),
            }
        })
    }
}

impl Authorizer for Guard {
    fn may_publish(&self, _: &Principal, topic: &str, _: QoS, _: bool) -> bool {
        !topic.contains(FORBIDDEN)
    }

    fn may_receive(&self, _: &Principal, _: &str) -> bool {
        true
    }

    fn subscription(&self, _: &Principal, _: &TopicFilter) -> Grant {
        Grant::All
    }

    fn generation(&self) -> u64 {
        0
    }
}
