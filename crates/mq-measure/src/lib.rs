//! mq-measure
