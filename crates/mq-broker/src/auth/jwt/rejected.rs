//! The reason for which the broker refuses a token.

/// The reason for which the broker refuses a token. The log has it; the client gets no more than
/// the refusal.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(in crate::auth) enum Rejected {
    #[error("its algorithm is not RS256, ES256 or EdDSA")]
    Algorithm,
    #[error("it has a `crit`, and none of what that can ask for is understood here")]
    Critical,
    #[error("no key has its `kid`")]
    UnknownKey,
    #[error("the key of its `kid` is for another algorithm")]
    OtherAlgorithm,
    #[error("it has no `kid`, and several keys are for its algorithm")]
    NoKeyId,
    #[error("its signature is wrong")]
    Signature,
    #[error("`{0}` is missing or not of its form")]
    Claim(String),
    #[error("its claims are no JSON object")]
    Claims,
    #[error("it has expired")]
    Expired,
    #[error("it does not hold yet")]
    NotYet,
    #[error("it is another's: `iss` is not the issuer")]
    Issuer,
    #[error("it is for another: `aud` is not the audience")]
    Audience,
    #[error("the user name of CONNECT is not its user")]
    UserName,
    #[error("the client identifier of CONNECT is not its")]
    ClientId,
    #[error("`acl`, rule {0}: {1}")]
    Rule(usize, String),
}
