//! Decides whether a key names a secret. (core)
//!
//! # Rules
//!
//! 1. Keys are compared by letters and digits alone, normalized (full width, circled, bold,
//!    accents) and in lower case: `client-secret` equals `clientSecret`.
//! 2. A key that contains a word of [`SECRETS`] names a secret, unless only words of [`ABOUT`],
//!    which describe a secret, follow: `token_count` and `password_changed_at` pass,
//!    `access_token_v2` does not. A word of [`EXCERPTS`] passes as well, except after a password:
//!    `api_key_prefix`. In doubt a key names a secret: its sender notices a refusal at once, but a
//!    secret that was sent cannot be recalled.
//! 3. These name a secret as well: a key with a password word that ends in a hash word, or that
//!    begins with a hash word and ends in a password word; one that ends in `pw`, `otp`, or `pass`
//!    after a word of [`OWNERS`]; one that equals a word of [`WHOLE`]. Endings of [`FORMS`], which
//!    describe an encoding, are ignored.
//! 4. A short word such as `token` or `pw` does not match across a word border of the key
//!    (`ship_to_kenya`, `isCrypto`), and words of [`ORDINARY`] are skipped.
//! 5. A key that mixes Latin letters with look-alikes names a secret.
//! 6. `hash` alone names no secret: most are of commits and files. Password hashes have formats of
//!    their own (`sensitive::values`), and below `password` every string is refused.
//!
//! Not here: where keys are, and which values belong to a key (`catalogue::sensitive_data`).

use crate::domain::sensitive::normalize::{in_words, plain};
use crate::domain::sensitive::word_matcher::WordMatcher;

/// Words that name a secret.
const SECRETS: [&str; 46] = [
    "token",
    "password",
    "passwd",
    "pwd",
    "passphrase",
    "passcode",
    "secret",
    "secretid",
    "credential",
    "jwt",
    "privatekey",
    "apikey",
    "accesskey",
    "signingkey",
    "encryptionkey",
    "sessioncookie",
    "totpseed",
    "recoverycode",
    "backupcode",
    "bcrypt",
    "scrypt",
    "pbkdf2",
    "argon2",
    "argon2i",
    "argon2id",
    "sessionkey",
    "masterkey",
    "sharedkey",
    "hmackey",
    "privkey",
    "recoverykey",
    "recoveryphrase",
    "seedphrase",
    "codeverifier",
    "authcookie",
    // Links and codes that grant access.
    "magiclink",
    "magicurl",
    "loginlink",
    "signinlink",
    "resetlink",
    "otpcode",
    "mfacode",
    "2facode",
    "onetimecode",
    "smscode",
    "verificationcode",
];

/// Words that describe a secret, and endings of words that only begin like one.
const ABOUT: [&str; 100] = [
    // How many, how long.
    "count",
    "total",
    "used",
    "usage",
    "limit",
    "left",
    "remaining",
    "per",
    "length",
    "strength",
    "score",
    "cost",
    "rounds",
    // When.
    "second",
    "seconds",
    "minute",
    "minutes",
    "hour",
    "hours",
    "day",
    "days",
    "month",
    "ms",
    "at",
    "on",
    "in",
    "date",
    "time",
    "age",
    "ttl",
    "lastused",
    "lastchanged",
    "lastset",
    "generatedat",
    "generatedon",
    "created",
    "updated",
    "changed",
    "issued",
    "sent",
    "requested",
    "verified",
    "confirmed",
    "failed",
    "reset",
    "rotated",
    "revoked",
    "expires",
    "expired",
    "expiry",
    "expiration",
    // Which, whose, why, and of what kind.
    "createdby",
    "changedby",
    "issuedby",
    "revokedby",
    "updatedby",
    "generatedby",
    "requestedby",
    "resetby",
    "setby",
    "sentto",
    "channel",
    "provider",
    "symbol",
    "owner",
    "reason",
    "label",
    "description",
    "environment",
    "endpoint",
    "authmethod",
    "role",
    "roles",
    "permissions",
    "id",
    "ids",
    "name",
    "type",
    "kind",
    "version",
    "scope",
    "scopes",
    "issuer",
    "audience",
    "algorithm",
    "policy",
    "status",
    "state",
    "valid",
    "invalid",
    "required",
    "enabled",
    "disabled",
    // Passwordless, secretary, tokenized.
    "less",
    "ary",
    "ariat",
    "ize",
    "ized",
    "izer",
    "ization",
];

/// Whole words that begin or end like a word for a secret.
const ORDINARY: [&str; 5] = ["passport", "passenger", "preset", "secretary", "secretariat"];

/// Words that are never written in parts: a match across a word border is a coincidence.
const IN_ONE: [&str; 5] = ["token", "pwd", "jwt", "bcrypt", "scrypt"];

/// Owners that are also the end of other words (`gold`, `academy`).
const OWNERS_ALONE: [&str; 3] = ["old", "new", "my"];

/// Parts of a secret that may be shown to identify it.
const EXCERPTS: [&str; 4] = ["last4", "prefix", "suffix", "fingerprint"];

/// Secrets of which no part may be shown.
const NEVER_SHOWN: [&str; 5] = ["password", "passwd", "pwd", "passphrase", "passcode"];

/// The longest description of a secret.
const ABOUT_BYTES_MAX: usize = 48;

/// Words that name a secret only as a whole key.
const WHOLE: [&str; 14] = [
    "pass",
    "bearer",
    "authorization",
    "httpauthorization",
    "proxyauthorization",
    "authheader",
    "basicauth",
    "authorizationcode",
    "authcode",
    "oauthcode",
    "totp",
    "cookie",
    "cookies",
    "setcookie",
];

/// Owners whose `pass` is a password, unlike `boarding_pass` or `bypass`.
const OWNERS: [&str; 34] = [
    "user",
    "username",
    "login",
    "account",
    "auth",
    "admin",
    "root",
    "client",
    "service",
    "server",
    "api",
    "http",
    "proxy",
    "bind",
    "ldap",
    "ssh",
    "ftp",
    "smtp",
    "imap",
    "pop3",
    "mail",
    "db",
    "database",
    "mysql",
    "postgres",
    "redis",
    "amqp",
    "old",
    "new",
    "current",
    "temp",
    "default",
    "encrypted",
    "my",
];

/// Password words in keys for password hashes.
const PASSWORDS: [&str; 4] = ["pass", "pwd", "pw", "secret"];

/// Keys without any of these need no further check for hashes.
const HINTS: [&str; 5] = ["pass", "pwd", "pw", "secret", "otp"];

/// Hash words.
const HASHES: [&str; 10] =
    ["hash", "hashes", "digest", "salt", "hashed", "salted", "md5", "sha1", "sha256", "sha512"];

/// Words for an encoding.
const FORMS: [&str; 13] = [
    "header",
    "headers",
    "value",
    "raw",
    "plain",
    "text",
    "string",
    "encrypted",
    "encoded",
    "base64",
    "b64",
    "hex",
    "hashed",
];

/// Whether a key names a secret.
pub(crate) fn is_forbidden(key: &str) -> bool {
    let Some(name) = plain(key) else { return true };
    is_suspect(&name, &[]) && !(key.is_ascii() && is_ordinary(key))
}

/// Whether the letters of a key name a secret; `borders` are the starts of its words, in order.
fn is_suspect(name: &str, borders: &[usize]) -> bool {
    names_secret(name, borders) || names_hash(name, borders)
}

/// Whether a key names no secret once its words are separated.
fn is_ordinary(key: &str) -> bool {
    let (name, borders) = in_words(key, &ORDINARY);
    !is_suspect(&name, &borders)
}

/// Whether a match is a written word, or fills several words.
fn is_written(name: &str, borders: &[usize], at: usize, word: &str) -> bool {
    let end = at + word.len();
    // A long key has as many borders as matches.
    let is_border = |at: usize| at == 0 || at == name.len() || borders.binary_search(&at).is_ok();
    let next = borders.partition_point(|border| *border <= at);
    let crosses = borders.get(next).is_some_and(|border| *border < end);
    let is_plural = || name.get(end..).is_some_and(|rest| rest.starts_with('s'));
    !crosses || is_border(at) && (is_border(end) || is_plural() && is_border(end + 1))
}

fn names_secret(name: &str, borders: &[usize]) -> bool {
    static A_SECRET: WordMatcher = WordMatcher::new(&SECRETS);
    A_SECRET.anywhere(name).any(|rest| {
        let word = name.get(..name.len() - rest.len()).unwrap_or_default();
        let by_chance = |one: &&str| {
            word.strip_suffix(*one)
                .is_some_and(|before| !is_written(name, borders, before.len(), one))
        };
        !is_about(rest)
            && !rest.strip_prefix('s').is_some_and(is_about)
            && !is_excerpt(word, rest)
            && !IN_ONE.iter().any(by_chance)
    })
}

/// Whether the rest of a key describes the secret.
pub(super) fn is_about(rest: &str) -> bool {
    if rest.len() > 2 * ABOUT_BYTES_MAX {
        return false;
    }
    let rest = rest.trim_end_matches(|digit: char| digit.is_ascii_digit());
    (1..=ABOUT_BYTES_MAX).contains(&rest.len()) && is_made_of_words(rest)
}

fn is_made_of_words(rest: &str) -> bool {
    let continues = |word: &&str| rest.strip_prefix(*word).is_some_and(is_made_of_words);
    rest.is_empty() || ABOUT.iter().any(continues)
}

/// Whether the rest of a key names a part that may be shown.
fn is_excerpt(name: &str, rest: &str) -> bool {
    EXCERPTS.contains(&rest) && !NEVER_SHOWN.iter().any(|word| name.ends_with(word))
}

fn names_hash(name: &str, borders: &[usize]) -> bool {
    static A_HINT: WordMatcher = WordMatcher::new(&HINTS);
    static A_WHOLE: WordMatcher = WordMatcher::new(&WHOLE);
    // Nearly every key returns here.
    if A_HINT.anywhere(name).next().is_none() && A_WHOLE.ahead(name).next().is_none() {
        return false;
    }
    let written = |(at, word): (usize, &str)| is_written(name, borders, at, word);
    let has_password = || PASSWORDS.iter().any(|word| name.match_indices(word).any(written));
    let bare = without_form(name);
    let ends_in = |word: &&str| bare.strip_suffix(*word).is_some_and(|b| written((b.len(), word)));
    WHOLE.contains(&bare)
        || ["otp", "otps", "pw"].iter().any(ends_in)
        || bare.strip_suffix("pass").is_some_and(|of| is_owner(of, borders))
        || HASHES.iter().any(|hash| name.ends_with(hash) || bare.ends_with(hash)) && has_password()
        || HASHES.iter().any(|hash| name.starts_with(hash)) && PASSWORDS.iter().any(ends_in)
}

/// Whether the text before `pass` ends in an owner.
fn is_owner(of: &str, borders: &[usize]) -> bool {
    OWNERS.iter().any(|who| {
        of.strip_suffix(who).is_some_and(|before| {
            let alone = before.is_empty() || borders.contains(&before.len());
            alone || !OWNERS_ALONE.contains(who) || !borders.contains(&of.len())
        })
    })
}

pub(super) fn without_form(name: &str) -> &str {
    let mut rest = name;
    loop {
        let bare = rest.trim_end_matches(|digit: char| digit.is_ascii_digit());
        let bare = FORMS.iter().find_map(|form| rest.strip_suffix(form)).unwrap_or(bare);
        if bare == rest || bare.is_empty() {
            return rest;
        }
        rest = bare;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::sensitive::never_allowed::CODES;
    use crate::domain::sensitive::normalize::transliterated;

    #[test]
    fn keys_that_name_tokens_passwords_or_hashes_are_refused() {
        for key in [
            "access_token",
            "accessToken",
            "ACCESS-TOKEN",
            "id_token",
            "idToken",
            "refresh_token",
            "refreshTokens",
            "token",
            "Token",
            "tokens",
            "session.token",
            "csrf token",
            "password",
            "Password",
            "passWord",
            "pass_word",
            "password_hash",
            "passwordHash",
            "hashed_password",
            "new_password",
            "password2",
            "password_confirmation_text",
            "passwd",
            "pwd",
            "user_pwd",
            "pw_hash",
            "pwhash",
            "password_digest",
            "passwordSalt",
            "passphrase",
            "secret",
            "client-secret",
            "client_secret",
            "clientSecrets",
            "credential",
            "credentials",
            "private_key",
            "privateKey",
            "private-keys",
            "api_key",
            "jwt",
            "id_jwt",
            "pass",
            "bearer",
            "Authorization",
            "token_value",
            "access_token_raw",
            "password_base64",
            "password_hashed",
            "secret_1",
            "to\u{212a}en",
            "to\u{200b}ken",
        ] {
            assert!(is_forbidden(key), "{key}");
        }
    }

    #[test]
    fn a_suffix_or_disguise_hides_no_secret() {
        for key in [
            "hashed_pw",
            "salted_pass",
            "password_sha256",
            "passwordmd5",
            "password_bcrypt",
            "password_argon2id",
            "bcrypt",
            "argon2id",
            "access_token_v2",
            "refresh_tokens_list",
            "tokens_map",
            "tokensById",
            "passwords_list",
            "tokens_set",
            "token_next",
            "private_key_pem",
            "secret_key",
            "secretId",
            "access_key",
            "credentials_json",
            "session_cookie",
            "cookie",
            "totp_seed",
            "otp",
            "recovery_codes",
            "password_reset_link",
            "token_count_secret",
            "token_counted_x",
            "user_pass",
            "smtp_pass",
            "smtpPass",
            "DB_PASS",
            "superuser_pass_2",
            "userpw",
            "encrypted_pw",
            "authorization_header",
            "Proxy-Authorization",
            "auth_code",
            "otp_code",
            "sms_otp",
            "mfa_code",
            "magic_link",
            "magicLinkUrl",
            "reset_password_url",
            "session_key",
            "private_key_prefix_and_rest",
            "password_prefix",
            "password_last4",
            "\u{ff50}assword",
            "\u{24df}\u{24d0}\u{24e2}\u{24e2}word",
            "\u{1d429}\u{1d41a}\u{1d42c}\u{1d42c}word",
            "p\u{e4}ssword",
            "pa\u{df}word",
            "t\u{f8}ken",
            "passw\u{43e}rd",
            "t\u{3bf}ken",
            "\u{1d1b}oken",
        ] {
            assert!(is_forbidden(key), "{key}");
        }
    }

    #[test]
    fn descriptions_of_a_secret_and_other_passes_are_allowed() {
        for key in [
            "hash",
            "hashes",
            "password_strength_score",
            "token_last4",
            "api_key_prefix",
            "secret_fingerprint",
            "token_revoked_by",
            "password_reset_sent_at",
            "token_endpoint",
            "magic_link_sent_at",
            "mfa_code_length",
            "boarding_pass",
            "userpassport",
            "user_passed",
            "authorization_id",
        ] {
            assert!(!is_forbidden(key), "{key}");
        }
    }

    #[test]
    fn keys_that_only_contain_such_letters_are_allowed() {
        for key in [
            "user_id",
            "email",
            "name",
            "via_idp",
            "token_count",
            "tokens_used",
            "tokenized",
            "token_type",
            "password_changed_at",
            "passwordless",
            "passport",
            "passenger",
            "compass",
            "secretary",
            "hashtag",
            "avatar_hash",
            "commit_hash",
            "monkey",
            "keypad",
            "public_key",
            "jwt_issuer",
            "credential_type",
            "bypass",
            "hashes_per_second",
            "",
            "\u{e4}\u{f6}",
            "2",
            "value",
            "text",
            "address",
            "plan",
            "past_due_hash_count",
            "hash_tag",
            "token_id",
            "token_expires_at",
            "tokens_per_minute_2",
            "access_key_id",
            "password_reset_at",
            "password_last_changed_at",
            "recovery_codes_left",
            "cookie_consent",
            "bcrypt_cost",
            "session_id",
            "footprint",
            "description",
            "upward",
            "latency_\u{b5}s",
            "gr\u{f6}\u{df}e",
            "\u{15f}\u{259}h\u{259}r",
            "\u{43f}\u{430}\u{440}\u{43e}\u{43b}\u{44c}_1",
            "\u{540d}\u{524d}_id",
        ] {
            assert!(!is_forbidden(key), "{key}");
        }
    }

    #[test]
    fn words_do_not_match_across_word_borders() {
        for key in [
            "is_crypto",
            "isCrypto",
            "accepts_crypto",
            "payments_crypto_currency",
            "web_crypto",
            "auto_kennzeichen",
            "konto_kennung",
            "ship_to_kenya",
            "shipToKenya",
            "preset_link",
            "shop_web_hash",
            "app_webhook_digest",
            "group_wide_digest",
            "spa_ssl_hash",
            "gold_pass",
            "economyPass",
            "academy_pass",
            "renew_pass",
            "passport_hash",
            "passenger_hash",
            "pwdLastSet",
            "password_updated_by",
            "backup_codes_generated_at",
            "verification_code_sent_to",
            "secretary_email",
            "secretariat_name",
            "token_symbol",
        ] {
            assert!(!is_forbidden(key), "{key}");
        }
        for key in [
            "to_ken",
            "to_kens",
            "access_to_ken_2",
            "p_w_hash",
            "old_pass",
            "user_old_pass",
            "myNewPass",
            "passport_token",
            "preset_password",
            "secretary_pwd",
            "mypass_word",
            "stripeapi_key",
            "userAccess_token",
            "web_bcrypt",
            "WebBCrypt",
            "user_scrypt_hash",
            "token_generated",
            "JWTValue",
            "userJWT",
        ] {
            assert!(is_forbidden(key), "{key}");
        }
    }

    /// The reference: normalizes every key, and searches for one word after another.
    fn is_forbidden_word_by_word(key: &str) -> bool {
        let Some(name) = transliterated(key) else { return true };
        let follows = |word: &'static str| {
            name.match_indices(word).map(|(at, _)| &name[at + word.len()..]).collect::<Vec<_>>()
        };
        let mut remainders = SECRETS.into_iter().flat_map(follows);
        let bare = without_form(&name);
        let about = |rest: &str| {
            let word = &name[..name.len() - rest.len()];
            is_about(rest)
                || rest.strip_prefix('s').is_some_and(is_about)
                || EXCERPTS.contains(&rest) && !NEVER_SHOWN.iter().any(|one| word.ends_with(one))
        };
        remainders.any(|rest| !about(rest))
            || WHOLE.contains(&bare)
            || ["otp", "otps", "pw"].iter().any(|end| bare.ends_with(end))
            || OWNERS.iter().any(|owner| bare.ends_with(&format!("{owner}pass")))
            || HASHES.iter().any(|hash| name.ends_with(hash) || bare.ends_with(hash))
                && PASSWORDS.iter().any(|word| name.contains(word))
            || HASHES.iter().any(|hash| name.starts_with(hash))
                && PASSWORDS.iter().any(|word| bare.ends_with(word))
    }

    /// A few listed words or their beginnings, with varied letters and separators.
    fn random_key(roll: &mut impl FnMut(usize) -> usize) -> String {
        let between = ["", "", "", "_", "-", " .", "s", "2", "64", "x", "\u{e9}", "\u{200b}"];
        let mut key = String::new();
        for _ in 0..1 + roll(4) {
            key += between[roll(between.len())];
            let words = [
                &SECRETS[..],
                &ABOUT,
                &EXCERPTS,
                &WHOLE,
                &OWNERS,
                &PASSWORDS,
                &HASHES,
                &FORMS,
                &CODES,
            ];
            let words = words[roll(words.len())];
            let word = words[roll(words.len())];
            let end = if roll(3) == 0 { roll(word.len()) } else { word.len() };
            key.extend(word[..end].chars().map(|letter| match roll(60) {
                0 => 'x',
                // In full width.
                1 => char::from_u32(letter as u32 + 0xfee0).unwrap(),
                2 if letter == 'o' => '\u{43e}',
                3..10 => letter.to_ascii_uppercase(),
                _ => letter,
            }));
        }
        key + between[roll(between.len())]
    }

    #[test]
    fn all_words_at_once_match_the_reference() {
        let mut forbidden = 0;
        for seed in 0_u64..400 {
            let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
            let mut roll = |sides: usize| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state >> 8) as usize % sides
            };
            for _ in 0..20 {
                let key = random_key(&mut roll);
                let expected = is_forbidden_word_by_word(&key);
                let found = plain(&key).is_none_or(|name| is_suspect(&name, &[]));
                assert_eq!(found, expected, "{key:?} of seed {seed}");
                assert!(expected || !is_forbidden(&key), "{key:?} of seed {seed}");
                forbidden += usize::from(expected);
            }
        }
        assert!((2_000..6_000).contains(&forbidden), "{forbidden} of 8,000 are all or none");
    }

    #[test]
    fn no_key_is_slow_to_check() {
        // Repetition must not multiply the passes over a key.
        for word in
            ["token", "tokencount", "count", "in", "pw", "pbkdf", "Ato_Ken", "hop_web_hash_"]
        {
            let key = word.repeat(1_000_000 / word.len());
            let named = word.starts_with("token") || word == "pw";
            assert_eq!(is_forbidden(&key), named, "{word}");
            let numbered = key + &"1".repeat(1_000_000);
            assert_eq!(is_forbidden(&numbered), named, "{word}, numbered");
        }
    }
}
