//! Keys that no setting may allow, and keys for one-time codes, whose values may be numbers. (core)
//!
//! Not here: whether a key names a secret (`sensitive::keys`).

use crate::domain::sensitive::keys::{is_about, without_form};
use crate::domain::sensitive::normalize::plain;

/// Words for one-time codes, which are often numbers.
pub(super) const CODES: [&str; 11] = [
    "otp",
    "otpcode",
    "mfacode",
    "2facode",
    "onetimecode",
    "smscode",
    "verificationcode",
    "passcode",
    "recoverycode",
    "backupcode",
    "authcode",
];

/// Words for secrets that no setting may allow.
const NEVER: [&str; 6] =
    ["accesstoken", "idtoken", "refreshtoken", "password", "passwordhash", "hashedpassword"];

/// Below a plural key such as `otps`, a number with fewer digits is a count.
const CODE_DIGITS_MIN: usize = 4;

/// Whether no setting may allow this key.
pub(crate) fn is_never(key: &str) -> bool {
    plain(key).is_some_and(|name| {
        let bare = without_form(&name);
        let bare = bare.strip_suffix('s').unwrap_or(bare);
        NEVER.iter().any(|word| name.ends_with(word) || bare.ends_with(word))
    })
}

/// The fewest digits that make a number below this key a one-time code; `None` if none does.
pub(crate) fn code_digits(key: &str) -> Option<usize> {
    let name = plain(key)?;
    let bare = without_form(&name);
    let is_code = |name: &str| CODES.iter().any(|code| name.ends_with(code));
    let is_plural = || bare.strip_suffix('s').is_some_and(is_code).then_some(CODE_DIGITS_MIN);
    if is_code(bare) { Some(1) } else { is_plural() }
}

/// Whether a key describes the secret above it: `{"otp":{"length":6}}`.
pub(crate) fn is_detail(key: &str) -> bool {
    plain(key).is_some_and(|name| is_about(&name))
}
