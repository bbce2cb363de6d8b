//! One server of the shared store, as this gateway knows it.
//!
//! Not here: heartbeats (`shared::connecting`), which server has a key (`servers::nodes`).

use std::sync::{Arc, Mutex, PoisonError};

use weir_common::time::Moment;

use super::address::ServerAddress;
use super::availability::Availability;
use super::connection::StoreConnection;
use super::store_time::StoreTime;

/// One server, or the primary that Sentinels know.
#[derive(Debug)]
pub(in super::super) struct StoreNode {
    /// Where it is; of a primary that Sentinels know, where the first of them is.
    pub address: ServerAddress,
    /// Whether requests ask it.
    pub availability: Availability,
    /// Its clock.
    pub time: Arc<StoreTime>,
    connection: Mutex<Option<StoreConnection>>,
}

/// A server, and the connection to it.
#[derive(Clone, Copy)]
pub(in super::super) struct Over<'c> {
    pub node: &'c Arc<StoreNode>,
    pub connection: &'c StoreConnection,
}

impl StoreNode {
    /// A server that is not connected yet. `missed_some`: gateways may have decided alone what it
    /// has to know.
    pub(in super::super) fn new(address: ServerAddress, missed_some: bool, now: Moment) -> Self {
        Self {
            address,
            availability: Availability::new(missed_some),
            time: Arc::new(StoreTime::new(now)),
            connection: Mutex::default(),
        }
    }

    /// The connection, also where the server does not answer.
    pub(in super::super) fn known_connection(&self) -> Option<StoreConnection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The connection over which requests ask it; none while it is away.
    pub(in super::super) fn connection(&self) -> Option<StoreConnection> {
        self.known_connection().filter(|_| self.availability.is_available())
    }

    pub(in super::super) fn set_connection(&self, connection: Option<StoreConnection>) {
        *self.connection.lock().unwrap_or_else(PoisonError::into_inner) = connection;
    }
}
