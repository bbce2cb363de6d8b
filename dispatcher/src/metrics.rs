//! Every metric the dispatcher has, declared in one list.

/// Every metric.
pub struct Metrics {}
