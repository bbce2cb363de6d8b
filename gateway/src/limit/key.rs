//! Names a state in 128 bits: the limit, and the owner of the allowance.
//!
//! The bits come from a keyed hash (SipHash-1-3 with a secret drawn at start), so that no
//! client can find two names that collide, nor overload one shard. Limit and owner are hashed
//! apart, each with a byte for its kind, and combined by XOR.
//!
//! Not here: where states are stored (`limit::memory`), who owns an allowance (`rules::tenant`).

use std::fmt;
use std::hash::Hasher;

use siphasher::sip128::{Hasher128, SipHasher13};

/// The kind of owner that a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// A workspace, by its identifier.
    Workspace,
    /// An organisation, by its identifier.
    Organisation,
    /// The organisation of a workspace whose organisation is unknown.
    OwnOrganisation,
    /// An instance, by its identifier.
    Instance,
    /// A client's address, or the /64 it is in.
    Address,
    /// No tenant: an identifier for one request.
    Request,
}

/// The secret that keys are derived from. It lives as long as the states that the keys name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Seed([u8; 16]);

impl fmt::Debug for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seed(***)")
    }
}

impl Seed {
    /// A seed of these bytes, which must be random and stay secret.
    #[must_use]
    pub const fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The bytes, which are secret.
    #[must_use]
    pub fn bytes(&self) -> [u8; 16] {
        self.0
    }

    /// The part of a key that identifies the owner of the allowance.
    #[must_use]
    pub fn owner(&self, scope: Scope, name: &[u8]) -> Owner {
        let kind = match scope {
            Scope::Workspace => 1,
            Scope::Organisation => 2,
            Scope::OwnOrganisation => 3,
            Scope::Instance => 4,
            Scope::Address => 5,
            Scope::Request => 6,
        };
        Owner(self.hash(kind, name))
    }

    /// The part of a key that identifies the limit, by its name in the settings.
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

/// The owner of an allowance; see [`Seed::owner`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Owner(u128);

impl Owner {
    /// The hash itself.
    #[must_use]
    pub fn bits(self) -> u128 {
        self.0
    }
}

/// A limit; see [`Seed::limit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LimitTag(u128);

impl LimitTag {
    /// The tag of these bits, from [`LimitTag::bits`].
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

/// How many states of each limit a full shard has for all further unknown keys together.
const OVERFLOWS: u64 = 16;

impl Key {
    /// The state of `owner` under `limit`. Both are keyed hashes, and so is their XOR.
    #[must_use]
    pub fn new(owner: Owner, limit: LimitTag) -> Self {
        let mixed = owner.0 ^ limit.0;
        Self { high: high_half(mixed), low: low_half(mixed) }
    }

    /// The key of these bits, from [`Key::bits`].
    #[must_use]
    pub fn from_bits(bits: u128) -> Self {
        Self { high: high_half(bits), low: low_half(bits) }
    }

    /// The bits themselves.
    #[must_use]
    pub fn bits(self) -> u128 {
        u128::from(self.high) << 64 | u128::from(self.low)
    }

    /// Which of `shards` (a power of two) has the state.
    pub(crate) fn shard(self, shards: usize) -> usize {
        usize::try_from(self.high >> 32).unwrap_or_default() & (shards - 1)
    }

    /// The hash for the shard's table.
    pub(crate) fn hash(self) -> u64 {
        self.low
    }

    /// The key of the state that this key shares with other unknown keys when its shard is full.
    /// It is in the same shard, and no client can find a name that hashes to it.
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
