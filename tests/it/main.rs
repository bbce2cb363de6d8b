//! The end-to-end tests, one module per topic, on the programs as an operator runs them.

#![expect(
    clippy::panic,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that cannot go on says why and stops"
)]
#![allow(clippy::duplicate_mod, reason = "over_tls runs these modules again, over TLS")]

mod agents;
mod answers;
mod areas;
mod batch;
mod clients;
mod conventions;
mod deadlines;
mod dispatching;
mod documented;
mod edge;
mod fuzzed;
mod harness;
mod hostile;
mod http2;
mod identity_provider;
mod interleavings;
mod limits;
mod operating;
mod operators;
mod over_tls;
mod promises;
mod proxying;
mod real_servers;
mod references;
mod shared;
mod shipped;
mod targets;
mod tenants;
mod tidy;
mod tokens;
mod training;
mod unknown_keys;

use weir_tests::world::World;
