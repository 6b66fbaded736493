//! Parameters of a request: in its URI, and in its body.

use std::net::IpAddr;

use hyper::StatusCode;

use super::answer::Failure;
use crate::view::{LARGEST_PAGE, Query};

/// The most bytes of parameters in a body: a place among subscriptions is a filter and an
/// identifier, each byte of which takes three at most.
pub(super) const LARGEST_PARAMETERS: usize = 512 * 1024;

/// The parameters of a request.
#[derive(Default)]
pub(super) struct Parameters {
    pub(super) id: Option<String>,
    pub(super) query: Query,
    pub(super) client: Option<String>,
    pub(super) user: Option<String>,
    pub(super) address: Option<IpAddr>,
    pub(super) minutes: Option<u32>,
    pub(super) filter: Option<String>,
}

pub(super) fn bad(problem: impl Into<String>) -> Failure {
    (StatusCode::BAD_REQUEST, problem.into())
}

impl Parameters {
    /// Reads the parameters of the URI and then those of the body, which is `None` if it did not
    /// arrive.
    pub(super) fn of(query: Option<&str>, body: Option<&[u8]>) -> Result<Self, Failure> {
        let body = body.ok_or_else(|| bad("the body is too large, or came too slowly"))?;
        let mut parameters = Self::default();
        parameters.read(query.unwrap_or_default())?;
        parameters.read(std::str::from_utf8(body).map_err(|_| bad("the body is not UTF-8"))?)?;
        Ok(parameters)
    }

    /// Reads `name=value&...`, percent-encoded. A `+` is a plus, as in topic filters.
    fn read(&mut self, text: &str) -> Result<(), Failure> {
        for pair in text.trim_end().split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = decoded(value)?;
            match name {
                "id" => self.id = Some(value),
                "match" => self.query.matching = value,
                "after" => self.query.after = Some(value).filter(|value| !value.is_empty()),
                "limit" => {
                    let limit = value.parse().ok();
                    let limit = limit.filter(|limit| (1..=LARGEST_PAGE).contains(limit));
                    let problem = || bad(format!("limit: a number from 1 to {LARGEST_PAGE}"));
                    self.query.limit = limit.ok_or_else(problem)?;
                }
                "client" => self.client = Some(value),
                "user" => self.user = Some(value),
                "address" => {
                    let address = value.parse().ok();
                    let problem = || bad("address: an IP address, such as 192.0.2.7");
                    self.address = Some(address.ok_or_else(problem)?);
                }
                "minutes" => {
                    let minutes = value.parse().ok();
                    let problem = || bad("minutes: a number");
                    self.minutes = Some(minutes.ok_or_else(problem)?);
                }
                "filter" => self.filter = Some(value),
                _ => return Err(bad("there is no such parameter")),
            }
        }
        Ok(())
    }

    /// Returns the identifier in the path or, where that is empty, in the parameter `id`: a URI is
    /// too short for some identifiers.
    pub(super) fn id(&self, in_path: &str) -> Result<String, Failure> {
        if in_path.is_empty() {
            self.id.clone().ok_or_else(|| bad("id is missing"))
        } else {
            decoded(in_path)
        }
    }
}

/// Decodes percent-encoding (RFC 3986 §2.1) strictly: a `%` without two digits after it is the
/// client's mistake, which the crate `percent-encoding` would pass on as text.
fn decoded(text: &str) -> Result<String, Failure> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        rest = behind;
        if *first == b'%' {
            let digits = rest.get(..2).and_then(|two| std::str::from_utf8(two).ok());
            let digits = digits.filter(|two| two.bytes().all(|byte| byte.is_ascii_hexdigit()));
            let byte = digits.and_then(|two| u8::from_str_radix(two, 16).ok());
            bytes.push(byte.ok_or_else(|| bad("two hexadecimal digits follow a `%`"))?);
            rest = &rest[2..];
        } else {
            bytes.push(*first);
        }
    }
    String::from_utf8(bytes).map_err(|_| bad("a text is not UTF-8"))
}
