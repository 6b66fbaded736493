//! Requests and their responses (§4.10): the calls of a handle.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use mq_codec::{
    QoS, ReasonCode, RetainHandling, SubscriptionId, TopicFilter, TopicName, Version, whole_seconds,
};

use crate::{
    Client, Error, Incoming, Outgoing, Receipt, SubscribeOptions,
    control::{Outlet, Request, SubscribeRequest},
};

impl Client {
    /// Sends a request at QoS 1 and waits for its response, for the
    /// [`request_timeout`](crate::ClientBuilder::request_timeout) (5.0, §4.10).
    ///
    /// The client subscribes to a response topic of its own with the first request, and keeps that
    /// subscription for its life, across reconnects. Each request has its own correlation data.
    /// The responder answers with [`respond`](Self::respond) or the like. The client drops and counts a
    /// response that comes late, twice or unasked: [`unmatched_responses`](Self::unmatched_responses).
    ///
    /// ```no_run
    /// # async fn example(client: mq_client::Client) -> Result<(), mq_client::Error> {
    /// let answer = client.request("example/square", "12").await?;
    /// assert_eq!(answer.text()?, "144");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// At QoS 1 a responder may get a request twice, after a lost connection. Where that does harm, give
    /// [`request_with`](Self::request_with) a message of QoS 2.
    ///
    /// At most [`max_requests`](crate::ClientBuilder::max_requests) wait for their responses at a
    /// time; further ones wait for their turn. Cancel-safe: dropping the future frees the place of the
    /// request. A request that was queued by then is still sent.
    ///
    /// # Errors
    /// As [`request_with`](Self::request_with), and [`Error::Topic`].
    pub async fn request<T>(&self, topic: T, payload: impl Into<Bytes>) -> Result<Incoming, Error>
    where
        T: TryInto<TopicName>,
        Error: From<T::Error>,
    {
        let request = Outgoing::to(topic, payload)?.qos(QoS::AtLeastOnce);
        let timeout = self.handle.request_timeout;
        self.request_with(request, timeout).await
    }

    /// Sends a request like [`request`](Self::request), with any message, and with a timeout for everything: the turn,
    /// the connection, and the response.
    ///
    /// The call replaces the response topic and the correlation data of `request`. Without a Message
    /// Expiry Interval the message gets the timeout, rounded up to seconds, so that a responder that
    /// comes back later does not get it.
    ///
    /// # Errors
    /// [`Error::NeedsVersion5`] before MQTT 5.0; [`Error::NoResponse`] when the time is over;
    /// [`Error::NoResponder`] if the server reports that the topic has no subscriber (at QoS 1
    /// and 2; not every server does); [`Error::SubscribeRefused`] for the response topic;
    /// [`Error::PublishRefused`] and the like for the request; or the error that ended the client.
    pub async fn request_with(
        &self,
        request: Outgoing,
        timeout: Duration,
    ) -> Result<Incoming, Error> {
        if self.handle.version < Version::V5 {
            return Err(Error::NeedsVersion5 {
                what: "a request with a response topic",
            });
        }
        let answered = tokio::time::timeout(timeout, self.answered(request, timeout));
        answered
            .await
            .unwrap_or(Err(Error::NoResponse { after: timeout }))
    }

    async fn answered(&self, mut request: Outgoing, timeout: Duration) -> Result<Incoming, Error> {
        let responses = &*self.handle.responses;
        let mut slot = responses.slot().await?;
        responses.subscribed(|| self.ask_for_responses()).await?;
        let message = Arc::make_mut(&mut request.message);
        let properties = &mut message.properties;
        properties.response_topic = Some(responses.topic.as_byte_str().clone());
        properties.correlation_data = Some(slot.correlation_data());
        properties
            .message_expiry_interval
            .get_or_insert_with(|| whole_seconds(timeout));
        let mut receipt = self.send(request).await?;
        let not_taken = async {
            match receipt.acknowledged().await {
                Ok(ReasonCode::NoMatchingSubscribers) => Error::NoResponder,
                Ok(_) => std::future::pending().await,
                Err(error) => error,
            }
        };
        tokio::select! {
            biased;
            // A response may overtake the acknowledgement of its request.
            response = &mut slot.response => response.map_err(|_| responses.why_ended()),
            error = not_taken => Err(error),
        }
    }

    /// Asks the driver for the subscription to the response topic, without waiting.
    fn ask_for_responses(&self) -> Result<(), Error> {
        let number = self.handle.next_id.fetch_add(1, Ordering::Relaxed);
        let id = SubscriptionId::new(number).ok_or(Error::Closed)?;
        let responses = &self.handle.responses;
        let filter = TopicFilter::new(responses.topic.as_str())?;
        // A response that comes twice at QoS 1 is known by its correlation data. Subscribing again after
        // each reconnect does no harm, nor does early data: no retained message can come twice.
        let options = SubscribeOptions::new(filter, QoS::AtLeastOnce)
            .retain_handling(RetainHandling::DoNotSend)
            .early(true);
        let request = Request::Subscribe(Box::new(SubscribeRequest {
            id,
            options,
            outlet: Outlet::Requests(responses.clone()),
            reply: None,
        }));
        // Not bounded by the limit of requests, as there is one such request at most.
        self.shared
            .queue
            .control(|control| control.requests.push_back(request))
    }

    /// Answers a request that arrived: queues [`Incoming::response`], and waits for room only.
    /// Cancel-safe, as [`send`](Self::send).
    ///
    /// # Errors
    /// [`Error::NotARequest`], [`Error::Topic`], or the error that ended the client.
    pub async fn respond(
        &self,
        request: &Incoming,
        payload: impl Into<Bytes>,
    ) -> Result<Receipt, Error> {
        self.send(request.response(payload)?).await
    }

    /// Returns the number of responses without a waiting request that were dropped since the client began: late or
    /// repeated ones, or messages that are no responses.
    #[must_use]
    pub fn unmatched_responses(&self) -> u64 {
        self.handle.responses.unmatched.load(Ordering::Relaxed)
    }
}
