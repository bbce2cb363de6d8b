//! Names a state in 128 bits: the limit, and the owner of the allowance.
//!
//! The bits come from a keyed hash (SipHash-1-3 with a secret drawn at start), so that no
//! client can find two names that collide, nor overload one shard. Limit and owner are hashed
//! apart, each with a byte for its kind, and combined by XOR. The owner of a combination is the
//! hash of its parts' owners.
//!
//! Not here: where states are stored (`limit::memory`), who owns an allowance (`rules::tenant`).

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};

use arrayvec::ArrayString;
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
    /// A claim of a token, by its name and its value.
    Claim,
    /// A header of a request, by its name and the fingerprint of its value.
    Header,
    /// Several owners together.
    Combination,
    /// All requests that lack one part of a key, by the part's name.
    Missing,
}

impl Scope {
    /// Its byte in hashes: released ones never change, or snapshots would be of other keys.
    fn kind(self) -> u8 {
        match self {
            Self::Workspace => 1,
            Self::Organisation => 2,
            Self::OwnOrganisation => 3,
            Self::Instance => 4,
            Self::Address => 5,
            Self::Request => 6,
            Self::Claim => 7,
            Self::Header => 8,
            Self::Combination => 9,
            Self::Missing => 10,
        }
    }
}

/// The byte of a header's fingerprint.
const FINGERPRINT: u8 = 11;

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

    /// The seed that all gateways with the same secret have, and a fingerprint by which they can
    /// tell that it is the same. Neither shows the secret.
    #[must_use]
    pub fn of_secret(secret: &str) -> (Self, String) {
        let hash = |purpose: &str| {
            let text = [purpose, ":", secret].concat();
            let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
            digest.as_ref().first_chunk::<16>().copied().unwrap_or_default()
        };
        let print = u128::from_be_bytes(hash("weir fingerprint"));
        (Self(hash("weir keys")), format!("{print:032x}"))
    }

    /// The bytes, which are secret.
    #[must_use]
    pub fn bytes(&self) -> [u8; 16] {
        self.0
    }

    /// The part of a key that identifies the owner of the allowance.
    #[must_use]
    pub fn owner(&self, scope: Scope, name: &[u8]) -> Owner {
        Owner(self.hash(scope.kind(), name))
    }

    /// The owner of the value that a claim has.
    #[must_use]
    pub fn claim(&self, name: &str, value: &str) -> Owner {
        Owner(self.hash_pair(Scope::Claim.kind(), name, value.as_bytes()))
    }

    /// The owner of the value that a header has, from the value's fingerprint.
    #[must_use]
    pub fn header(&self, name: &str, value: Fingerprint) -> Owner {
        Owner(self.hash_pair(Scope::Header.kind(), name, &value.0.to_be_bytes()))
    }

    /// What is shown instead of a header's value. It is no part of a state's key, so that a reader
    /// of the logs cannot find values that overload one shard.
    #[must_use]
    pub fn fingerprint(&self, name: &str, value: &[u8]) -> Fingerprint {
        Fingerprint(self.hash_pair(FINGERPRINT, name, value))
    }

    /// The owner of a combination, from the owners of its parts in their order.
    #[must_use]
    pub fn combined(&self, owners: impl IntoIterator<Item = Owner>) -> Owner {
        let mut hasher = SipHasher13::new_with_key(&self.0);
        hasher.write_u8(Scope::Combination.kind());
        for owner in owners {
            hasher.write(&owner.0.to_be_bytes());
        }
        Owner(hasher.finish128().as_u128())
    }

    /// The part of a key that identifies the limit, by its name in the settings.
    #[must_use]
    pub fn limit(&self, name: &str) -> LimitTag {
        LimitTag(self.hash(0, name.as_bytes()))
    }

    /// The length of the name separates it from the value.
    fn hash_pair(&self, kind: u8, name: &str, value: &[u8]) -> u128 {
        let mut hasher = SipHasher13::new_with_key(&self.0);
        hasher.write_u8(kind);
        hasher.write(&(name.len() as u64).to_be_bytes());
        hasher.write(name.as_bytes());
        hasher.write(value);
        hasher.finish128().as_u128()
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

    /// The slot of its keys in a shared store.
    #[must_use]
    pub fn slot(self) -> u64 {
        high_half(self.0)
    }
}

/// A header's value as logs and the admin listener show it; see [`Seed::fingerprint`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fingerprint(u128);

impl Fingerprint {
    /// Reads 32 hexadecimal digits, as they are shown.
    #[must_use]
    pub fn read(digits: &str) -> Option<Self> {
        let is_hex = digits.len() == 32 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        is_hex.then(|| u128::from_str_radix(digits, 16).ok().map(Self))?
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
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

/// The last `digits` hexadecimal digits of a number, 32 at most.
#[must_use]
pub fn hex(number: u128, digits: usize) -> ArrayString<32> {
    let digit = |nibble: u8| nibble + if nibble < 10 { b'0' } else { b'a' - 10 };
    let all = number.to_be_bytes().map(|byte| [digit(byte >> 4), digit(byte & 0xf)]);
    let all = all.as_flattened();
    let last = all.get(32_usize.saturating_sub(digits)..).unwrap_or(all);
    // The digits are text, and fit.
    std::str::from_utf8(last).ok().and_then(|text| ArrayString::from(text).ok()).unwrap_or_default()
}

/// What is known of each key.
pub type KeyMap<T> = HashMap<Key, T, BuildHasherDefault<KeyHasher>>;

/// Takes a half of a key for its hash: a key is a keyed hash already, so no client can find keys
/// that collide.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u64(&mut self, half: u64) {
        self.0 = half;
    }

    fn finish(&self) -> u64 {
        self.0
    }
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

    /// Whether unknown keys share the state; by chance also true of one other key in 2^32.
    pub(crate) fn is_shared(self) -> bool {
        self.high << 32 == 0
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

    proptest::proptest! {
        #[test]
        fn any_digits_are_those_of_the_formatter(number: u128, slot: u64) {
            assert_eq!(&hex(number, 32)[..], format!("{number:032x}"));
            assert_eq!(&hex(slot.into(), 16)[..], format!("{slot:016x}"));
        }
    }

    #[test]
    fn hexadecimal_digits_are_those_of_the_standard_library() {
        for number in [0, 1, 0xfedc_ba98_7654_3210, u128::MAX, u128::MAX - 15] {
            assert_eq!(hex(number, 32).as_str(), format!("{number:032x}"));
            assert_eq!(hex(number, 16).as_str(), format!("{:016x}", number & u128::from(u64::MAX)));
        }
    }

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
    fn the_bytes_of_released_kinds_stay_as_snapshots_have_them() {
        let seed = Seed::new([7; 16]);
        let released_owner = |kind: u8, name: &[u8]| {
            let mut hasher = SipHasher13::new_with_key(&[7; 16]);
            hasher.write_u8(kind);
            hasher.write(name);
            Owner(hasher.finish128().as_u128())
        };
        let released = [
            Scope::Workspace,
            Scope::Organisation,
            Scope::OwnOrganisation,
            Scope::Instance,
            Scope::Address,
            Scope::Request,
        ];
        for (scope, kind) in released.into_iter().zip(1..) {
            assert_eq!(seed.owner(scope, b"acme"), released_owner(kind, b"acme"), "{scope:?}");
        }
    }

    #[test]
    fn another_name_value_or_order_of_parts_is_another_owner() {
        let seed = Seed::new([7; 16]);
        let (a, b) = (seed.owner(Scope::Workspace, b"a"), seed.owner(Scope::Workspace, b"b"));
        let mark = |name, value: &str| seed.fingerprint(name, value.as_bytes());
        let owners = [
            a,
            b,
            seed.combined([a, b]),
            seed.combined([b, a]),
            seed.combined([a]),
            seed.combined([a, a]),
            seed.claim("sub", "a"),
            seed.claim("su", "ba"),
            seed.claim("sub", ""),
            seed.owner(Scope::Missing, b"claim:sub"),
            seed.header("sub", mark("sub", "a")),
            seed.header("sub", mark("sub", "b")),
            seed.header("su", mark("su", "ba")),
        ];
        for (at, owner) in owners.iter().enumerate() {
            assert!(!owners[..at].contains(owner), "{at}");
        }
    }

    #[test]
    fn a_fingerprint_is_read_as_it_is_shown_and_is_not_its_owner() {
        let seed = Seed::new([7; 16]);
        let shown = seed.fingerprint("x-key", b"secret");
        assert_eq!(Fingerprint::read(&shown.to_string()), Some(shown));
        assert_ne!(seed.header("x-key", shown).bits(), shown.0);
        for bad in ["", "0", "+0000000000000000000000000000001", "g0000000000000000000000000000000"]
        {
            assert_eq!(Fingerprint::read(bad), None, "{bad}");
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
            assert_eq!([key, overflow].map(Key::is_shared), [false, true]);
            shared.insert(overflow);
        }
        assert_eq!(shared.len(), 16 * 256);
    }
}
