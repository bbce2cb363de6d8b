//! Names a state: a limit and whose allowance it is, in 128 bits.
//!
//! The bits come from a keyed hash (SipHash-1-3 with a secret drawn at start), so that no
//! client can find two names that collide, nor overload one shard. Each part is hashed with its
//! length, so that `a` + `bc` and `ab` + `c` differ.
//!
//! Not here: where states are kept (`limit::memory`), what a limit is for (`tenant`).

use std::fmt;
use std::hash::Hasher;

use siphasher::sip128::{Hasher128, SipHasher13};

/// What kind of thing a limit is kept for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// A workspace, by its identifier.
    Workspace,
    /// An organisation, by its identifier.
    Organisation,
    /// The organisation of a workspace whose organisation is unknown.
    LoneWorkspace,
    /// An instance, by its identifier.
    Instance,
    /// A client's address, or the /64 it is in.
    Address,
    /// No tenant: a request, which is given a name of its own.
    Request,
}

/// The secret that keys are made with. Lives as long as the states it names.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Seed([u8; 16]);

impl fmt::Debug for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seed(***)")
    }
}

impl Seed {
    /// A seed of these bytes, which should be random and stay unknown.
    #[must_use]
    pub const fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The bytes, which are secret.
    #[must_use]
    pub fn bytes(&self) -> [u8; 16] {
        self.0
    }

    /// The part of a key that says whose allowance it is.
    #[must_use]
    pub fn owner(&self, scope: Scope, name: &[u8]) -> Owner {
        let kind = match scope {
            Scope::Workspace => 1,
            Scope::Organisation => 2,
            Scope::LoneWorkspace => 3,
            Scope::Instance => 4,
            Scope::Address => 5,
            Scope::Request => 6,
        };
        Owner(self.hash(kind, name))
    }

    /// The part of a key that says which limit, by its name in the settings.
    #[must_use]
    pub fn limit(&self, name: &str) -> LimitTag {
        LimitTag(self.hash(0, name.as_bytes()))
    }

    fn hash(&self, kind: u8, name: &[u8]) -> u128 {
        let mut hasher = SipHasher13::new_with_key(&self.0);
        hasher.write_u8(kind);
        hasher.write(name);
        hasher.finish128().as_u128()
    }
}

/// Whose allowance; see [`Seed::owner`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Owner(u128);

impl Owner {
    /// The hash itself.
    #[must_use]
    pub fn bits(self) -> u128 {
        self.0
    }
}

/// Which limit; see [`Seed::limit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LimitTag(u128);

impl LimitTag {
    /// The tag of these bits, which [`LimitTag::bits`] gave.
    #[must_use]
    pub fn from_bits(bits: u128) -> Self {
        Self(bits)
    }

    /// The bits themselves.
    #[must_use]
    pub fn bits(self) -> u128 {
        self.0
    }
}

/// Names one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    high: u64,
    low: u64,
}

/// A shard keeps so many states of each limit for all unknown keys that it has no room for.
const OVERFLOWS: u64 = 16;

impl Key {
    /// The state of `owner` under `limit`. Both are hashes of one secret: so is their mixture.
    #[must_use]
    pub fn new(owner: Owner, limit: LimitTag) -> Self {
        let mixed = owner.0 ^ limit.0;
        Self { high: high_half(mixed), low: low_half(mixed) }
    }

    /// The key of these bits, which [`Key::bits`] gave.
    #[must_use]
    pub fn from_bits(bits: u128) -> Self {
        Self { high: high_half(bits), low: low_half(bits) }
    }

    /// The bits themselves.
    #[must_use]
    pub fn bits(self) -> u128 {
        u128::from(self.high) << 64 | u128::from(self.low)
    }

    /// Which of `shards` (a power of two) keeps the state.
    pub(crate) fn shard(self, shards: usize) -> usize {
        usize::try_from(self.high >> 32).unwrap_or_default() & (shards - 1)
    }

    /// What a table hashes by.
    pub(crate) fn hash(self) -> u64 {
        self.low
    }

    /// The state that this key shares with other unknown keys when its shard is full. It lies in
    /// the same shard, and no name can be found that has this key of its own.
    pub(crate) fn overflow(self, limit: LimitTag, shards: usize) -> Self {
        let low = low_half(limit.0).rotate_left(17).wrapping_add(self.low % OVERFLOWS);
        Self { high: (self.shard(shards) as u64) << 32, low }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "halves are what is asked for")]
fn low_half(bits: u128) -> u64 {
    bits as u64
}

fn high_half(bits: u128) -> u64 {
    low_half(bits >> 64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_limit_scope_or_name_is_another_key() {
        let seed = Seed::new([7; 16]);
        let (minute, batch) = (seed.limit("workspace"), seed.limit("batch"));
        let acme = seed.owner(Scope::Workspace, b"acme");
        let keys = [
            Key::new(acme, minute),
            Key::new(acme, batch),
            Key::new(seed.owner(Scope::Organisation, b"acme"), minute),
            Key::new(seed.owner(Scope::Workspace, b"acm"), minute),
            Key::new(acme, minute).overflow(minute, 256),
        ];
        for (at, key) in keys.iter().enumerate() {
            assert!(!keys[..at].contains(key));
        }
    }

    #[test]
    fn an_overflow_stays_in_its_shard_which_has_sixteen_of_a_limit() {
        let seed = Seed::new([7; 16]);
        let limit = seed.limit("workspace");
        let mut shared = std::collections::HashSet::new();
        for name in 0..100_000_u32 {
            let key = Key::new(seed.owner(Scope::Workspace, &name.to_be_bytes()), limit);
            let overflow = key.overflow(limit, 256);
            assert_eq!(overflow.shard(256), key.shard(256));
            shared.insert(overflow);
        }
        assert_eq!(shared.len(), 16 * 256);
    }
}
