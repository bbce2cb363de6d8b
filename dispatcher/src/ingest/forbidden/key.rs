//! Says whether a key names what must never be sent (CONTRACT §6.4).
//!
//! # The rule
//!
//! 1. A key is compared by its letters and digits alone: however they are written (full width,
//!    circled, bold, with accents), in lower case. `client-secret` and `clientSecret` are one.
//! 2. One with a word of [`SECRETS`] in it is refused, whatever stands around it, unless all that
//!    follows the word are words of [`ABOUT`], which say something about a secret and not what it
//!    is: `token_count` and `password_changed_at` pass, `access_token_v2` does not. What is new to
//!    us is refused: its sender sees that at once, a secret once sent nobody takes back.
//! 3. One that ends in a word for hashes and has one for passwords in it is refused, and one that
//!    begins with the former and ends in the latter; and one that is nothing but a word of
//!    [`WHOLE`], apart from endings that say how a value is written.
//! 4. One that mixes Latin letters with others that look like them is refused.
//!
//! Not here: where keys are (`forbidden`). Values are not judged.

use icu_normalizer::DecomposingNormalizerBorrowed;

/// What nobody is sent.
const SECRETS: [&str; 25] = [
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
];

/// What says something about a secret, and the rests of words that only begin as one.
const ABOUT: [&str; 68] = [
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
    "created",
    "updated",
    "changed",
    "issued",
    "reset",
    "rotated",
    "revoked",
    "expires",
    "expired",
    "expiry",
    "expiration",
    // Which, and of what kind.
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

/// The longest that is said about a secret.
const ABOUT_BYTES_MAX: usize = 48;

/// What names a secret when it is all of a key.
const WHOLE: [&str; 11] = [
    "hash",
    "hashes",
    "pass",
    "pw",
    "bearer",
    "authorization",
    "otp",
    "totp",
    "cookie",
    "cookies",
    "setcookie",
];

/// Words for passwords, for keys that speak of their hashes.
const PASSWORDS: [&str; 4] = ["pass", "pwd", "pw", "secret"];

/// What a password is turned into.
const HASHES: [&str; 10] =
    ["hash", "hashes", "digest", "salt", "hashed", "salted", "md5", "sha1", "sha256", "sha512"];

/// Says how a value is written, and nothing about what it is.
const FORMS: [&str; 11] = [
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

/// Letters that are no Latin ones and look like them: phonetic, Greek, Cyrillic, Armenian,
/// Cherokee, Lisu, and those that were added to these later.
const LOOKALIKES: [std::ops::RangeInclusive<char>; 12] = [
    // The schwa between these two is a letter of Azerbaijani.
    '\u{250}'..='\u{258}',
    '\u{25a}'..='\u{2af}',
    '\u{370}'..='\u{58f}',
    '\u{13a0}'..='\u{13ff}',
    '\u{1c80}'..='\u{1c8f}',
    '\u{1d00}'..='\u{1dbf}',
    '\u{1f00}'..='\u{1fff}',
    '\u{2c60}'..='\u{2cff}',
    '\u{a4d0}'..='\u{a4ff}',
    '\u{a640}'..='\u{a69f}',
    '\u{a720}'..='\u{a7ff}',
    '\u{ab30}'..='\u{abbf}',
];

const DECOMPOSED: DecomposingNormalizerBorrowed<'static> =
    DecomposingNormalizerBorrowed::new_nfkd();

/// Whether a key may not be sent.
pub(super) fn is_forbidden(key: &str) -> bool {
    let Some(name) = plain(key) else { return true };
    names_secret(&name) || names_hash(&name)
}

/// A key's letters and digits, in lower case; nothing where it pretends to be another.
fn plain(key: &str) -> Option<String> {
    if !key.is_ascii() {
        return taken_apart(key);
    }
    // Nothing to take apart, and nothing that looks like something else.
    let mut name = key.to_ascii_lowercase();
    name.retain(|letter| letter.is_ascii_alphanumeric());
    Some(name)
}

/// The same, of a key in any script.
fn taken_apart(key: &str) -> Option<String> {
    let (mut name, mut foreign) = (String::new(), false);
    let lower = DECOMPOSED.normalize(key);
    for letter in lower.chars().flat_map(char::to_lowercase) {
        match letter {
            'a'..='z' | '0'..='9' => name.push(letter),
            // Those that are a letter and a stroke, and no standard takes apart; and micro.
            '\u{df}' => name.push_str("ss"),
            '\u{f8}' => name.push('o'),
            '\u{111}' => name.push('d'),
            '\u{131}' => name.push('i'),
            '\u{142}' => name.push('l'),
            '\u{167}' => name.push('t'),
            '\u{3bc}' => name.push('u'),
            _ => foreign |= LOOKALIKES.iter().any(|range| range.contains(&letter)),
        }
    }
    let latin = name.bytes().any(|letter| letter.is_ascii_alphabetic());
    (!(foreign && latin)).then_some(name)
}

fn names_secret(name: &str) -> bool {
    static A_SECRET: Sought = Sought::new(&SECRETS);
    A_SECRET.anywhere(name).any(|rest| {
        let singular = is_about(rest);
        !singular && !rest.strip_prefix('s').is_some_and(is_about)
    })
}

/// Whether what follows a secret's name is there and speaks about the secret.
fn is_about(rest: &str) -> bool {
    let rest = rest.trim_end_matches(|digit: char| digit.is_ascii_digit());
    (1..=ABOUT_BYTES_MAX).contains(&rest.len()) && is_made_of_words(rest)
}

fn is_made_of_words(rest: &str) -> bool {
    let goes_on = |word: &&str| rest.strip_prefix(*word).is_some_and(is_made_of_words);
    rest.is_empty() || ABOUT.iter().any(goes_on)
}

fn names_hash(name: &str) -> bool {
    static A_PASSWORD: Sought = Sought::new(&PASSWORDS);
    static A_WHOLE: Sought = Sought::new(&WHOLE);
    let has_password = A_PASSWORD.anywhere(name).next().is_some();
    // Nearly every key has neither.
    if !has_password && A_WHOLE.ahead(name).next().is_none() {
        return false;
    }
    let bare = without_form(name);
    WHOLE.contains(&bare)
        || HASHES.iter().any(|hash| name.ends_with(hash) || bare.ends_with(hash)) && has_password
        || HASHES.iter().any(|hash| name.starts_with(hash))
            && PASSWORDS.iter().any(|word| bare.ends_with(word))
}

fn without_form(name: &str) -> &str {
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

/// Words that are looked for together: two letters of a text say which of them may begin there,
/// and nothing is made ready for each text.
struct Sought {
    words: &'static [&'static str],
    /// For each letter, a bit for every word that has it first, and for every one that has it
    /// second.
    first: [u32; 256],
    second: [u32; 256],
}

impl Sought {
    #[expect(clippy::indexing_slicing, reason = "done by the compiler, which would stop there")]
    const fn new(words: &'static [&'static str]) -> Self {
        let (mut first, mut second) = ([0; 256], [0; 256]);
        let mut at = 0;
        while at < words.len() {
            let letters = words[at].as_bytes();
            first[letters[0] as usize] |= 1 << at;
            second[letters[1] as usize] |= 1 << at;
            at += 1;
        }
        Self { words, first, second }
    }

    /// What follows each of the words, wherever in a text it stands.
    fn anywhere<'t>(&self, text: &'t str) -> impl Iterator<Item = &'t str> {
        let pairs = text.as_bytes().windows(2).enumerate();
        let places = pairs.filter(|(_, pair)| self.candidates(pair) != 0).map(|(at, _)| at);
        places.filter_map(|at| text.get(at..)).flat_map(|tail| self.ahead(tail))
    }

    /// What follows each of the words that a text begins with.
    fn ahead<'t>(&self, text: &'t str) -> impl Iterator<Item = &'t str> {
        let some = |bits: u32| (bits != 0).then_some(bits);
        let candidates = some(self.candidates(text.as_bytes()));
        let left = std::iter::successors(candidates, move |bits| some(bits & (bits - 1)));
        let words = left.filter_map(|bits| self.words.get(bits.trailing_zeros() as usize));
        words.filter_map(|word| text.strip_prefix(word))
    }

    /// A bit for every word that begins with these two letters.
    fn candidates(&self, letters: &[u8]) -> u32 {
        let having = |table: &[u32; 256], letter: u8| table.get(usize::from(letter)).copied();
        let &[first, second, ..] = letters else { return 0 };
        having(&self.first, first).zip(having(&self.second, second)).map_or(0, |(a, b)| a & b)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            "hash",
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
    fn what_follows_or_disguises_a_name_helps_nothing() {
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
    fn keys_that_only_sound_so_pass() {
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

    /// The dumbest correct version: takes every key apart, and looks for each word by itself.
    fn is_forbidden_word_by_word(key: &str) -> bool {
        let Some(name) = taken_apart(key) else { return true };
        let follows = |word: &'static str| {
            name.match_indices(word).map(|(at, _)| &name[at + word.len()..]).collect::<Vec<_>>()
        };
        let mut rests = SECRETS.into_iter().flat_map(follows);
        let bare = without_form(&name);
        rests.any(|rest| !is_about(rest) && !rest.strip_prefix('s').is_some_and(is_about))
            || WHOLE.contains(&bare)
            || HASHES.iter().any(|hash| name.ends_with(hash) || bare.ends_with(hash))
                && PASSWORDS.iter().any(|word| name.contains(word))
            || HASHES.iter().any(|hash| name.starts_with(hash))
                && PASSWORDS.iter().any(|word| bare.ends_with(word))
    }

    /// A few of our words or beginnings of them, in letters of several kinds, and what may stand
    /// around them.
    fn random_key(roll: &mut impl FnMut(usize) -> usize) -> String {
        let between = ["", "", "", "_", "-", " .", "s", "2", "64", "x", "\u{e9}", "\u{200b}"];
        let mut key = String::new();
        for _ in 0..1 + roll(4) {
            key += between[roll(between.len())];
            let words = [&SECRETS[..], &ABOUT, &WHOLE, &PASSWORDS, &HASHES, &FORMS][roll(6)];
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
    fn all_words_at_once_find_what_each_would() {
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
                assert_eq!(is_forbidden(&key), expected, "{key:?} of seed {seed}");
                forbidden += usize::from(expected);
            }
        }
        assert!((2_000..6_000).contains(&forbidden), "{forbidden} of 8,000 are all or none");
    }

    #[test]
    fn no_key_takes_long_to_judge() {
        // Whatever repeats in it, no more than a few passes over it.
        for word in ["token", "tokencount", "count", "in", "pw", "pbkdf"] {
            let key = word.repeat(1_000_000 / word.len());
            assert_eq!(is_forbidden(&key), word.starts_with("token"), "{word}");
        }
    }
}
