//! Enhanced authentication (5.0, §4.12): what a method has to do.

use bytes::Bytes;

/// A method of enhanced authentication, such as SCRAM
/// ([`ClientBuilder::scram`](crate::ClientBuilder::scram)); give an own one to
/// [`ClientBuilder::auth_method`](crate::ClientBuilder::auth_method).
///
/// It is asked in the client's task, once more for each connection, and must not block. With a
/// method nothing leaves before CONNACK but AUTH `[MQTT-3.1.2-30]`: early messages and
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
    /// Its name, which CONNECT has.
    fn name(&self) -> &str;

    /// A new connection begins: what CONNECT says.
    ///
    /// # Errors
    /// If there is nothing to begin with; the client ends.
    fn start(&mut self) -> Result<Option<Bytes>, AuthError>;

    /// The answer to what the server has sent, which is empty if it sent nothing.
    ///
    /// # Errors
    /// If there is none; the client ends.
    fn step(&mut self, data: &[u8]) -> Result<Bytes, AuthError>;

    /// The server lets the client in, and says this last. Here the server can be held to account,
    /// too.
    ///
    /// # Errors
    /// If it is not the server that it should be; the client ends.
    fn finish(&mut self, data: Option<&[u8]>) -> Result<(), AuthError>;
}

/// Why an authentication fails on this side.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct AuthError(String);

impl AuthError {
    /// With what is wrong, in one line.
    pub fn new(problem: impl Into<String>) -> Self {
        Self(problem.into())
    }
}
