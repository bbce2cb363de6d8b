//! Public identifiers of rows (`wh_…`, `dlv_…`, `job_…`) and cursors: opaque, not guessable. (core)
//!
//! An identifier is a prefix and base-32 digits: a keyed hash of prefix and number, and the number
//! masked by a second keyed hash of the first (a synthetic IV, as in SIV). Without the key, neither
//! the number nor the order of two identifiers can be derived, and a valid one takes 2⁶⁴ guesses.
//! Parsing needs no lookup.
//!
//! Invariant: identifiers of an earlier version (the number in plain text, and a hash) stay valid.
//!
//! Identifiers of events ([`event_id`]) need no key: their senders may choose them.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use weir_common::secret::same;
use weir_common::time::UnixTime;

use crate::domain::delivery::Cursor;
use crate::domain::id::{DeliveryId, JobId, WebhookId};

/// Digits and lower-case letters in ascending order, without i, l, o and u.
const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// Bits of a digit.
const DIGIT_BITS: usize = 5;

/// Bytes of a number, and of the hash before it.
const WORD: usize = 8;

/// The labels that separate the two hashes.
const HASHES: &[u8] = b"hash";
const HIDES: &[u8] = b"hide";

/// Random bytes of an event's identifier, in addition to the time.
pub const ID_RANDOM_BYTES: usize = 10;

const WEBHOOK: &str = "wh_";
const DELIVERY: &str = "dlv_";
const JOB: &str = "job_";
const CURSOR: &str = "cur_";

/// Formats and parses identifiers.
#[derive(Clone)]
pub struct PublicIds {
    /// With the key, and nothing hashed yet.
    keyed: Hmac<Sha256>,
}

impl PublicIds {
    /// `key` must stay the same for the lifetime of the store.
    #[must_use]
    pub fn new(key: [u8; 32]) -> Self {
        let keyed = Hmac::new_from_slice(&key).expect("HMAC accepts keys of any length");
        Self { keyed }
    }

    /// Formats a webhook's identifier.
    #[must_use]
    pub fn webhook(&self, id: WebhookId) -> String {
        self.shown(WEBHOOK, [id.0])
    }

    /// Parses a webhook's identifier.
    #[must_use]
    pub fn webhook_of(&self, text: &str) -> Option<WebhookId> {
        self.number(WEBHOOK, text).map(WebhookId)
    }

    /// Formats a delivery's identifier.
    #[must_use]
    pub fn delivery(&self, id: DeliveryId) -> String {
        self.shown(DELIVERY, [id.0])
    }

    /// Parses a delivery's identifier.
    #[must_use]
    pub fn delivery_of(&self, text: &str) -> Option<DeliveryId> {
        self.number(DELIVERY, text).map(DeliveryId)
    }

    /// Formats a job's identifier.
    #[must_use]
    pub fn job(&self, id: JobId) -> String {
        self.shown(JOB, [id.0])
    }

    /// Parses a job's identifier.
    #[must_use]
    pub fn job_of(&self, text: &str) -> Option<JobId> {
        self.number(JOB, text).map(JobId)
    }

    /// Formats a cursor.
    #[must_use]
    pub fn cursor(&self, cursor: Cursor) -> String {
        match cursor.created_at {
            Some(at) => self.shown(CURSOR, [at.0.cast_signed(), cursor.id.0]),
            None => self.delivery(cursor.id),
        }
    }

    /// Parses a cursor. Cursors of an earlier version are the last delivery's identifier.
    #[must_use]
    pub fn cursor_of(&self, text: &str) -> Option<Cursor> {
        match self.read(CURSOR, text) {
            Some([at, id]) => {
                let created_at = Some(UnixTime(at.cast_unsigned()));
                Some(Cursor { created_at, id: DeliveryId(id) })
            }
            None => self.delivery_of(text).map(|id| Cursor { created_at: None, id }),
        }
    }

    fn shown<const N: usize>(&self, prefix: &str, numbers: [i64; N]) -> String {
        let plain = numbers.map(i64::to_be_bytes).concat();
        let hash = self.hash(&[HASHES, prefix.as_bytes(), &plain]);
        let hash = hash.get(..WORD).unwrap_or_default();
        let hidden = self.hide(prefix, hash, &plain);
        let bytes = [hash, &hidden].concat();
        let mut text = String::with_capacity(prefix.len() + digits_count(bytes.len()));
        text.push_str(prefix);
        text.extend(digits(&bytes));
        text
    }

    fn number(&self, prefix: &str, text: &str) -> Option<i64> {
        let read = self.read(prefix, text).map(|[number]| number);
        read.or_else(|| self.read_earlier(prefix, text))
    }

    fn read<const N: usize>(&self, prefix: &str, text: &str) -> Option<[i64; N]> {
        let bytes = bytes(text.strip_prefix(prefix)?, WORD * (N + 1))?;
        let (hash, hidden) = bytes.split_at_checked(WORD)?;
        let plain = self.hide(prefix, hash, hidden);
        let right = self.hash(&[HASHES, prefix.as_bytes(), &plain]);
        if !same(hash, right.get(..WORD)?) {
            return None;
        }
        let mut numbers = [0; N];
        for (number, word) in numbers.iter_mut().zip(plain.chunks_exact(WORD)) {
            *number = i64::from_be_bytes(word.try_into().ok()?);
        }
        Some(numbers)
    }

    /// Parses the earlier form: the number, then a hash of prefix and number.
    fn read_earlier(&self, prefix: &str, text: &str) -> Option<i64> {
        let bytes = bytes(text.strip_prefix(prefix)?, WORD * 2)?;
        let (number, hash) = bytes.split_at_checked(WORD)?;
        let right = self.hash(&[prefix.as_bytes(), number]);
        let number = i64::from_be_bytes(number.try_into().ok()?);
        same(hash, right.get(..WORD)?).then_some(number)
    }

    /// Masks numbers, and unmasks them; at most two.
    fn hide(&self, prefix: &str, hash: &[u8], words: &[u8]) -> Vec<u8> {
        let mask = self.hash(&[HIDES, prefix.as_bytes(), hash]);
        words.iter().zip(mask).map(|(byte, mask)| byte ^ mask).collect()
    }

    fn hash(&self, parts: &[&[u8]]) -> [u8; 32] {
        let mut mac = self.keyed.clone();
        parts.iter().for_each(|part| mac.update(part));
        mac.finalize().into_bytes().into()
    }
}

/// The number of digits that encode `bytes` bytes; the first one encodes the remaining bits.
fn digits_count(bytes: usize) -> usize {
    (bytes * 8).div_ceil(DIGIT_BITS)
}

fn digits(bytes: &[u8]) -> impl Iterator<Item = char> {
    // From the last bit, where bytes and digits end together.
    let mut digits = Vec::with_capacity(digits_count(bytes.len()));
    let mut put = |value: u16| {
        let digit = DIGITS.get(usize::from(value) % DIGITS.len()).copied();
        digits.push(digit.map_or('0', char::from));
    };
    let (mut held, mut bits) = (0_u16, 0);
    for byte in bytes.iter().rev() {
        held |= u16::from(*byte) << bits;
        bits += 8;
        while bits >= DIGIT_BITS {
            put(held);
            held >>= DIGIT_BITS;
            bits -= DIGIT_BITS;
        }
    }
    if bits > 0 {
        put(held);
    }
    digits.into_iter().rev()
}

/// Decodes exactly `count` bytes.
fn bytes(text: &str, count: usize) -> Option<Vec<u8>> {
    if text.len() != digits_count(count) {
        return None;
    }
    let mut bytes = vec![0_u8; count];
    for (nth, digit) in text.bytes().rev().enumerate() {
        let value = DIGITS.iter().position(|known| *known == digit)?;
        for bit in (0..DIGIT_BITS).filter(|bit| value >> bit & 1 == 1) {
            let at = nth * DIGIT_BITS + bit;
            *bytes.get_mut(count.checked_sub(1 + at / 8)?)? |= 1 << (at % 8);
        }
    }
    Some(bytes)
}

/// `evt_` and 26 digits: 48 bits of milliseconds, 80 random bits; sorted by time.
#[must_use]
pub fn event_id(now: UnixTime, random: &[u8]) -> String {
    let random_bits =
        random.iter().take(ID_RANDOM_BYTES).fold(0_u128, |all, one| all << 8 | u128::from(*one));
    let whole = u128::from(now.0 / 1_000) << 80 | random_bits;
    let digit = |nth: u32| {
        let value = whole.checked_shr(125 - 5 * nth).unwrap_or(0) & 31;
        DIGITS.get(value as usize).copied().map_or('0', char::from)
    };
    "evt_".chars().chain((0..26).map(digit)).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn an_identifier_is_parsed_back() {
        let ids = PublicIds::new([7; 32]);
        for number in [0, 1, 31, 32, 4_711, i64::MAX] {
            let text = ids.webhook(WebhookId(number));
            assert_eq!(text.len(), 3 + 26);
            assert_eq!(ids.webhook_of(&text), Some(WebhookId(number)), "{text}");
            for at in [0, 1, 1_790_000_000_000_000, u64::MAX] {
                let cursor = Cursor { created_at: Some(UnixTime(at)), id: DeliveryId(number) };
                assert_eq!(ids.cursor_of(&ids.cursor(cursor)), Some(cursor));
            }
        }
    }

    #[test]
    fn identifiers_of_an_earlier_version_stay_valid() {
        // That version made these with this key.
        let ids = PublicIds::new([7; 32]);
        assert_eq!(ids.webhook_of("wh_0000000000008tjg30t9184v67"), Some(WebhookId(17)));
        let delivery = "dlv_000000000029khs899h29w4sz1";
        assert_eq!(ids.delivery_of(delivery), Some(DeliveryId(4_711)));
        assert_eq!(ids.job_of("job_0000000000000w81d37awca5ar"), Some(JobId(1)));
        let cursor = Cursor { created_at: None, id: DeliveryId(4_711) };
        assert_eq!(ids.cursor_of(delivery), Some(cursor));
    }

    #[test]
    fn identifiers_reveal_neither_a_count_nor_an_order() {
        let ids = PublicIds::new([7; 32]);
        let shown: Vec<String> = (0..2_000).map(|n| ids.delivery(DeliveryId(n))).collect();
        let rising = shown.windows(2).filter(|pair| pair[0] < pair[1]).count();
        assert!((800..1_200).contains(&rising), "{rising} of 1,999 are in order");
        // Every digit but the first, which has three bits, takes all values.
        for at in 5..shown[0].len() {
            let seen: BTreeSet<u8> = shown.iter().map(|text| text.as_bytes()[at]).collect();
            assert_eq!(seen.len(), 32, "digit {at}");
        }
        // Each number has its own mask.
        let last = |id| ids.webhook(WebhookId(id)).split_off(3 + 14);
        assert_ne!(last(1), last(2));
    }

    #[test]
    fn an_identifier_made_with_another_key_is_invalid() {
        let ids = PublicIds::new([7; 32]);
        let text = ids.webhook(WebhookId(1));
        assert_eq!(PublicIds::new([8; 32]).webhook_of(&text), None);
        assert_eq!(ids.delivery_of(&text.replace("wh_", "dlv_")), None);
        for at in 3..text.len() {
            let other = if text.as_bytes()[at] == b'0' { "1" } else { "0" };
            let wrong = format!("{}{other}{}", &text[..at], &text[at + 1..]);
            assert_eq!(ids.webhook_of(&wrong), None, "{wrong}");
        }
        for wrong in ["", "wh_", "wh_zz", &text.to_uppercase(), &format!("{text}0"), "wh_é"] {
            assert_eq!(ids.webhook_of(wrong), None, "{wrong}");
        }
    }
}
