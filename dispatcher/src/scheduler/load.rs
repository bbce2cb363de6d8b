//! What attempts under way take: how many they are, and the bytes of their bodies.

/// The whole has so many parts.
pub(super) const PARTS: usize = 8;

/// What attempts under way take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Load {
    pub(super) attempts: usize,
    /// Of their bodies.
    pub(super) bytes: usize,
}

impl Load {
    /// One attempt more, with a body of so many bytes.
    pub(super) fn plus(self, bytes: usize) -> Self {
        Self { attempts: self.attempts + 1, bytes: self.bytes + bytes }
    }

    /// One attempt less.
    pub(super) fn minus(self, bytes: usize) -> Self {
        Self { attempts: self.attempts - 1, bytes: self.bytes - bytes }
    }

    /// Whether it is so many parts of the whole, in attempts or in bytes.
    pub(super) fn reaches(self, parts: usize, whole: Self) -> bool {
        // Rounded up: of a single place everybody has a share.
        self.attempts >= (whole.attempts * parts).div_ceil(PARTS)
            || self.bytes >= (whole.bytes * parts).div_ceil(PARTS)
    }
}
