//! Web pages that a listener accepts over WebSocket.

/// Web origins whose pages may connect over WebSocket (RFC 6455 §10.2).
///
/// A browser names the page that it acts for in the header `Origin`, which the page cannot change. Other
/// clients send no such header and get in, since they could forge it anyway.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum AllowedOrigins {
    /// Every page.
    #[default]
    All,
    /// Pages of the host that the browser reaches the listener by: `https://app.example` at
    /// `wss://app.example:8084`, whatever the ports. It keeps a foreign page from using a broker that only
    /// the browser can reach, such as a broker on loopback without passwords. It does not help where the
    /// page's owner makes the page's name resolve to the broker's address (DNS rebinding): only passwords
    /// or certificates do.
    SameHost,
    /// Pages of these origins, such as `https://app.example`, each written as browsers write it.
    Listed(Vec<String>),
}

impl AllowedOrigins {
    /// Returns `true` if a page of `origin` may connect to a listener that its browser calls `host`, the value of the
    /// `Host` header.
    #[must_use]
    pub fn allow(&self, origin: &str, host: &str) -> bool {
        match self {
            Self::All => true,
            Self::Listed(origins) => origins.iter().any(|one| one == origin),
            Self::SameHost => origin.split_once("://").is_some_and(|(_, page)| {
                let page = without_port(page);
                !page.is_empty() && page.eq_ignore_ascii_case(without_port(host))
            }),
        }
    }
}

/// Returns the host of `HOST:PORT`, where `HOST` may be an IPv6 address in brackets.
fn without_port(authority: &str) -> &str {
    let end = if authority.starts_with('[') {
        authority.find(']').map(|end| end + 1)
    } else {
        authority.find(':')
    };
    &authority[..end.unwrap_or(authority.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_of_the_same_host_whatever_the_ports_and_the_case() {
        for (origin, host, welcome) in [
            ("https://app.example", "app.example:8084", true),
            ("http://localhost:3000", "localhost:8083", true),
            ("http://App.Example", "app.example", true),
            ("http://[::1]:3000", "[::1]:8083", true),
            ("http://127.0.0.1", "127.0.0.1:8083", true),
            ("https://evil.example", "app.example:8084", false),
            (
                "https://app.example.evil.example",
                "app.example:8084",
                false,
            ),
            (
                "https://evil.example:80@app.example",
                "app.example:8084",
                false,
            ),
            ("http://[::2]", "[::1]:8083", false),
            ("null", "app.example", false),
            ("app.example", "app.example", false),
            ("http://", "", false),
            ("", "", false),
        ] {
            let is = AllowedOrigins::SameHost.allow(origin, host);
            assert_eq!(is, welcome, "{origin} at {host}");
        }
    }
}
