//! Shows numbers to the outside: `wh_…`, `dlv_…`, `job_…`; sortable, and not to be guessed.
//!
//! An identifier is a prefix and 26 digits of base 32: the number, and a keyed hash of it and the
//! prefix. Who does not have the key finds one in 2⁶⁴ guesses; nothing has to be stored or looked
//! up to check one. Identifiers of one kind sort as their numbers do.
//!
//! Not here: identifiers of events, which their senders may choose.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::model::{DeliveryId, JobId, WebhookId};

/// Digits and lower-case letters that sort as their values do, without i, l, o and u.
const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// 16 bytes in digits of five bits.
const DIGITS_COUNT: usize = 26;

/// Makes and reads identifiers.
#[derive(Clone)]
pub struct PublicIds {
    key: [u8; 32],
}

impl PublicIds {
    /// With this key, which must stay the same for as long as the store does.
    #[must_use]
    pub fn new(key: [u8; 32]) -> Self {
        Self { key }
    }

    /// What a webhook is called.
    #[must_use]
    pub fn webhook(&self, id: WebhookId) -> String {
        self.shown("wh_", id.0)
    }

    /// The webhook that is called so.
    #[must_use]
    pub fn webhook_of(&self, text: &str) -> Option<WebhookId> {
        self.read("wh_", text).map(WebhookId)
    }

    /// What a delivery is called.
    #[must_use]
    pub fn delivery(&self, id: DeliveryId) -> String {
        self.shown("dlv_", id.0)
    }

    /// The delivery that is called so.
    #[must_use]
    pub fn delivery_of(&self, text: &str) -> Option<DeliveryId> {
        self.read("dlv_", text).map(DeliveryId)
    }

    /// What a job is called.
    #[must_use]
    pub fn job(&self, id: JobId) -> String {
        self.shown("job_", id.0)
    }

    /// The job that is called so.
    #[must_use]
    pub fn job_of(&self, text: &str) -> Option<JobId> {
        self.read("job_", text).map(JobId)
    }

    fn shown(&self, prefix: &str, number: i64) -> String {
        let number = number.cast_unsigned();
        let whole = u128::from(number) << 64 | u128::from(self.hash(prefix, number));
        // 26 digits hold 130 bits: the first digit stands for the highest three.
        let digit = |nth: usize| {
            let value = whole.checked_shr((125 - 5 * nth) as u32).unwrap_or(0) & 31;
            DIGITS.get(value as usize).copied().map_or('0', char::from)
        };
        prefix.chars().chain((0..DIGITS_COUNT).map(digit)).collect()
    }

    fn read(&self, prefix: &str, text: &str) -> Option<i64> {
        let digits = text.strip_prefix(prefix).filter(|digits| digits.len() == DIGITS_COUNT)?;
        let whole = digits.bytes().try_fold(0_u128, |whole, digit| {
            let value = DIGITS.iter().position(|known| *known == digit)? as u128;
            whole.checked_mul(32)?.checked_add(value)
        })?;
        let number = (whole >> 64) as u64;
        let same = weir_common::secret::same(
            &(whole as u64).to_be_bytes(),
            &self.hash(prefix, number).to_be_bytes(),
        );
        same.then(|| number.cast_signed())
    }

    fn hash(&self, prefix: &str, number: u64) -> u64 {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(&self.key).expect("HMAC takes keys of any length");
        mac.update(prefix.as_bytes());
        mac.update(&number.to_be_bytes());
        let bytes = mac.finalize().into_bytes();
        bytes.iter().take(8).fold(0, |hash, byte| hash << 8 | u64::from(*byte))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identifier_is_read_back_as_the_number_it_shows() {
        let ids = PublicIds::new([7; 32]);
        for number in [0, 1, 31, 32, 4_711, i64::MAX] {
            let text = ids.webhook(WebhookId(number));
            assert_eq!(text.len(), 3 + DIGITS_COUNT);
            assert_eq!(ids.webhook_of(&text), Some(WebhookId(number)), "{text}");
        }
    }

    #[test]
    fn identifiers_sort_as_their_numbers_do() {
        let ids = PublicIds::new([7; 32]);
        let shown: Vec<String> = (0..5_000).map(|n| ids.delivery(DeliveryId(n * 977))).collect();
        assert!(shown.is_sorted());
    }

    #[test]
    fn what_was_not_made_with_the_key_is_nobody() {
        let ids = PublicIds::new([7; 32]);
        let text = ids.webhook(WebhookId(1));
        assert_eq!(PublicIds::new([8; 32]).webhook_of(&text), None);
        assert_eq!(ids.delivery_of(&text.replace("wh_", "dlv_")), None);
        let last = text.chars().last();
        let other = if last == Some('0') { "1" } else { "0" };
        assert_eq!(ids.webhook_of(&format!("{}{other}", &text[..text.len() - 1])), None);
        for wrong in ["", "wh_", "wh_zz", &text.to_uppercase(), &format!("{text}0"), "wh_é"] {
            assert_eq!(ids.webhook_of(wrong), None, "{wrong}");
        }
    }
}
