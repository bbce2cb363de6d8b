//! The stories of slow and of hostile clients once more, by TLS: nothing in them may change.

use weir_tests::world::Secure as World;

#[path = "deadlines.rs"]
mod deadlines;
#[path = "hostile.rs"]
mod hostile;
