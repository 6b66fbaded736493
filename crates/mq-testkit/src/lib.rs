//! mq-testkit
