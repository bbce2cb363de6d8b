//! Runs the tests of slow and of hostile clients again, over TLS: the results must be the same.

use weir_tests::world::Secure as World;

#[path = "deadlines.rs"]
mod deadlines;
#[path = "hostile.rs"]
mod hostile;
