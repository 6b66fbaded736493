//! mq-client
