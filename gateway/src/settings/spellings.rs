//! `spellings` of a route: the forms of a path that it accepts apart from the plain one.
//!
//! Not here: which spellings a path has (`request::target`).

/// Spellings of a path that a server may interpret differently: a route accepts those that its
/// settings name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spellings {
    /// A slash at the end.
    pub trailing_slash: bool,
    /// Escapes of bytes that need none, or that have another meaning unescaped; not of a slash.
    pub escapes: bool,
    /// Escapes of a slash.
    pub escaped_slash: bool,
}

impl Spellings {
    /// None of them.
    pub const NONE: Self = Self { trailing_slash: false, escapes: false, escaped_slash: false };
}
