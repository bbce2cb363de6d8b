//! Detects values that are, as a whole, a secret in a known format. (core)
//!
//! # Rules
//!
//! 1. The first letters select the candidate formats; for nearly every text that is all that runs.
//! 2. The whole text must match the format: its letters, its length, for a token its header. A
//!    sentence that mentions a key is not a secret.
//! 3. Quotes around the text, and `Authorization: Bearer` or `user:` before it, are ignored. Words
//!    after `Bearer`, a path after `{md5}` and a list of symbols after `$` are not secrets.
//! 4. Surrounding spaces, full-width letters and zero-width characters hide no secret.
//!
//! Prefixes and lengths are those that the issuers document, as secret scanners collect them:
//! <https://github.com/gitleaks/gitleaks/blob/master/config/gitleaks.toml>. Password hashes follow
//! crypt(5), RFC 2307, the [PHC string format], Django and Werkzeug.
//!
//! Not here: tokens inside of a longer text (`sensitive::within`); digests without a prefix (MD5,
//! SHA-256 in hexadecimal), which commits and files have as well: their keys decide
//! (`sensitive::keys`).
//!
//! [PHC string format]: https://github.com/P-H-C/phc-string-format/blob/master/phc-sf-spec.md

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::domain::sensitive::normalize::DECOMPOSED;
use crate::domain::sensitive::word_matcher::WordMatcher;

/// No secret of a known format is shorter.
pub(super) const BYTES_MIN: usize = 20;

/// The characters that select the candidate formats.
const HEAD_CHARS: usize = 64;

/// A format: its prefix, and the number and kind of the letters after it.
struct Kind {
    name: &'static str,
    start: &'static str,
    least: usize,
    most: usize,
    letters: Letters,
}

#[derive(Clone, Copy)]
enum Letters {
    /// `A` to `Z` and digits.
    Upper,
    /// Letters and digits.
    Plain,
    /// Letters, digits, `_` and `-`.
    Word,
    /// Those of `Word`, and the punctuation of tokens, hashes and their parameters.
    Wide,
    /// Any characters, line breaks included.
    Any,
}

const fn kind(
    name: &'static str,
    start: &'static str,
    least: usize,
    most: usize,
    letters: Letters,
) -> Kind {
    Kind { name, start, least, most, letters }
}

const KEY: &str = "an access key";
const HASH: &str = "a password's hash";
/// The name of the format of JSON web tokens.
pub(super) const JWT: &str = "a JSON web token";
const PRIVATE: &str = "a private key";
const TOKEN: &str = "an access token";
const LONG: usize = 4_096;

const KINDS: [Kind; 54] = [
    // AWS: fixed length.
    kind(KEY, "AKIA", 16, 16, Letters::Upper),
    kind(KEY, "ASIA", 16, 16, Letters::Upper),
    kind(KEY, "ABIA", 16, 16, Letters::Upper),
    kind(KEY, "ACCA", 16, 16, Letters::Upper),
    // GitHub, GitLab.
    kind(TOKEN, "ghp_", 36, 255, Letters::Plain),
    kind(TOKEN, "gho_", 36, 255, Letters::Plain),
    kind(TOKEN, "ghu_", 36, 255, Letters::Plain),
    kind(TOKEN, "ghs_", 36, 1_024, Letters::Wide),
    kind(TOKEN, "ghr_", 36, 255, Letters::Plain),
    kind(TOKEN, "github_pat_", 36, 255, Letters::Word),
    kind(TOKEN, "glpat-", 20, 300, Letters::Wide),
    // Slack.
    kind(TOKEN, "xoxb-", 20, 255, Letters::Word),
    kind(TOKEN, "xoxp-", 20, 255, Letters::Word),
    kind(TOKEN, "xoxa-", 20, 255, Letters::Word),
    kind(TOKEN, "xoxr-", 20, 255, Letters::Word),
    kind(TOKEN, "xoxs-", 20, 255, Letters::Word),
    kind(TOKEN, "xoxe.", 20, 500, Letters::Wide),
    kind(TOKEN, "xapp-", 20, 255, Letters::Word),
    // Stripe, and the secrets of webhooks.
    kind(KEY, "sk_live_", 16, 255, Letters::Plain),
    kind(KEY, "sk_test_", 16, 255, Letters::Plain),
    kind(KEY, "rk_live_", 16, 255, Letters::Plain),
    kind(KEY, "rk_test_", 16, 255, Letters::Plain),
    kind("a webhook's secret", "whsec_", 24, 255, Letters::Wide),
    // Tokens of Weir.
    kind(TOKEN, "weir_", 43, 43, Letters::Word),
    // Google.
    kind(KEY, "AIza", 35, 35, Letters::Word),
    kind(TOKEN, "ya29.", 20, LONG, Letters::Wide),
    kind(KEY, "GOCSPX-", 24, 64, Letters::Word),
    // Other services.
    kind(KEY, "SG.", 60, 80, Letters::Wide),
    kind(TOKEN, "npm_", 36, 36, Letters::Plain),
    kind(TOKEN, "pypi-AgE", 40, LONG, Letters::Word),
    kind(TOKEN, "dop_v1_", 64, 64, Letters::Plain),
    kind(TOKEN, "hvs.", 24, 300, Letters::Word),
    kind(TOKEN, "shpat_", 32, 64, Letters::Plain),
    kind(KEY, "shpss_", 32, 64, Letters::Plain),
    kind(TOKEN, "hf_", 34, 40, Letters::Plain),
    kind(KEY, "sk-proj-", 20, 300, Letters::Word),
    kind(KEY, "sk-ant-", 20, 300, Letters::Word),
    kind("a one-time password's secret", "otpauth://", 10, LONG, Letters::Any),
    // Private keys.
    kind(PRIVATE, "-----BEGIN PRIVATE KEY", 5, usize::MAX, Letters::Any),
    kind(PRIVATE, "-----BEGIN RSA PRIVATE KEY", 5, usize::MAX, Letters::Any),
    kind(PRIVATE, "-----BEGIN EC PRIVATE KEY", 5, usize::MAX, Letters::Any),
    kind(PRIVATE, "-----BEGIN DSA PRIVATE KEY", 5, usize::MAX, Letters::Any),
    kind(PRIVATE, "-----BEGIN ENCRYPTED PRIVATE KEY", 5, usize::MAX, Letters::Any),
    kind(PRIVATE, "-----BEGIN OPENSSH PRIVATE KEY", 5, usize::MAX, Letters::Any),
    kind(PRIVATE, "-----BEGIN PGP PRIVATE KEY", 5, usize::MAX, Letters::Any),
    kind(PRIVATE, "PuTTY-User-Key-File-", 5, usize::MAX, Letters::Any),
    kind(PRIVATE, "AGE-SECRET-KEY-1", 50, 64, Letters::Upper),
    // Hashes that neither begin with `$` nor with `{`.
    kind(HASH, "pbkdf2_sha", 30, 512, Letters::Wide),
    kind(HASH, "pbkdf2:sha", 30, 512, Letters::Wide),
    kind(HASH, "bcrypt$", 30, 512, Letters::Wide),
    kind(HASH, "bcrypt_sha256$", 30, 512, Letters::Wide),
    kind(HASH, "argon2$argon2", 30, 512, Letters::Wide),
    kind(HASH, "scrypt:", 30, 512, Letters::Wide),
    kind(HASH, "SCRAM-SHA-", 30, 512, Letters::Wide),
];

static KNOWN: WordMatcher = WordMatcher::new(&STARTS);

const STARTS: [&str; KINDS.len()] = starts();

#[expect(clippy::indexing_slicing, reason = "evaluated at compile time")]
const fn starts() -> [&'static str; KINDS.len()] {
    let mut starts = [""; KINDS.len()];
    let mut at = 0;
    while at < KINDS.len() {
        starts[at] = KINDS[at].start;
        at += 1;
    }
    starts
}

/// The block that openssl writes before an elliptic-curve key.
const CURVE: &str = "-----BEGIN EC PARAMETERS-----";

/// A token after `Bearer`, unless it is only words.
const BEARER: Kind = kind(TOKEN, "", 16, LONG, Letters::Wide);

/// Schemes of RFC 2307, of passlib and of Spring, in lower case, without `-`.
const SCHEMES: [&str; 22] = [
    "ssha",
    "ssha256",
    "ssha384",
    "ssha512",
    "sha",
    "sha1",
    "sha256",
    "sha384",
    "sha512",
    "smd5",
    "md5",
    "crypt",
    "pbkdf2",
    "pbkdf2sha1",
    "pbkdf2sha256",
    "pbkdf2sha512",
    "argon2",
    "argon2i",
    "argon2d",
    "argon2id",
    "bcrypt",
    "scrypt",
];

/// The kind of secret that the whole text is; `None` if it is not a secret.
pub(super) fn secret(text: &str) -> Option<&'static str> {
    let text = text.trim_start_matches(is_blank);
    if text.len() < BYTES_MIN {
        return None;
    }
    let head = text.as_bytes().get(..HEAD_CHARS).unwrap_or(text.as_bytes());
    let might_be = if head.is_ascii() {
        might_be(text)
    } else {
        might_be(&undisguised(&text.chars().take(HEAD_CHARS).collect::<String>()))
    };
    if !might_be {
        return None;
    }
    let whole = if text.is_ascii() { Cow::Borrowed(text) } else { Cow::Owned(undisguised(text)) };
    match_kind(whole.trim_end())
}

/// Whether a text begins like a known format.
fn might_be(text: &str) -> bool {
    let (text, bearer) = bare(text);
    let first = text.as_bytes();
    bearer
        || matches!(first, [b'$' | b'{', ..] | [b'e', b'y' | b'w', ..] | [b'-', b'-', ..])
        || KNOWN.ahead(text).next().is_some()
        || of_user(text).is_some()
}

fn match_kind(text: &str) -> Option<&'static str> {
    let (text, bearer) = bare(text);
    match text.as_bytes() {
        [b'$', ..] => is_crypt(text).then_some(HASH),
        [b'{', ..] => is_in_scheme(text).then_some(HASH),
        [b'e', b'y' | b'w', ..] if is_jwt(text) => Some(JWT),
        _ if text.starts_with(CURVE) => text.contains("PRIVATE KEY-----").then_some(PRIVATE),
        _ => {
            let kinds = KNOWN.ahead(text).filter_map(|(nth, rest)| Some((KINDS.get(nth)?, rest)));
            let matches = |(kind, rest): &(&Kind, &str)| kind.matches(rest);
            let known = kinds.filter(matches).map(|(kind, _)| kind.name).next();
            let token = || (bearer && BEARER.matches(text) && !is_words(text)).then_some(TOKEN);
            let hash = || of_user(text).is_some_and(is_crypt).then_some(HASH);
            known.or_else(token).or_else(hash)
        }
    }
}

/// A text without quotes and header name, and whether `Bearer` preceded it.
fn bare(text: &str) -> (&str, bool) {
    let text = text.trim_matches(['"', '\'']);
    let text = behind(text, "authorization:").map_or(text, str::trim_start);
    let token = behind(text, "bearer").filter(|rest| rest.starts_with([' ', '\t', ':']));
    let token = token.map(|rest| rest.trim_start_matches([' ', '\t', ':']));
    token.map_or((text, false), |token| (token, true))
}

/// The rest after a prefix, ignoring case.
fn behind<'t>(text: &'t str, start: &str) -> Option<&'t str> {
    let (head, rest) = text.split_at_checked(start.len())?;
    head.eq_ignore_ascii_case(start).then_some(rest)
}

/// The hash after `user:`, as in password files.
fn of_user(text: &str) -> Option<&str> {
    let head = text.as_bytes().iter().take(HEAD_CHARS);
    let at = head.clone().position(|letter| *letter == b'$')?;
    let (user, hash) = text.split_at_checked(at)?;
    let user = user.strip_suffix(':')?;
    (!user.is_empty() && !user.contains(char::is_whitespace)).then_some(hash)
}

/// Whether a text is only words and numbers with separators.
fn is_words(text: &str) -> bool {
    let is_word = |word: &str| {
        let mut rest = word.bytes();
        let first = rest.next().is_none_or(|letter| letter.is_ascii_alphabetic());
        first && rest.all(|letter| letter.is_ascii_lowercase())
            || word.bytes().all(|letter| letter.is_ascii_digit())
    };
    let between = |letter: char| !letter.is_ascii_alphanumeric();
    text.contains(between) && text.split(between).all(is_word)
}

impl Kind {
    fn matches(&self, rest: &str) -> bool {
        (self.least..=self.most).contains(&rest.len())
            && rest.bytes().all(|letter| self.letters.contains(letter))
    }
}

impl Letters {
    fn contains(self, letter: u8) -> bool {
        match self {
            Self::Upper => letter.is_ascii_uppercase() || letter.is_ascii_digit(),
            Self::Plain => letter.is_ascii_alphanumeric(),
            Self::Word => letter.is_ascii_alphanumeric() || b"_-".contains(&letter),
            Self::Wide => letter.is_ascii_alphanumeric() || b"_-.+/=$,:~".contains(&letter),
            Self::Any => true,
        }
    }
}

/// Whether a text has the format of crypt(5): `$2b$10$…`, `$argon2id$v=19$…`, `$6$salt$…`.
fn is_crypt(text: &str) -> bool {
    let mut parts = text.splitn(3, '$').skip(1);
    let (Some(id), Some(rest)) = (parts.next(), parts.next()) else { return false };
    let is_id = (1..=16).contains(&id.len())
        && id.bytes().all(|letter| letter.is_ascii_alphanumeric() || letter == b'-');
    // No hash is shorter, and none contains `_`, which variable names do.
    is_id
        && rest.rsplit('$').next().is_some_and(|hash| hash.len() >= 22)
        && rest.bytes().all(|letter| letter != b'_' && Letters::Wide.contains(letter))
}

/// Whether a text is a hash after its scheme: `{SSHA}…`, `{bcrypt}…`.
fn is_in_scheme(text: &str) -> bool {
    let Some((scheme, rest)) = text.get(1..).and_then(|text| text.split_once('}')) else {
        return false;
    };
    let scheme = scheme.split('@').next().unwrap_or_default().to_ascii_lowercase().replace('-', "");
    // Base64 or hexadecimal, at least as long as MD5; or with parameters as in crypt(5).
    let is_digest = (24..=512).contains(&rest.len())
        && rest.len().is_multiple_of(4)
        && rest
            .trim_end_matches('=')
            .bytes()
            .all(|c| c.is_ascii_alphanumeric() || b"+/".contains(&c));
    let has_parameters = || {
        let hash = rest.rsplit('$').next().unwrap_or_default();
        rest.contains('$')
            && hash.len() >= 22
            && rest.bytes().all(|letter| Letters::Wide.contains(letter))
    };
    SCHEMES.contains(&scheme.as_str()) && (is_digest || has_parameters())
}

/// Whether a text is a JWT: three parts, or five if encrypted, the first a header (RFC 7515, 7516).
fn is_jwt(text: &str) -> bool {
    #[derive(Deserialize)]
    struct Header {
        #[serde(rename = "alg")]
        _algorithm: IgnoredAny,
    }
    let dots = text.bytes().filter(|letter| *letter == b'.').count();
    let letters = |letter: u8| letter == b'.' || Letters::Word.contains(letter);
    if ![2, 4].contains(&dots) || !text.bytes().all(letters) {
        return false;
    }
    let header = text.split('.').next().and_then(|header| URL_SAFE_NO_PAD.decode(header).ok());
    header.is_some_and(|header| serde_json::from_slice::<Header>(&header).is_ok())
}

/// The ASCII characters of a text after compatibility decomposition (NFKD).
fn undisguised(text: &str) -> String {
    DECOMPOSED.normalize_iter(text.chars()).filter(char::is_ascii).collect()
}

/// Whether a character is whitespace or has zero width.
pub(super) fn is_blank(letter: char) -> bool {
    letter.is_whitespace() || matches!(letter, '\u{200b}'..='\u{200f}' | '\u{2060}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SIGNED: &str = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxIn0.\
        dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U";

    const EC_KEY: &str = "-----BEGIN EC PRIVATE KEY-----\nMIIE";

    /// Joins a secret at run time, so that secret scanners do not report this file.
    fn made(start: &str, rest: &str) -> String {
        format!("{start}{rest}")
    }

    /// A secret of each kind.
    fn secrets() -> Vec<String> {
        let letter = |letters: Letters| if matches!(letters, Letters::Upper) { "Q" } else { "a" };
        let of_kinds =
            KINDS.iter().map(|kind| made(kind.start, &letter(kind.letters).repeat(kind.least)));
        let salted = "abcdefghijklmnopqrstuv";
        let others = [
            SIGNED.to_owned(),
            "ewogImFsZyI6ICJub25lIgp9.e30.".to_owned(),
            "eyJhbGciOiJkaXIiLCJlbmMiOiJBMTI4R0NNIn0..aXY.Y2lwaGVy.dGFn".to_owned(),
            made("$2b$10$", &"a".repeat(53)),
            made("$2y$12$", &"B".repeat(53)),
            made("$argon2id$v=19$m=65536,t=3,p=4$c29tZXNhbHQ$", &salted.repeat(2)),
            made("$scrypt$ln=16,r=8,p=1$aM15713r3Xsvxbi31lqr1Q$", salted),
            made("$6$rounds=5000$salt$", &salted.repeat(4)),
            made("$P$B", &"a".repeat(30)),
            made("{SSHA}", &"a".repeat(32)),
            made("{bcrypt}$2a$10$", &"a".repeat(53)),
            made("{PBKDF2-SHA256}30000$c2FsdA$", &"a".repeat(43)),
            made("{md5}", "5f4dcc3b5aa765d61d8327deb882cf99"),
            made("{scrypt@SpringSecurity_v5_8}$100801$c2FsdA==$", &"a".repeat(44)),
            made("ada:$2y$10$", &"a".repeat(53)),
            made("root:$6$salt$", &("a".repeat(86) + ":1:0:")),
            made("Bearer ", &"a".repeat(16)),
            made("Bearer ", "01890a5d-ac96-774b-bcce-b302099a8057"),
            made("BEARER  ", SIGNED),
            made("bearer: ", SIGNED),
            made("Authorization: Bearer ", SIGNED),
            made("\"", &(SIGNED.to_owned() + "\"")),
            made("-----BEGIN EC PARAMETERS-----\nBgg=\n-----END EC PARAMETERS-----\n", EC_KEY),
        ];
        of_kinds.chain(others).collect()
    }

    #[test]
    fn secrets_of_known_formats_are_found() {
        for text in secrets() {
            assert!(secret(&text).is_some(), "{text}");
        }
    }

    #[test]
    fn values_that_only_resemble_a_secret_are_accepted() {
        for text in [
            "",
            "ada@example.com",
            "eyJhbGciOiJIUzI1NiJ9",
            "eye.of.the-beholder-is-here",
            "eyJub3QiOiJhIGhlYWRlciJ9.eyJzdWIiOiIxIn0.c2ln",
            "eyJhbGciOiJIUzI1NiJ9.a b.c",
            "01890a5d-ac96-774b-bcce-b302099a8057",
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
            "$2b$ is how a hash begins",
            "$20 for the first month, $30 for the next",
            "$price$without_any_discount_at_all",
            "{workspace}/projects/alpha-and-omega",
            "{shape}",
            "https://api.example.com/v1/users?page=2",
            "-----BEGIN PUBLIC KEY-----\nMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE",
            "-----BEGIN CERTIFICATE-----\nMIIB",
            "Bearer of good news for everybody",
            "Bearer Bonds_2030_series_A",
            "Bearer notification-of-appointment",
            "-----BEGIN EC PARAMETERS-----\nBgg=\n-----END EC PARAMETERS-----",
            "{shared}/documents/projects-alpha",
            "{shard}/users/by-region/europe",
            "{md5}/download/file-1.2.3.tgz",
            "{cryptocurrency}/usd/exchange-rate",
            "$AAPL$MSFT$GOOG$AMZN$TSLA$NVDA",
            "price:$20 for the first month, $30 for the next",
            "sk_live_ is how a key begins",
            "ASIA_PACIFIC_REGION_1",
            "ASIAPACIFICSOUTHEASTREGION",
            "npm_package_manager_of_the_workspace",
            "hf_transformers",
            "xoxo-and-many-kisses-to-all",
            "whsec_… is shown once",
            "2026-11-22T10:31:07.123Z",
        ] {
            assert_eq!(secret(text), None, "{text}");
        }
    }

    #[test]
    fn the_kind_of_a_secret_is_known() {
        assert_eq!(secret(SIGNED), Some("a JSON web token"));
        assert_eq!(secret(&made("ghp_", &"a".repeat(36))), Some(TOKEN));
        assert_eq!(secret(&made("$2b$10$", &"a".repeat(53))), Some(HASH));
    }

    #[test]
    fn a_value_of_a_megabyte_is_a_secret_only_as_a_hash() {
        for start in ["eyJ", "$2b$", "{SSHA}", "Bearer ", "x", "\u{ff45}yJ", "\u{597d}"] {
            for unit in ["a", ".", "$", " ", "\u{200b}", "\u{597d}"] {
                let text = start.to_owned() + &unit.repeat(1 << 20);
                let is_hash = start == "$2b$" && ["a", "."].contains(&unit);
                assert_eq!(secret(&text), is_hash.then_some(HASH), "{start}{unit}");
            }
        }
    }

    /// The reference: each format is checked by itself.
    fn secret_kind_by_kind(text: &str) -> bool {
        KINDS
            .iter()
            .any(|kind| text.strip_prefix(kind.start).is_some_and(|rest| kind.matches(rest)))
    }

    proptest! {
        #[test]
        fn all_formats_at_once_match_the_reference(
            nth in 0..KINDS.len(),
            cut in 0..40_usize,
            rest in "[A-Za-z0-9_.-]{0,70}",
        ) {
            let start = KINDS[nth].start;
            let text = start[..cut.min(start.len())].to_owned() + &rest;
            let expected = text.len() >= BYTES_MIN && secret_kind_by_kind(&text);
            let plain = text.starts_with("ey") || text.starts_with("ew");
            prop_assert!(plain || secret(&text).is_some() == expected, "{text}");
        }

        #[test]
        fn no_disguise_hides_a_secret(
            nth in 0..KINDS.len() + 23,
            at in 0..64_usize,
            disguise in 0..4_u8,
        ) {
            let text = &secrets()[nth];
            let at = at % text.len();
            let (before, after) = text.split_at(at);
            let wide = |text: &str| text.chars().map(|one| match one {
                '!'..='~' => char::from_u32(one as u32 + 0xfee0).unwrap(),
                other => other,
            }).collect::<String>();
            let disguised = match disguise {
                0 => format!(" \t\u{feff}{text}\n "),
                1 => format!("{before}\u{200b}{after}"),
                2 => wide(text),
                _ => format!("{}{after}", wide(before)),
            };
            prop_assert!(secret(&disguised).is_some(), "{disguised:?}");
        }

        #[test]
        fn words_numbers_names_and_times_are_no_secrets(
            text in prop_oneof![
                "[A-Za-z]{1,12}( [A-Za-z0-9,.!?]{1,12}){0,12}",
                "[0-9]{1,40}",
                "[a-z]{3,12}@[a-z]{3,12}\\.com",
            ]
        ) {
            prop_assert_eq!(secret(&text), None);
        }
    }
}
