//! An attempt in flight: what it carried, what its receiver answered, and what must follow.

use http::HeaderMap;
use weir_common::time::{Moment, UnixTime};
use weir_dispatcher::domain::delivery::DeliveryState;
use weir_dispatcher::domain::outcome::Outcome;

/// An attempt, as its receiver saw it.
#[derive(Clone, Debug)]
pub(crate) struct Flight {
    pub(crate) started: Moment,
    pub(crate) url: usize,
    pub(crate) sent: Sent,
    pub(crate) ended: Option<Landed>,
    /// What follows cannot be predicted: something changed while it was in flight.
    pub(crate) loose: bool,
}

/// How an attempt ended, and what must follow.
#[derive(Clone, Debug)]
pub(crate) struct Landed {
    pub(crate) at: Moment,
    pub(crate) outcome: Outcome,
    pub(crate) state: DeliveryState,
    pub(crate) due: UnixTime,
}

/// What an attempt carried, and what its receiver answered.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) headers: HeaderMap,
    /// The body of the response, if there was one.
    pub(crate) answered: Option<Vec<u8>>,
}
