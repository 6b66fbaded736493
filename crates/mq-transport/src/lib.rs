//! mq-transport
