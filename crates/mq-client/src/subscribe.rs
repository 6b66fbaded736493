//! The options of a subscription.

use mq_codec::{ByteStr, RetainHandling, Subscription as Filter, SubscriptionOptions, TopicFilter};

use crate::Error;

/// Messages that wait in a stream before the driver stops reading: the default of
/// [`SubscribeOptions::capacity`].
pub(crate) const DEFAULT_CAPACITY: usize = 1024;

/// The filters and options of a subscription.
///
/// ```
/// use mq_client::{QoS, SubscribeOptions};
///
/// let options = SubscribeOptions::to("plant/+/temperature", QoS::AtLeastOnce)?
///     .and_to("plant/+/alarm", QoS::ExactlyOnce)?
///     .no_local(true)
///     .capacity(100);
/// # Ok::<(), mq_client::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct SubscribeOptions {
    pub(crate) filters: Vec<Filter>,
    pub(crate) capacity: usize,
    pub(crate) user_properties: Vec<(ByteStr, ByteStr)>,
    pub(crate) early: bool,
}

impl SubscribeOptions {
    /// Makes the options of a subscription to a filter, with a QoS or all of MQTT 5.0's options.
    #[must_use]
    pub fn new(filter: TopicFilter, options: impl Into<SubscriptionOptions>) -> Self {
        Self {
            filters: Vec::with_capacity(1),
            capacity: DEFAULT_CAPACITY,
            user_properties: Vec::new(),
            early: false,
        }
        .and(filter, options)
    }

    /// Makes the options of a subscription to a filter given as text.
    ///
    /// # Errors
    /// [`Error::Topic`] if the text is not a topic filter.
    pub fn to<T>(filter: T, options: impl Into<SubscriptionOptions>) -> Result<Self, Error>
    where
        T: TryInto<TopicFilter>,
        Error: From<T::Error>,
    {
        Ok(Self::new(filter.try_into()?, options))
    }

    /// Adds a filter, whose messages come in the same stream.
    #[must_use]
    pub fn and(mut self, filter: TopicFilter, options: impl Into<SubscriptionOptions>) -> Self {
        let options = options.into();
        self.filters.push(Filter { filter, options });
        self
    }

    /// Adds a filter given as text, whose messages come in the same stream.
    ///
    /// # Errors
    /// [`Error::Topic`] if the text is not a topic filter.
    pub fn and_to<T>(
        self,
        filter: T,
        options: impl Into<SubscriptionOptions>,
    ) -> Result<Self, Error>
    where
        T: TryInto<TopicFilter>,
        Error: From<T::Error>,
    {
        Ok(self.and(filter.try_into()?, options))
    }

    /// Sets No Local for the filter that was given last: the client's own messages are left out (5.0). Default: no.
    #[must_use]
    pub fn no_local(mut self, no_local: bool) -> Self {
        self.last().no_local = no_local;
        self
    }

    /// Sets Retain As Published for the filter that was given last: messages keep the publisher's RETAIN flag (5.0).
    /// Default: no.
    #[must_use]
    pub fn retain_as_published(mut self, retain: bool) -> Self {
        self.last().retain_as_published = retain;
        self
    }

    /// Sets Retain Handling for the filter that was given last: the SUBSCRIBE packets after which the server sends
    /// retained messages (5.0). Default: all of them, including those that a reconnect without a session sends again.
    #[must_use]
    pub fn retain_handling(mut self, handling: RetainHandling) -> Self {
        self.last().retain_handling = handling;
        self
    }

    fn last(&mut self) -> &mut SubscriptionOptions {
        let last = self.filters.last_mut();
        &mut last.expect("`new` begins with one filter").options
    }

    /// Sets the number of messages that wait in the stream before the driver stops reading; at least 1, default 1,024.
    #[must_use]
    pub fn capacity(mut self, capacity: usize) -> Self {
        self.capacity = capacity.max(1);
        self
    }

    /// Adds a name and a value of SUBSCRIBE for the server's application (5.0).
    ///
    /// # Errors
    /// [`Error::Text`].
    pub fn user_property<N, V>(mut self, name: N, value: V) -> Result<Self, Error>
    where
        N: TryInto<ByteStr>,
        V: TryInto<ByteStr>,
        Error: From<N::Error> + From<V::Error>,
    {
        let property = (name.try_into()?, value.try_into()?);
        self.user_properties.push(property);
        Ok(self)
    }

    /// Allows SUBSCRIBE to be sent before the handshake of TLS or QUIC is complete, as early data; see
    /// [`Outgoing::early`](crate::Outgoing::early) for the risk. If SUBSCRIBE arrives twice, retained messages come
    /// twice. Default: no.
    #[must_use]
    pub fn early(mut self, early: bool) -> Self {
        self.early = early;
        self
    }
}
