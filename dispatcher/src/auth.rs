//! Who may call, and for what.

/// The tokens that are known, hashed.
#[derive(Clone, Debug, Default)]
pub struct Tokens {}
