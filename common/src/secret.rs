//! Keeps a secret from being printed.

use std::fmt;

use subtle::ConstantTimeEq;

/// A value that prints as `***` and is read only through [`Secret::expose`].
#[derive(Clone, PartialEq, Eq)]
pub struct Secret<T>(T);

impl<T> Secret<T> {
    /// Wraps a value.
    pub fn new(value: T) -> Self {
        Self(value)
    }

    /// The value itself. Review every use of this.
    pub fn expose(&self) -> &T {
        &self.0
    }
}

impl<T> fmt::Debug for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl<T> fmt::Display for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Compares in a time that depends only on the length.
#[must_use]
pub fn same(left: &[u8], right: &[u8]) -> bool {
    left.ct_eq(right).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_never_prints() {
        let secret = Secret::new("hunter2");
        assert_eq!(format!("{secret} {secret:?}"), "*** ***");
        assert_eq!(*secret.expose(), "hunter2");
    }

    #[test]
    fn comparison_sees_every_difference() {
        assert!(same(b"abc", b"abc"));
        for other in [&b"abd"[..], b"ab", b"", b"bbc"] {
            assert!(!same(b"abc", other));
        }
    }
}
