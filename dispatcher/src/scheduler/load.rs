//! The load of attempts in flight: their number, and the bytes of their bodies. (core)

/// Shares are measured in parts, of which this many are the whole.
pub(super) const PARTS: usize = 8;

/// The load of attempts in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Load {
    pub(super) attempts: usize,
    /// The bytes of their bodies.
    pub(super) bytes: usize,
}

impl Load {
    /// Adds an attempt.
    pub(super) fn plus(self, bytes: usize) -> Self {
        Self { attempts: self.attempts + 1, bytes: self.bytes + bytes }
    }

    /// Removes an attempt.
    pub(super) fn minus(self, bytes: usize) -> Self {
        Self { attempts: self.attempts - 1, bytes: self.bytes - bytes }
    }

    /// Whether it reaches `parts` of the whole, in attempts or in bytes.
    pub(super) fn reaches(self, parts: usize, whole: Self) -> bool {
        // Rounded up: with a single slot every share is one.
        self.attempts >= (whole.attempts * parts).div_ceil(PARTS)
            || self.bytes >= (whole.bytes * parts).div_ceil(PARTS)
    }
}
