//! `spellings` of a route: what it takes of a path beside the plain form.
//!
//! Not here: which spellings a path has (`request::target`).

/// Spellings of a path that a server may read in another way: a route takes those that its
/// settings name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spellings {
    /// A slash at the end.
    pub trailing_slash: bool,
    /// Escapes of bytes that need none, or that mean something else unescaped; not of a slash.
    pub escapes: bool,
    /// Escapes of a slash.
    pub escaped_slash: bool,
}

impl Spellings {
    /// None of them.
    pub const NONE: Self = Self { trailing_slash: false, escapes: false, escaped_slash: false };
}
