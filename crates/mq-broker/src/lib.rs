//! mq-broker
