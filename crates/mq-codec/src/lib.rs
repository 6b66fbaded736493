//! mq-codec
