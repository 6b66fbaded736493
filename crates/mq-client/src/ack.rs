//! The outcome of a QoS 1 or 2 message, shared by its receipt and the driver.

use mq_codec::ReasonCode;
use tokio::sync::SetOnce;

use crate::Error;

/// The outcome of a QoS 1 or 2 message, shared by its receipt and the driver. The first outcome stays.
pub(crate) type AckCell = SetOnce<Result<ReasonCode, Error>>;
