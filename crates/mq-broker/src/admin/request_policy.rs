//! Authorization of requests over HTTP.
//!
//! Metrics and health are for everybody. The rest needs a token. With `open_on_loopback` a program
//! of this machine reads without one; a change always needs one. A proxy on this machine also
//! connects from loopback, and by default some proxies add nothing that distinguishes their
//! requests from a program's, so the key is off by default.
//!
//! Requests by pages of other sites are refused, by their own name (`Origin`, `Sec-Fetch-Site`) and
//! by a name of theirs that resolves to this address (`Host`).

use std::net::IpAddr;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use hyper::{
    HeaderMap, StatusCode,
    header::{AUTHORIZATION, HOST, HeaderName, ORIGIN},
    http::{request, uri::Authority},
};

use super::{answer::Failure, tokens::Tokens};

/// The access that a request needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Need {
    /// Reads data that may contain clients' names and topics.
    Read,
    /// Changes the broker's state.
    Change,
}

/// Headers of a request that was forwarded: it may come from anywhere.
const PASSED_ON: [&str; 9] = [
    "forwarded",
    "via",
    "x-client-ip",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-proto",
    "x-forwarded-server",
    "x-real-ip",
];

/// Checks requests.
#[derive(Debug, Default)]
pub(super) struct RequestPolicy<'a> {
    pub(super) tokens: Option<&'a Tokens>,
    /// Host names of this broker.
    pub(super) hosts: &'a [String],
    /// `true` if programs of this machine read without a token.
    pub(super) open_on_loopback: bool,
}

impl RequestPolicy<'_> {
    /// Checks that the request may be answered.
    ///
    /// # Errors
    /// The status and the reason of the refusal.
    pub(super) fn check(
        &self,
        head: &request::Parts,
        peer: IpAddr,
        need: Need,
    ) -> Result<(), Failure> {
        let host = only(&head.headers, &HOST).and_then(|host| host.parse::<Authority>().ok());
        let host = host.ok_or_else(|| refused(StatusCode::BAD_REQUEST, "Host is missing"))?;
        let name = host.host().trim_matches(['[', ']']);
        let address = name.parse::<IpAddr>().ok();
        let is_local = name.eq_ignore_ascii_case("localhost");
        let is_listed = self.hosts.iter().any(|own| own.eq_ignore_ascii_case(name));
        if !is_local && !is_listed && address.is_none() {
            let problem = "the broker is not known by that name: see admin.hosts";
            return Err(refused(StatusCode::MISDIRECTED_REQUEST, problem));
        }
        if is_of_another_page(&head.headers, &host, need) {
            return Err(refused(StatusCode::FORBIDDEN, "another site's page asks"));
        }
        match token(&head.headers) {
            Some(token) if self.tokens.is_some_and(|tokens| tokens.has(&token)) => return Ok(()),
            Some(_) => return Err(refused(StatusCode::UNAUTHORIZED, "the token is wrong")),
            None => {}
        }
        if need == Need::Change && self.tokens.is_none() {
            let problem = "without admin.token_file nothing can be changed over HTTP";
            return Err(refused(StatusCode::FORBIDDEN, problem));
        }
        let is_near = is_local || address.is_some_and(|address| address.is_loopback());
        let is_passed_on = PASSED_ON
            .iter()
            .any(|name| head.headers.contains_key(*name));
        let is_of_this_machine = is_near && peer.to_canonical().is_loopback() && !is_passed_on;
        if need == Need::Read && self.open_on_loopback && is_of_this_machine {
            return Ok(());
        }
        if self.tokens.is_none() {
            let problem = "a token is missing, and there is none without admin.token_file";
            return Err(refused(StatusCode::UNAUTHORIZED, problem));
        }
        Err(refused(StatusCode::UNAUTHORIZED, "a token is missing"))
    }
}

fn refused(status: StatusCode, problem: &str) -> Failure {
    (status, problem.to_owned())
}

/// Returns the header's value, if the header occurs exactly once.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(value)
}

/// Returns `true` if the request is by a page of another site, as a browser's headers show.
fn is_of_another_page(headers: &HeaderMap, host: &Authority, need: Need) -> bool {
    let origin = headers.contains_key(ORIGIN).then(|| {
        let origin = only(headers, &ORIGIN)?;
        origin
            .strip_prefix("http://")
            .or_else(|| origin.strip_prefix("https://"))
    });
    let is_own = |origin: &str| origin.eq_ignore_ascii_case(host.as_str());
    if origin.is_some_and(|origin| !origin.is_some_and(is_own)) {
        return true;
    }
    let said = |name: &'static str| only(headers, &HeaderName::from_static(name));
    match said("sec-fetch-site") {
        // A link to the page from another site only shows it.
        Some("cross-site" | "same-site") => {
            need == Need::Change || said("sec-fetch-mode") != Some("navigate")
        }
        _ => false,
    }
}

/// Returns the token: that of Bearer, or the password of Basic, which browsers prompt for.
fn token(headers: &HeaderMap) -> Option<Vec<u8>> {
    if !headers.contains_key(AUTHORIZATION) {
        return None;
    }
    // A token was given from here on, valid or not.
    let given = only(headers, &AUTHORIZATION).unwrap_or_default();
    let (scheme, value) = given.split_once(' ').unwrap_or_default();
    let value = value.trim();
    Some(if scheme.eq_ignore_ascii_case("bearer") {
        value.as_bytes().to_vec()
    } else if scheme.eq_ignore_ascii_case("basic") {
        let pair = BASE64_STANDARD.decode(value).unwrap_or_default();
        let colon = pair.iter().position(|byte| *byte == b':');
        colon.map_or_else(Vec::new, |at| pair[at + 1..].to_vec())
    } else {
        Vec::new()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::tokens::make_token_file;

    const NEAR: [u8; 4] = [127, 0, 0, 1];
    const FAR: [u8; 4] = [192, 0, 2, 7];

    fn open() -> RequestPolicy<'static> {
        RequestPolicy {
            open_on_loopback: true,
            ..RequestPolicy::default()
        }
    }

    fn head(headers: &[(&str, &str)]) -> request::Parts {
        let mut request = hyper::Request::builder().uri("/v1/status");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    fn status(
        policy: &RequestPolicy<'_>,
        peer: [u8; 4],
        need: Need,
        headers: &[(&str, &str)],
    ) -> u16 {
        match policy.check(&head(headers), peer.into(), need) {
            Ok(()) => 200,
            Err((status, _)) => status.as_u16(),
        }
    }

    #[test]
    fn without_a_token_this_machine_alone_reads_and_nobody_changes() {
        let policy = open();
        let host = ("host", "127.0.0.1:9883");
        assert_eq!(status(&policy, NEAR, Need::Read, &[host]), 200);
        for name in ["localhost:9883", "[::1]:9883", "LOCALHOST"] {
            let headers = [("host", name)];
            assert_eq!(status(&policy, NEAR, Need::Read, &headers), 200);
            let closed = RequestPolicy::default();
            assert_eq!(status(&closed, NEAR, Need::Read, &headers), 401);
        }
        assert_eq!(status(&policy, NEAR, Need::Change, &[host]), 403);
        assert_eq!(status(&policy, FAR, Need::Read, &[host]), 401);
        let far = ("host", "192.0.2.1:9883");
        assert_eq!(status(&policy, NEAR, Need::Read, &[far]), 401);
        for name in PASSED_ON {
            let headers = [host, (name, "for=192.0.2.7")];
            assert_eq!(status(&policy, NEAR, Need::Read, &headers), 401, "{name}");
        }
        assert_eq!(status(&policy, NEAR, Need::Read, &[]), 400);
        assert_eq!(status(&policy, NEAR, Need::Read, &[host, host]), 400);
    }

    #[test]
    fn a_token_opens_all_from_everywhere() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens");
        make_token_file(&path).unwrap();
        let token = std::fs::read_to_string(&path).unwrap();
        let token = token.trim_end();
        let tokens = Tokens::open(path).unwrap();
        let policy = RequestPolicy {
            tokens: Some(&tokens),
            hosts: &["broker.example".to_owned()],
            open_on_loopback: true,
        };
        let basic = |user: &str| {
            let pair = BASE64_STANDARD.encode(format!("{user}:{token}"));
            format!("Basic {pair}")
        };
        let host = ("host", "broker.example");
        for given in [
            format!("Bearer {token}"),
            format!("bearer {token}"),
            basic(""),
            basic("ann"),
        ] {
            for need in [Need::Read, Need::Change] {
                let headers = [host, ("authorization", given.as_str())];
                assert_eq!(status(&policy, FAR, need, &headers), 200, "{given}");
            }
        }
        for given in [
            "",
            "Bearer",
            "Bearer ",
            "Bearer x",
            "Basic",
            "Basic !",
            "Basic eA==",
            token,
        ] {
            // A wrong token is refused even where none is needed.
            for (peer, host) in [(FAR, host), (NEAR, ("host", "localhost"))] {
                let headers = [host, ("authorization", given)];
                assert_eq!(status(&policy, peer, Need::Read, &headers), 401, "{given}");
            }
        }
        let twice = format!("Bearer {token}");
        let twice = [
            host,
            ("authorization", twice.as_str()),
            ("authorization", "x"),
        ];
        assert_eq!(status(&policy, FAR, Need::Read, &twice), 401);
        assert_eq!(status(&policy, NEAR, Need::Change, &[host]), 401);
    }

    #[test]
    fn pages_of_other_sites_cannot_ask() {
        let policy = open();
        let host = ("host", "127.0.0.1:9883");
        for origin in [
            "http://evil.example",
            "null",
            "http://127.0.0.1",
            "http://127.0.0.1:98830",
            "127.0.0.1:9883",
        ] {
            let headers = [host, ("origin", origin)];
            assert_eq!(status(&policy, NEAR, Need::Read, &headers), 403, "{origin}");
        }
        let own = [host, ("origin", "http://127.0.0.1:9883")];
        assert_eq!(status(&policy, NEAR, Need::Read, &own), 200);
        // A name of another site that resolves to this address.
        let rebound = [("host", "evil.example:9883")];
        assert_eq!(status(&policy, NEAR, Need::Read, &rebound), 421);
        for site in ["cross-site", "same-site"] {
            let fetch = [host, ("sec-fetch-site", site), ("sec-fetch-mode", "cors")];
            assert_eq!(status(&policy, NEAR, Need::Read, &fetch), 403);
            let link = [
                host,
                ("sec-fetch-site", site),
                ("sec-fetch-mode", "navigate"),
            ];
            assert_eq!(status(&policy, NEAR, Need::Read, &link), 200);
        }
    }
}
