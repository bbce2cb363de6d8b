//! The end-to-end tests, one module per story, against the program as an operator runs it.

#![expect(
    clippy::panic,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that cannot go on says why and stops"
)]
#![allow(clippy::duplicate_mod, reason = "over_tls tells stories once more, in another world")]

mod answers;
mod areas;
mod batch;
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
mod over_tls;
mod proxying;
mod real_servers;
mod references;
mod shipped;
mod strangers;
mod targets;
mod tenants;
mod tidy;
mod tokens;

use weir_tests::world::World;
