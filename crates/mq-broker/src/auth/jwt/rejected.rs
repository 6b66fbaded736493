//! The reason for which the broker refuses a token.

/// The reason for which the broker refuses a token. The log has it; the client gets no more than
/// the refusal.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(in crate::auth) enum Rejected {
    #[error("the algorithm is not RS256, ES256 or EdDSA")]
    Algorithm,
    #[error("the header `crit` is not supported")]
    Critical,
    #[error("the key file has no key with this `kid`")]
    UnknownKey,
    #[error("the key with this `kid` is for another algorithm")]
    OtherAlgorithm,
    #[error("`kid` is missing, and several keys are for this algorithm")]
    NoKeyId,
    #[error("the signature is wrong")]
    Signature,
    #[error("`{0}` is missing or malformed")]
    Claim(String),
    #[error("the claims are not a JSON object")]
    Claims,
    #[error("the token has expired")]
    Expired,
    #[error("the token is not valid yet")]
    NotYet,
    #[error("`iss` is not the configured issuer")]
    Issuer,
    #[error("`aud` is not the configured audience")]
    Audience,
    #[error("the user name of CONNECT is not the token's")]
    UserName,
    #[error("the client identifier of CONNECT is not the token's")]
    ClientId,
    #[error("`acl`, rule {0}: {1}")]
    Rule(usize, String),
}
