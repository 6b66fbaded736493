//! Enhanced authentication (5.0, §4.12): the interface of a method.

use bytes::Bytes;

/// A method of enhanced authentication, such as SCRAM
/// ([`ClientBuilder::scram`](crate::ClientBuilder::scram)). Give a method of your own to
/// [`ClientBuilder::auth_method`](crate::ClientBuilder::auth_method).
///
/// The client's task calls the method for each connection, so it must not block. With a
/// method, only CONNECT and AUTH leave before CONNACK `[MQTT-3.1.2-30]`: early messages and
/// subscriptions wait, and 0-RTT carries CONNECT alone.
///
/// ```
/// use mq_client::{AuthError, AuthMethod, Bytes};
///
/// /// The server sends a number, and the client the next one.
/// #[derive(Debug)]
/// struct Next;
///
/// impl AuthMethod for Next {
///     fn name(&self) -> &str {
///         "NEXT"
///     }
///
///     fn start(&mut self) -> Result<Option<Bytes>, AuthError> {
///         Ok(None)
///     }
///
///     fn step(&mut self, data: &[u8]) -> Result<Bytes, AuthError> {
///         let number = std::str::from_utf8(data).ok().and_then(|text| text.parse::<u8>().ok());
///         let number = number.ok_or_else(|| AuthError::new("not a number"))?;
///         Ok(number.wrapping_add(1).to_string().into())
///     }
///
///     fn finish(&mut self, _data: Option<&[u8]>) -> Result<(), AuthError> {
///         Ok(())
///     }
/// }
/// # let _ = mq_client::Client::builder("mqtt://localhost").unwrap().auth_method(Next);
/// ```
pub trait AuthMethod: std::fmt::Debug + Send + 'static {
    /// Returns the name of the method, for CONNECT.
    fn name(&self) -> &str;

    /// Begins a new connection; returns the authentication data of CONNECT.
    ///
    /// # Errors
    /// If the method cannot begin; the client ends.
    fn start(&mut self) -> Result<Option<Bytes>, AuthError>;

    /// Returns the client's next data for the server, in answer to `data`, which is empty if the server sent none.
    ///
    /// # Errors
    /// If there is no answer; the client ends.
    fn step(&mut self, data: &[u8]) -> Result<Bytes, AuthError>;

    /// Checks the last `data` of the server, which accepts the client: the method can verify the
    /// server here.
    ///
    /// # Errors
    /// If the server is not the right one; the client ends.
    fn finish(&mut self, data: Option<&[u8]>) -> Result<(), AuthError>;
}

/// Reason for which an authentication method fails on the client's side, in one line.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct AuthError(String);

impl AuthError {
    /// Makes an error with its one line of text.
    pub fn new(problem: impl Into<String>) -> Self {
        Self(problem.into())
    }
}
