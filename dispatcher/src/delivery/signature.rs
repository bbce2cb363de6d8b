//! Signs deliveries, and verifies signatures as a receiver does. (core)
//!
//! Two schemes are sent. `Service-Signature` signs `<t>.<body>` with the whole secret, `whsec_`
//! included. Standard Webhooks signs `<id>.<t>.<body>` with the base64-decoded rest of the secret,
//! and with an Ed25519 key if the webhook has one.
//!
//! Invariant: every attempt is signed anew, with its own time.
//!
//! Not here: which secrets sign at a time (`domain::webhook::Secrets`).

use std::ops::RangeInclusive;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use http::HeaderMap;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use sha2::Sha256;

use crate::config::settings::Signature;
use crate::domain::masking::Mask;
use crate::domain::webhook::headers::{CustomHeaders, test_header};
use crate::domain::webhook::signing_key::{PublicKey, SigningKey};

/// The prefix of every secret.
pub const SECRET_PREFIX: &str = "whsec_";

/// Bytes of a secret that is brought along, as Standard Webhooks has them.
const GIVEN_BYTES: RangeInclusive<usize> = 24..=64;

/// Characters of a secret that is read at all: the longest that [`is_secret`] permits has 94.
pub(crate) const SECRET_CHARS_MAX: usize = 96;

/// What [`is_secret`] requires.
pub const SECRET_FORM: &str = "must be `whsec_` and the base64 of 24 to 64 bytes, with padding";

/// Bytes of a custom value that is masked wherever it stands: shorter ones are words and numbers
/// that every answer has.
const MASKED_MIN: usize = 4;

pub(crate) const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
pub(crate) const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
pub(crate) const WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");

/// Whether a secret can sign in both schemes, and is neither short nor odd.
#[must_use]
pub fn is_secret(text: &str) -> bool {
    let key = text.strip_prefix(SECRET_PREFIX).and_then(|key| STANDARD.decode(key).ok());
    key.is_some_and(|key| GIVEN_BYTES.contains(&key.len()))
}

/// What a signature covers.
#[derive(Clone, Debug)]
pub struct Signed<'a> {
    /// The event's identifier.
    pub event_id: &'a str,
    /// The envelope.
    pub body: &'a Bytes,
    /// Seconds since 1970, of this attempt.
    pub unix_seconds: u64,
    /// Whether it is a test.
    pub is_test: bool,
}

/// The headers of a delivery: those of its owner, then ours, with one signature per key. Ours
/// replace an owner's header with the same name.
#[must_use]
pub fn headers<'s>(
    signature: &Signature,
    signed: &Signed<'_>,
    custom: &CustomHeaders,
    secrets: impl Iterator<Item = &'s str>,
    signing_key: Option<&SigningKey>,
) -> HeaderMap {
    let seconds = signed.unix_seconds.to_string();
    let mut own_header = format!("t={seconds}");
    let mut standard = Vec::new();
    for secret in secrets {
        let mac = hmac(secret.as_bytes(), &[seconds.as_bytes(), signed.body]);
        own_header.push_str(",v1=");
        own_header.push_str(&hex::encode(mac));
        if let Some(key) = standard_key(secret).filter(|_| signature.standard_webhooks) {
            let parts = [signed.event_id.as_bytes(), seconds.as_bytes(), signed.body];
            standard.push(format!("v1,{}", STANDARD.encode(hmac(&key, &parts))));
        }
    }
    if let Some(key) = signing_key.filter(|_| signature.standard_webhooks) {
        let parts = [signed.event_id.as_bytes(), seconds.as_bytes(), signed.body];
        standard.push(format!("v1a,{}", STANDARD.encode(key.sign(&parts.join(&b'.')))));
    }
    let mut headers = HeaderMap::with_capacity(6 + custom.count());
    headers.extend(custom.iter().cloned());
    let mut add = |name: &HeaderName, text: &str| {
        // Digits, base64 and commas are valid header values; an identifier that is not is omitted.
        if let Ok(value) = HeaderValue::from_str(text) {
            headers.insert(name, value);
        }
    };
    add(&CONTENT_TYPE, "application/json");
    add(&signature.header, &own_header);
    if signed.is_test
        && let Some(name) = test_header(&signature.header)
    {
        add(&name, "true");
    }
    if !standard.is_empty() {
        add(&WEBHOOK_ID, signed.event_id);
        add(&WEBHOOK_TIMESTAMP, &seconds);
        add(&WEBHOOK_SIGNATURE, &standard.join(" "));
    }
    headers
}

/// Masks the secrets, in every form that a receiver may have of them, the signatures of
/// [`headers`], and the values of the owner's headers.
#[must_use]
pub fn mask<'s>(
    signature: &Signature,
    headers: &HeaderMap,
    custom: &CustomHeaders,
    secrets: impl Iterator<Item = &'s str>,
) -> Mask {
    let mut all: Vec<Vec<u8>> = Vec::new();
    for secret in secrets {
        all.push(secret.as_bytes().to_vec());
        if let Some(key) = standard_key(secret) {
            all.extend([hex::encode(&key).into_bytes(), key]);
        }
    }
    let value = |name: &HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let own = value(&signature.header).into_iter().flat_map(|text| text.split(','));
    let own = own.filter_map(|pair| pair.strip_prefix("v1="));
    let standard = value(&WEBHOOK_SIGNATURE).into_iter().flat_map(|text| text.split(' '));
    let standard = standard.filter_map(|pair| Some(pair.split_once(',')?.1));
    all.extend(own.chain(standard).map(|one| one.as_bytes().to_vec()));
    let values = custom.iter().map(|(_, value)| value.as_bytes());
    all.extend(values.filter(|value| value.len() >= MASKED_MIN).map(<[u8]>::to_vec));
    Mask::of(all)
}

/// Why a signature is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    /// No timestamp, or not a number of seconds.
    #[error("the header has no t=<seconds since 1970>")]
    NoTimestamp,
    /// No signature of a known scheme.
    #[error("the header has no v1=<signature>")]
    NoSignature,
    /// Another secret, body or time was signed.
    #[error("no v1 matches: another secret was used, or the body was changed")]
    NoMatch,
    /// No number of seconds in Standard Webhooks' header.
    #[error("webhook-timestamp is no number of seconds since 1970")]
    NoSeconds,
    /// No Ed25519 signature.
    #[error("webhook-signature has no v1a,<signature>: has the webhook ed25519?")]
    NoEd25519,
    /// Another key, identifier, body or time was signed.
    #[error("no v1a matches: another key signed, or the id, the timestamp or the body was changed")]
    OtherEd25519,
    /// Valid, but too old: it may be a replay.
    #[error("it was signed {by} s ago, which exceeds the tolerance")]
    TooOld {
        /// Seconds.
        by: u64,
    },
    /// Valid, but from the future: one of the two clocks is wrong.
    #[error("it was signed {by} s in the future: the sender's clock is ahead of this one")]
    TooNew {
        /// Seconds.
        by: u64,
    },
}

/// Verifies a `Service-Signature` header as a receiver should: compares every `v1` in constant
/// time, ignores unknown schemes, and checks the time last.
pub fn verify(
    secret: &str,
    header: &str,
    body: &[u8],
    now_seconds: u64,
    tolerance_seconds: u64,
) -> Result<(), VerifyError> {
    let pairs = || header.split(',').filter_map(|pair| pair.trim().split_once('='));
    let values = |wanted: &'static str| {
        pairs().filter(move |(name, _)| *name == wanted).map(|(_, value)| value)
    };
    let digits = values("t").next().filter(|text| text.bytes().all(|b| b.is_ascii_digit()));
    let (text, signed_at) = digits
        .and_then(|text| Some((text, text.parse::<u64>().ok()?)))
        .ok_or(VerifyError::NoTimestamp)?;
    if values("v1").next().is_none() {
        return Err(VerifyError::NoSignature);
    }
    let expected = hmac(secret.as_bytes(), &[text.as_bytes(), body]);
    let matches = |value: &str| {
        hex::decode(value).is_ok_and(|bytes| weir_common::secret::same(&bytes, &expected))
    };
    if !values("v1").any(matches) {
        return Err(VerifyError::NoMatch);
    }
    in_time(signed_at, now_seconds, tolerance_seconds)
}

/// What a receiver has of a delivery for the scheme of Standard Webhooks.
#[derive(Clone, Copy, Debug)]
pub struct StandardHeaders<'a> {
    /// The header `webhook-id`.
    pub id: &'a str,
    /// The header `webhook-timestamp`.
    pub timestamp: &'a str,
    /// The header `webhook-signature`.
    pub signatures: &'a str,
    /// The body.
    pub body: &'a [u8],
}

/// Verifies the Ed25519 signatures of Standard Webhooks (`v1a`), and checks the time last.
pub fn verify_ed25519(
    key: &PublicKey,
    received: StandardHeaders<'_>,
    now_seconds: u64,
    tolerance_seconds: u64,
) -> Result<(), VerifyError> {
    let StandardHeaders { id, timestamp, signatures, body } = received;
    let signed_at = timestamp.parse().map_err(|_| VerifyError::NoSeconds)?;
    let mut given = signatures.split(' ').filter_map(|one| one.strip_prefix("v1a,")).peekable();
    if given.peek().is_none() {
        return Err(VerifyError::NoEd25519);
    }
    let message = [id.as_bytes(), timestamp.as_bytes(), body].join(&b'.');
    let matches =
        |text: &str| STANDARD.decode(text).is_ok_and(|one| key.has_signed(&message, &one));
    if !given.any(matches) {
        return Err(VerifyError::OtherEd25519);
    }
    in_time(signed_at, now_seconds, tolerance_seconds)
}

fn in_time(signed_at: u64, now_seconds: u64, tolerance_seconds: u64) -> Result<(), VerifyError> {
    let by = now_seconds.abs_diff(signed_at);
    if by <= tolerance_seconds {
        return Ok(());
    }
    Err(if signed_at < now_seconds {
        VerifyError::TooOld { by }
    } else {
        VerifyError::TooNew { by }
    })
}

/// The key of Standard Webhooks; `None` if the secret is not in its format.
fn standard_key(secret: &str) -> Option<Vec<u8>> {
    STANDARD.decode(secret.strip_prefix(SECRET_PREFIX)?).ok()
}

/// HMAC-SHA256 over the parts, joined by dots.
fn hmac(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC accepts keys of any length");
    for (nth, part) in parts.iter().enumerate() {
        if nth > 0 {
            mac.update(b".");
        }
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::webhook::headers::value_of;

    // These signatures were computed with Python's hmac.
    const FIRST: &str = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";
    const SECOND: &str = "whsec_ZmVkY2JhOTg3NjU0MzIxMGZlZGNiYTk4NzY1NDMyMTA=";
    const BODY: &str = r#"{"id":"evt_1","type":"user.created"}"#;
    const AT: u64 = 1_700_000_000;
    const FIRST_HEX: &str = "c745e1bec763d5ce6eb6e4fcc98f1eccc522db850c19894c615272e793a18202";
    const SECOND_HEX: &str = "a570cd2961d7425da5f9ae9c757004d2e528ff332186b8d46e14a6d03e0fa3e7";
    const FIRST_STANDARD: &str = "v1,/S+QMB8DOqv5hxgtl5rZFblI1MjqYEsgNHurU/RjEGg=";
    const ED25519: &str = concat!(
        "v1a,NrQMLQ1YsLzG3CiVueUbeysoq9v8efF0MaFYYEmwoBdqFtkfmPXZn0sOp2CT2nI",
        "YfXAjY9YHx1GweDdbS4hVCw=="
    );
    const SECOND_STANDARD: &str = "v1,y0sCV1s+0Qn2U98Vi/Rwc5BNeuyMNZd/FtiZauEtX44=";

    fn signed(
        secrets: &[&str],
        key: Option<&SigningKey>,
        standard_webhooks: bool,
    ) -> Vec<(String, String)> {
        let header = HeaderName::from_static("service-signature");
        let body = Bytes::from_static(BODY.as_bytes());
        let signed = Signed { event_id: "evt_1", body: &body, unix_seconds: AT, is_test: false };
        let settings = Signature { header, standard_webhooks };
        let none = CustomHeaders::default();
        let headers = headers(&settings, &signed, &none, secrets.iter().copied(), key);
        let text = |value: &HeaderValue| value.to_str().expect("it is text").to_owned();
        let mut pairs: Vec<_> =
            headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect();
        pairs.sort();
        pairs
    }

    fn pairs(pairs: &[(&str, String)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect()
    }

    #[test]
    fn a_delivery_has_both_schemes_for_every_secret() {
        let expected = pairs(&[
            ("content-type", "application/json".to_owned()),
            ("service-signature", format!("t={AT},v1={FIRST_HEX},v1={SECOND_HEX}")),
            ("webhook-id", "evt_1".to_owned()),
            ("webhook-signature", format!("{FIRST_STANDARD} {SECOND_STANDARD}")),
            ("webhook-timestamp", AT.to_string()),
        ]);
        assert_eq!(signed(&[FIRST, SECOND], None, true), expected);
    }

    #[test]
    fn standard_webhooks_headers_are_sent_if_enabled_and_possible() {
        let plain = [
            ("content-type", "application/json".to_owned()),
            ("service-signature", format!("t={AT},v1={FIRST_HEX}")),
        ];
        assert_eq!(signed(&[FIRST], Some(&key()), false), pairs(&plain));
        let odd = signed(&["whsec_~"], None, true);
        assert_eq!(odd.len(), 2, "{odd:?}");
    }

    // Computed with Python's cryptography.
    fn key() -> SigningKey {
        SigningKey::of_seed(*b"0123456789abcdef0123456789abcdef")
    }

    #[test]
    fn an_ed25519_key_signs_beside_the_secrets() {
        let of = |secret: &str| {
            let headers = signed(&[secret], Some(&key()), true);
            let (_, value) = &headers[3];
            assert_eq!(headers[3].0, "webhook-signature", "{headers:?}");
            value.clone()
        };
        assert_eq!(of(FIRST), format!("{FIRST_STANDARD} {ED25519}"));
        assert_eq!(of("whsec_~"), ED25519);
    }

    fn check(header: &str, now: u64, expected: Result<(), VerifyError>) {
        assert_eq!(verify(FIRST, header, BODY.as_bytes(), now, 300), expected, "{header}");
    }

    #[test]
    fn a_signature_is_valid_for_five_minutes_in_either_direction() {
        let header = format!("t={AT},v1={FIRST_HEX}");
        for now in [AT - 300, AT, AT + 300] {
            check(&header, now, Ok(()));
        }
        check(&header, AT + 301, Err(VerifyError::TooOld { by: 301 }));
        check(&header, AT - 301, Err(VerifyError::TooNew { by: 301 }));
    }

    #[test]
    fn every_v1_is_compared_and_other_schemes_are_ignored() {
        for header in [
            format!("t={AT},v1={SECOND_HEX},v1={FIRST_HEX}"),
            format!("v1={FIRST_HEX},t={AT}"),
            format!("t={AT}, v1={FIRST_HEX}"),
            format!("t={AT},v0=abc,v2={SECOND_HEX},v1=zz,v1=,v1={FIRST_HEX},x"),
        ] {
            check(&header, AT, Ok(()));
        }
    }

    #[test]
    fn each_error_has_its_cause() {
        let later = AT + 1;
        for (header, expected) in [
            (String::new(), VerifyError::NoTimestamp),
            (format!("v1={FIRST_HEX}"), VerifyError::NoTimestamp),
            (format!("t=,v1={FIRST_HEX}"), VerifyError::NoTimestamp),
            (format!("t=+{AT},v1={FIRST_HEX}"), VerifyError::NoTimestamp),
            (format!("t=99999999999999999999,v1={FIRST_HEX}"), VerifyError::NoTimestamp),
            (format!("t={AT}"), VerifyError::NoSignature),
            (format!("t={AT},v2={FIRST_HEX}"), VerifyError::NoSignature),
            (format!("t={AT},v1="), VerifyError::NoMatch),
            (format!("t={AT},v1={SECOND_HEX}"), VerifyError::NoMatch),
            (format!("t={AT},v1={}", &FIRST_HEX[..62]), VerifyError::NoMatch),
            (format!("t={later},v1={FIRST_HEX}"), VerifyError::NoMatch),
        ] {
            check(&header, AT, Err(expected));
        }
        let header = format!("t={AT},v1={FIRST_HEX}");
        let other = verify(FIRST, &header, b"{}", AT, 300);
        assert_eq!(other, Err(VerifyError::NoMatch));
    }

    #[test]
    fn secrets_and_signatures_are_masked_in_every_form_that_a_receiver_has() {
        let header = HeaderName::from_static("service-signature");
        let setting = Signature { header, standard_webhooks: true };
        let body = Bytes::from_static(BODY.as_bytes());
        let signed = Signed { event_id: "evt_1", body: &body, unix_seconds: AT, is_test: false };
        let custom = [("authorization", "Bearer of-the-owner"), ("x-flag", "yes")];
        let custom = custom.map(|(name, value)| (name.parse().unwrap(), value_of(value).ok()));
        let custom = CustomHeaders::default().changed(custom.into());
        let secrets = || [FIRST, SECOND].into_iter();
        let headers = headers(&setting, &signed, &custom, secrets(), Some(&key()));
        let mask = mask(&setting, &headers, &custom, secrets());
        let masked =
            |text: &[u8]| String::from_utf8_lossy(&mask.applied(text, text.len())).into_owned();
        let header = |name: &str| masked(headers[name].as_bytes());
        assert_eq!(header("service-signature"), format!("t={AT},v1=***,v1=***"));
        assert_eq!(header("webhook-signature"), "v1,*** v1,*** v1a,***");
        assert_eq!(header("webhook-timestamp"), AT.to_string());
        assert_eq!((header("webhook-id"), masked(BODY.as_bytes())), ("evt_1".into(), BODY.into()));
        assert_eq!(header("authorization"), "***");
        assert_eq!(masked(b"<of-the-owner>, yes"), "<***>, yes");
        let key = standard_key(FIRST).expect("it is base64");
        let plain = FIRST.strip_prefix(SECRET_PREFIX).expect("it has it").as_bytes().to_vec();
        for form in [FIRST.into(), plain, hex::encode(&key).into_bytes(), key] {
            assert_eq!(masked(&[b"<", &form[..], b">"].concat()), "<***>");
        }
    }

    #[test]
    fn an_ed25519_signature_is_verified_with_the_public_key() {
        let key = SigningKey::of_seed([7; 32]);
        let public = PublicKey::of_text(&key.public()).expect("it is one");
        let other = PublicKey::of_text(&SigningKey::of_seed([8; 32]).public()).expect("one");
        let body = Bytes::from_static(b"{}");
        let signed = Signed { event_id: "evt_1", body: &body, unix_seconds: 1_000, is_test: false };
        let scheme = Signature {
            header: HeaderName::from_static("service-signature"),
            standard_webhooks: true,
        };
        let secrets = std::iter::once("whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=");
        let headers = headers(&scheme, &signed, &CustomHeaders::default(), secrets, Some(&key));
        let signatures = headers[WEBHOOK_SIGNATURE].to_str().expect("ASCII");
        let good = StandardHeaders { id: "evt_1", timestamp: "1000", signatures, body: &body };
        let check = |key: &PublicKey, received| verify_ed25519(key, received, 1_300, 300);
        assert_eq!(check(&public, good), Ok(()));
        assert_eq!(check(&other, good), Err(VerifyError::OtherEd25519));
        for (changed, error) in [
            (StandardHeaders { id: "evt_2", ..good }, VerifyError::OtherEd25519),
            (StandardHeaders { timestamp: "1001", ..good }, VerifyError::OtherEd25519),
            (StandardHeaders { body: b"{ }", ..good }, VerifyError::OtherEd25519),
            (StandardHeaders { timestamp: "now", ..good }, VerifyError::NoSeconds),
            (StandardHeaders { signatures: "v1,eA==", ..good }, VerifyError::NoEd25519),
        ] {
            assert_eq!(check(&public, changed), Err(error), "{changed:?}");
        }
        let late = verify_ed25519(&public, good, 1_301, 300);
        assert_eq!(late, Err(VerifyError::TooOld { by: 301 }));
    }
}
