//! Says what more is kept back by a key that names a secret: from every setting, and of numbers.
//!
//! Not here: whether a key names a secret (`sensitive::keys`).

use crate::domain::sensitive::keys::{is_about, without_form};
use crate::domain::sensitive::normalize::plain;

/// Codes that are often a number.
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

/// What CONTRACT §6.4 names: no setting lets these through.
const NEVER: [&str; 6] =
    ["accesstoken", "idtoken", "refreshtoken", "password", "passwordhash", "hashedpassword"];

/// A number of fewer digits under the plural of a code says how many there are.
const CODE_DIGITS_MIN: usize = 4;

/// Whether a key names what no setting may let through.
pub(crate) fn is_never(key: &str) -> bool {
    plain(key).is_some_and(|name| {
        let bare = without_form(&name);
        let bare = bare.strip_suffix('s').unwrap_or(bare);
        NEVER.iter().any(|word| name.ends_with(word) || bare.ends_with(word))
    })
}

/// How many digits make a number under this key a secret: a code that is sent to a phone.
pub(crate) fn code_digits(key: &str) -> Option<usize> {
    let name = plain(key)?;
    let bare = without_form(&name);
    let is_code = |name: &str| CODES.iter().any(|code| name.ends_with(code));
    let is_plural = || bare.strip_suffix('s').is_some_and(is_code).then_some(CODE_DIGITS_MIN);
    if is_code(bare) { Some(1) } else { is_plural() }
}

/// Whether a key below one that names a secret says something about it: `{"otp":{"length":6}}`.
pub(crate) fn is_detail(key: &str) -> bool {
    plain(key).is_some_and(|name| is_about(&name))
}
