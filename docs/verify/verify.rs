//! Verifies a delivery: `signature` is the header Service-Signature, `body` the bytes as they came.
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Whether the body was signed with the secret, not more than five minutes from `now`.
pub fn verify(secret: &str, signature: &str, body: &[u8], now: u64) -> bool {
    let pairs = || signature.split(',').filter_map(|pair| pair.split_once('='));
    let Some((_, t)) = pairs().find(|(name, _)| *name == "t") else { return false };
    if t.parse().map_or(true, |t: u64| now.abs_diff(t) > 300) {
        return false;
    }
    let Ok(mac) = Hmac::<Sha256>::new_from_slice(secret.as_bytes()) else { return false };
    let mac = mac.chain_update(t).chain_update(".").chain_update(body);
    let given = pairs().filter(|(name, _)| *name == "v1"); // two while a secret is rotated
    let mut given = given.filter_map(|(_, value)| hex::decode(value).ok());
    given.any(|one| mac.clone().verify_slice(&one).is_ok())
}
