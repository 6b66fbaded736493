//! A packet of mq-codec as rumqttc's, field by field.

pub(crate) mod v4;
pub(crate) mod v5;

use mq_codec::{ByteStr, Connect};

/// A reason code or return code of theirs with the name of ours, or after `=>` with its own.
macro_rules! same_name {
    ($reason:expr, $theirs:ident, [$($name:ident $(=> $other:ident)?),* $(,)?]) => {
        match $reason {
            $(mq_codec::ReasonCode::$name => same_name!(@ $theirs $name $($other)?),)*
            other => unreachable!("{other} is not allowed there"),
        }
    };
    (@ $theirs:ident $name:ident) => { $theirs::$name };
    (@ $theirs:ident $name:ident $other:ident) => { $theirs::$other };
}
pub(crate) use same_name;

fn string(text: &ByteStr) -> String {
    text.as_str().to_owned()
}

/// Returns user name and password; an empty string stands for the one that is not there.
fn login(connect: &Connect) -> Option<(String, String)> {
    let name = connect.user_name.as_ref().map(string);
    let password = connect.password.as_ref().map(|password| {
        String::from_utf8(password.to_vec()).expect("restricted to passwords that are text")
    });
    (name.is_some() || password.is_some())
        .then(|| (name.unwrap_or_default(), password.unwrap_or_default()))
}
