//! The servers of the shared store: where they are, which of them has a key, and the connections
//! to them. Nothing here knows of limits: `shared::remote` and the leases send their calls by it.

#[path = "servers/acknowledged.rs"]
pub(super) mod acknowledged;
#[path = "servers/address.rs"]
pub mod address;
#[path = "servers/availability.rs"]
pub(super) mod availability;
#[path = "servers/cluster.rs"]
pub(super) mod cluster;
#[path = "servers/connection.rs"]
pub mod connection;
#[path = "servers/errors.rs"]
pub mod errors;
#[path = "servers/join.rs"]
pub(super) mod join;
#[path = "servers/link.rs"]
pub mod link;
#[path = "servers/login.rs"]
pub mod login;
#[path = "servers/loss_log.rs"]
pub mod loss_log;
#[path = "servers/node.rs"]
pub(super) mod node;
#[path = "servers/nodes.rs"]
pub(super) mod nodes;
#[path = "servers/sentinel.rs"]
pub(super) mod sentinel;
#[path = "servers/store_time.rs"]
pub(super) mod store_time;
#[path = "servers/thread_links.rs"]
pub(super) mod thread_links;
