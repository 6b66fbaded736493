//! The page for browsers: one file, which asks `/v1/` for what it shows.

use hyper::{Method, StatusCode};

use super::answer::{Answer, text};

#[cfg(feature = "page")]
const PAGE: &str = include_str!("page.html");

/// Answers with the page, which has no data of the broker's.
#[cfg(feature = "page")]
pub(super) fn answer(method: &Method) -> Answer {
    use std::sync::OnceLock;

    use hyper::header::{CONTENT_SECURITY_POLICY, HeaderValue};

    static POLICY: OnceLock<String> = OnceLock::new();
    if !matches!(*method, Method::GET | Method::HEAD) {
        return text(StatusCode::METHOD_NOT_ALLOWED, "not so\n");
    }
    let mut answer = super::answer::whole(StatusCode::OK, "text/html; charset=utf-8", PAGE);
    if let Ok(policy) = HeaderValue::from_str(POLICY.get_or_init(policy)) {
        answer.headers_mut().insert(CONTENT_SECURITY_POLICY, policy);
    }
    answer
}

#[cfg(not(feature = "page"))]
pub(super) fn answer(_: &Method) -> Answer {
    let problem = "this program was built without the page\n";
    text(StatusCode::NOT_FOUND, problem)
}

/// Makes the page's policy: nothing but the page's own script and style may run, and the page may ask this broker
/// alone.
#[cfg(feature = "page")]
fn policy() -> String {
    use base64::{Engine as _, prelude::BASE64_STANDARD};
    use sha2::{Digest as _, Sha256};

    let hash = |tag: &str| {
        let (_, rest) = PAGE.split_once(&format!("<{tag}>")).unwrap_or_default();
        let (inner, _) = rest.split_once(&format!("</{tag}>")).unwrap_or_default();
        BASE64_STANDARD.encode(Sha256::digest(inner))
    };
    format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; connect-src 'self'; \
         img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        hash("script"),
        hash("style")
    )
}
