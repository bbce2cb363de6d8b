//! Who uses the dashboard: what a link and a session permit, and how a link is signed. (core)
//!
//! # Invariants
//!
//! 1. A link opens nothing without the key of its day or of the day after, and nothing once it has
//!    expired. That it opens one session only is the store's part.
//! 2. A session permits no more than the token that it comes from: it names that token, which is
//!    looked up at each request.
//!
//! Not here: sessions on disk (`store::sqlite::sessions`), tokens (`auth`).

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use weir_common::secret::{Secret, same};
use weir_common::time::UnixTime;

/// Random bytes of a link, and of a session's cookie.
pub const RANDOM_BYTES: usize = 32;

/// Bytes of a key that signs links.
pub const LINK_KEY_BYTES: usize = 32;

/// Microseconds of a day: for so long a key signs links.
const DAY: u64 = 86_400_000_000;

/// The longest link that is read: an identifier has at most 255 bytes.
const LINK_BYTES_MAX: usize = 2_048;

/// What a visitor may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// See everything of the workspace.
    ReadOnly,
    /// Change it, too.
    Full,
}

/// The token that a link or a session comes from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Issuer {
    /// A registered token, by its SHA-256 in hex digits. Without it, its sessions end.
    Registered(String),
    /// An access token of the platform, by its subject. Its sessions end when it expires.
    Platform(String),
}

/// What a link or a session grants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// The workspace.
    pub workspace: String,
    /// What it permits there.
    pub role: Role,
    /// Who granted it.
    pub issuer: Issuer,
    /// When the issuer's token expires, in microseconds since 1970.
    pub until: Option<u64>,
}

/// A link into the dashboard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// What it opens.
    pub grant: Grant,
    /// When it expires, in microseconds since 1970.
    pub expires_at: u64,
    /// Random, so that no two links are the same.
    pub nonce: String,
}

/// Why a link opens nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkFlaw {
    /// It is no link of this dispatcher, or was changed.
    Invalid,
    /// It is too old.
    Expired,
}

/// The day of a time, counted from 1970: each has its own key for links.
#[must_use]
pub fn day_of(time: UnixTime) -> u64 {
    time.0 / DAY
}

impl Link {
    /// The link as text, signed.
    #[must_use]
    pub fn signed(&self, key: &Secret<[u8; LINK_KEY_BYTES]>) -> String {
        let content = serde_json::to_vec(self).expect("it has texts and numbers only");
        let content = URL_SAFE_NO_PAD.encode(content);
        let mac = URL_SAFE_NO_PAD.encode(mac(key, content.as_bytes()));
        format!("{content}.{mac}")
    }

    /// The link of a text.
    ///
    /// # Errors
    ///
    /// If none of the keys signed it, or if it has expired.
    pub fn read(
        text: &str,
        keys: &[Secret<[u8; LINK_KEY_BYTES]>],
        now: UnixTime,
    ) -> Result<Self, LinkFlaw> {
        if text.len() > LINK_BYTES_MAX {
            return Err(LinkFlaw::Invalid);
        }
        let (content, signature) = text.split_once('.').ok_or(LinkFlaw::Invalid)?;
        let signature = URL_SAFE_NO_PAD.decode(signature).map_err(|_| LinkFlaw::Invalid)?;
        if !keys.iter().any(|key| same(&mac(key, content.as_bytes()), &signature)) {
            return Err(LinkFlaw::Invalid);
        }
        let content = URL_SAFE_NO_PAD.decode(content).map_err(|_| LinkFlaw::Invalid)?;
        let link: Self = serde_json::from_slice(&content).map_err(|_| LinkFlaw::Invalid)?;
        let ends = link.grant.until.unwrap_or(u64::MAX).min(link.expires_at);
        if now.0 >= ends { Err(LinkFlaw::Expired) } else { Ok(link) }
    }
}

fn mac(key: &Secret<[u8; LINK_KEY_BYTES]>, content: &[u8]) -> [u8; 32] {
    let mac = Hmac::<Sha256>::new_from_slice(key.expose());
    let mut mac = mac.expect("HMAC accepts keys of any length");
    mac.update(content);
    mac.finalize().into_bytes().into()
}

/// Sessions of a workspace that are open at one time; one more ends another one.
pub const SESSIONS_MAX: usize = 200;

/// A session to open.
#[derive(Clone, Debug)]
pub struct NewSession {
    /// Its name: [`SessionSecret::id`].
    pub id: [u8; 32],
    /// What it grants.
    pub grant: Grant,
    /// When it ends.
    pub expires_at: UnixTime,
    /// The nonce of the link that opens it, and when that expires.
    pub link: Option<(String, UnixTime)>,
}

/// The result of opening a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionOpened {
    /// It is on disk.
    Open,
    /// The link has opened one before.
    LinkUsed,
}

/// What the cookie of a session has. It is stored nowhere.
#[derive(Clone, PartialEq, Eq)]
pub struct SessionSecret([u8; RANDOM_BYTES]);

impl SessionSecret {
    /// From random bytes.
    #[must_use]
    pub fn new(random: [u8; RANDOM_BYTES]) -> Self {
        Self(random)
    }

    /// From a cookie.
    #[must_use]
    pub fn read(cookie: &str) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(cookie).ok()?;
        bytes.try_into().ok().map(Self)
    }

    /// For the cookie.
    #[must_use]
    pub fn text(&self) -> String {
        URL_SAFE_NO_PAD.encode(self.0)
    }

    /// Its name on disk, which leads nowhere without the cookie.
    #[must_use]
    pub fn id(&self) -> [u8; 32] {
        Sha256::digest(self.0).into()
    }

    /// What each form of the session has, so that no other site can send one.
    #[must_use]
    pub fn form_token(&self) -> String {
        URL_SAFE_NO_PAD.encode(mac(&Secret::new(self.0), b"form"))
    }

    /// Whether a form has that token.
    #[must_use]
    pub fn permits_form(&self, token: &str) -> bool {
        same(self.form_token().as_bytes(), token.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link() -> Link {
        let issuer = Issuer::Registered("00".repeat(32));
        let grant = Grant { workspace: "ws_a".to_owned(), role: Role::Full, issuer, until: None };
        Link { grant, expires_at: 1_000, nonce: "n".to_owned() }
    }

    fn key(byte: u8) -> Secret<[u8; LINK_KEY_BYTES]> {
        Secret::new([byte; LINK_KEY_BYTES])
    }

    #[test]
    fn a_link_is_read_with_its_key_until_it_expires() {
        let text = link().signed(&key(1));
        let read = |keys: &[u8], at| {
            let keys: Vec<_> = keys.iter().map(|one| key(*one)).collect();
            Link::read(&text, &keys, UnixTime(at))
        };
        assert_eq!(read(&[2, 1], 999), Ok(link()));
        assert_eq!(read(&[2, 1], 1_000), Err(LinkFlaw::Expired));
        assert_eq!(read(&[2, 3], 999), Err(LinkFlaw::Invalid));
        assert_eq!(read(&[], 999), Err(LinkFlaw::Invalid));
    }

    #[test]
    fn a_link_expires_with_the_token_of_its_issuer() {
        let mut short = link();
        short.grant.until = Some(500);
        let text = short.signed(&key(1));
        assert_eq!(Link::read(&text, &[key(1)], UnixTime(499)), Ok(short));
        assert_eq!(Link::read(&text, &[key(1)], UnixTime(500)), Err(LinkFlaw::Expired));
    }

    #[test]
    fn a_changed_link_opens_nothing() {
        let text = link().signed(&key(1));
        for at in 0..text.len() {
            let mut changed = text.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).expect("ASCII");
            let found = Link::read(&changed, &[key(1)], UnixTime(1));
            // The last digit of a base64 text may have unused bits.
            assert!(found == Err(LinkFlaw::Invalid) || found == Ok(link()), "{at}");
            assert!(at + 1 == text.len() || found.is_err(), "{at}");
        }
        for text in ["", ".", "a.b", "é.é", &"a".repeat(5_000)] {
            assert_eq!(Link::read(text, &[key(1)], UnixTime(1)), Err(LinkFlaw::Invalid));
        }
    }

    #[test]
    fn a_form_token_belongs_to_one_session() {
        let (one, other) = (SessionSecret::new([1; 32]), SessionSecret::new([2; 32]));
        assert!(SessionSecret::read(&one.text()) == Some(one.clone()));
        assert!(one.permits_form(&one.form_token()) && !other.permits_form(&one.form_token()));
        assert!(!one.permits_form("") && !one.permits_form(&one.text()));
        assert!(SessionSecret::read("short").is_none() && SessionSecret::read("").is_none());
        assert_ne!(one.id(), other.id());
    }
}
