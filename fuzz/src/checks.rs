//! Properties that hold for every input: one function for each parser of untrusted input.
//!
//! The fuzzer searches for an input that breaks one (`scripts/fuzz`); the end-to-end tests run each
//! function on the inputs in `fuzz/corpus`, where findings are stored.

use std::net::{IpAddr, SocketAddr};
use std::sync::LazyLock;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{HeaderMap, Method};
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use weir_common::config::document::{Diagnostic, Document, Spanned};
use weir_common::directory::Directory;
use weir_common::directory::response::{self, RawEntry, TenantKind};
use weir_common::directory::values::Values;
use weir_common::identifier::{IdForm, is_identifier};
use weir_common::limit::token_bucket::Rate;
use weir_common::time::{Moment, UnixTime};
use weir_common::token::claims::{Claims, NAMES_MAX};
use weir_common::token::keys::{KEYS_MAX, KeySet};
use weir_common::token::{Algorithm, Flaw, Terms, verify};
use weir_gateway::edge::proxy_protocol::{self, HEADER_BYTES_MAX, Progress, ProxyHeader};
use weir_gateway::limit::key::Seed;
use weir_gateway::request::batch::{self, Miscount};
use weir_gateway::request::target as targets;
use weir_gateway::rules::charges::Charges;
use weir_gateway::rules::subject::KeySources;

// The fuzz targets and the end-to-end tests include this file at different places.
#[path = "http1.rs"]
pub mod http1;

/// A function that panics if an input violates a property.
pub type Check = fn(&[u8]);

/// Every check, with the name of its directory in the corpus.
pub const ALL: [(&str, Check); 7] = [
    ("target", target),
    ("head", http1::head),
    ("batch", batch),
    ("settings", settings),
    ("answer", answer),
    ("proxy", proxy),
    ("token", token),
];

/// A host, a line feed, a target: the target classified is the one forwarded, and unambiguous.
pub fn target(data: &[u8]) {
    let at = data.iter().position(|byte| *byte == b'\n').unwrap_or(0);
    let (host, rest) = data.split_at(at);
    let sent = rest.get(1..).unwrap_or_default();
    let Ok(read) = targets::read(sent, Some(host)) else { return };
    // Of an absolute form, the part after the host, or `/` where that is empty (RFC 9112, 3.2.1).
    let is_origin_form = sent.starts_with(b"/");
    let forwarded = read.origin_form.as_bytes();
    let is_same = if is_origin_form { sent == forwarded } else { sent.ends_with(forwarded) };
    let is_root = !is_origin_form && read.origin_form == "/";
    assert!(is_same || is_root, "forwarded is not what was sent");
    let path = read.origin_form.split('?').next();
    assert_eq!(path, Some(read.path), "classified is not what is forwarded");
    assert!(!read.host.bytes().any(|byte| byte.is_ascii_uppercase()), "a host has one case");
    let again = targets::read(read.origin_form.as_bytes(), Some(host));
    assert_eq!(again.as_ref(), Ok(&read), "it reads otherwise the second time");
    let spellings = read.spellings;
    let decoded = decoded(read.path);
    let segments = |path: &[u8]| path.split(|byte| *byte == b'/').count();
    let more = segments(&decoded) > segments(read.path.as_bytes());
    assert_eq!(more, spellings.escaped_slash, "an escape makes a segment");
    let slash = read.path.len() > 1 && read.path.ends_with('/');
    assert_eq!(slash, spellings.trailing_slash, "a slash at the end is told");
    for segment in decoded.split(|byte| *byte == b'/').skip(1) {
        let name = segment.split(|byte| *byte == b';').next().unwrap_or_default();
        let name = name.trim_ascii();
        assert!(name != b"." && name != b"..", "a segment climbs");
    }
    for segment in read.path.trim_end_matches('/').split('/').skip(1) {
        assert!(!segment.is_empty() && !segment.starts_with(';'), "a segment that some would drop");
    }
    assert!(!decoded.iter().any(|byte| *byte < 0x20 || *byte == 0x7f || *byte == b'\\'));
}

fn decoded(path: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = path.as_bytes();
    while let [first, tail @ ..] = rest {
        let digits = tail.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match byte.filter(|_| *first == b'%') {
            Some(byte) => {
                bytes.push(byte);
                rest = tail.get(2..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    bytes
}

/// A batch: the count equals that of serde_json, and a body that is not JSON is refused.
pub fn batch(data: &[u8]) {
    const MOST: u64 = 5;
    let counted = batch::count(data, MOST);
    let values = serde_json::from_slice::<Vec<Value>>(data);
    let items = values.map(|items| u64::try_from(items.len()).unwrap_or(u64::MAX));
    match (&counted, items) {
        (Ok(count), Ok(items)) => assert_eq!(*count, items),
        (Err(Miscount::TooMany), Ok(items)) => assert!(items > MOST, "{items} are not too many"),
        (Err(why), Ok(_)) => panic!("a batch is refused: {why:?}"),
        // Numbers out of range and unpaired surrogates are JSON (RFC 8259, 6 and 8.2).
        (Ok(count), Err(_)) => {
            let items = serde_json::from_slice::<Vec<IgnoredAny>>(data);
            let items = items.map(|items| u64::try_from(items.len()).unwrap_or(u64::MAX));
            assert_eq!(items.ok(), Some(*count), "what is counted is no JSON");
        }
        (Err(_), Err(_)) => {}
    }
    if let Ok(count) = counted {
        assert!(count <= MOST);
        assert_eq!(batch::count(data, count), Ok(count));
        assert!(count == 0 || batch::count(data, count - 1) == Err(Miscount::TooMany));
    }
}

/// A configuration and, after a line `---`, a directory: every problem has a position in its file.
pub fn settings(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (text, directory_text) = text.split_once("\n---\n").unwrap_or((text, ""));
    let (document, of_directory) = (Document::new("g", text), Document::new("d", directory_text));
    let made = weir_gateway::settings::read::read(&document).made;
    let directory = Directory::read(&of_directory, &made.settings.workspaces);
    let seed = Seed::new([1; 16]);
    let rules =
        weir_gateway::rules::compile::check((&made, &document), (&directory, &of_directory), seed);
    for (document, text) in [(&document, text), (&of_directory, directory_text)] {
        document.diagnostics().iter().for_each(|diagnostic| check_place(diagnostic, text));
    }
    // Rules with problems are never active, and still must not panic.
    if let Ok(target) = targets::read(b"/v1/workspaces/ws_a/x", Some(b"api.localhost"))
        && let Ok(route_match) = rules.match_route(&target, &Method::GET)
    {
        let identity = rules.identify(&route_match.names, None);
        let sources = KeySources {
            identity: &identity,
            address: [127, 0, 0, 1].into(),
            now: Moment::default(),
            claims: &[],
            headers: &HeaderMap::new(),
            dropped: None,
        };
        rules.add_checks(route_match.route, &sources, &mut Charges::default());
    }
}

fn check_place(diagnostic: &Diagnostic, text: &str) {
    let line = text.split('\n').nth(diagnostic.line.wrapping_sub(1));
    let line = line.unwrap_or_else(|| panic!("{diagnostic} is beyond the end"));
    let columns = line.chars().count() + 1;
    assert!((1..=columns).contains(&diagnostic.column), "{diagnostic} is beyond its line");
    assert!(
        !diagnostic.message.is_empty() && !diagnostic.message.contains(char::is_control),
        "{diagnostic:?}"
    );
}

/// A directory's response: it is refused, or has valid identifiers and numbers within bounds.
pub fn answer(data: &[u8]) {
    for kind in TenantKind::ALL {
        let (parent, limits) = match response::read(kind, data, &IdForm::default()) {
            Err(why) => {
                assert!(!why.is_empty() && why.chars().count() <= 1_000, "{why}");
                continue;
            }
            Ok(RawEntry::Organisation(entry)) => (None, entry.limits),
            Ok(RawEntry::Workspace(entry)) => (entry.organisation, entry.limits),
            Ok(RawEntry::Instance(entry)) => (entry.workspace, entry.limits),
        };
        let named = |Spanned { value, .. }: Spanned<String>| is_identifier(&value);
        assert!(parent.is_none_or(named), "it would be asked about in a URL");
        let rate = |values: &Values| values.rate.map(Rate::tokens);
        let numbers = limits.iter().flat_map(|(_, v)| [v.requests, rate(v), v.burst]);
        assert!(numbers.flatten().all(|number| number >= 1), "an allowance of nothing");
        assert!(serde_json::from_slice::<Value>(data).is_ok_and(|value| value.is_object()));
    }
}

/// A PROXY header: how its bytes arrive does not matter, and no byte after it is consumed.
pub fn proxy(data: &[u8]) {
    let (progress, consumed) = fed(data, usize::MAX);
    for piece in 1..=3 {
        let (other, end) = fed(data, piece);
        match (&progress, &other) {
            // In small pieces it may be recognised as malformed sooner, and for another reason.
            (Progress::Malformed(_), Progress::Malformed(_)) => {}
            _ => assert_eq!((&other, end), (&progress, consumed), "in pieces of {piece}"),
        }
    }
    if matches!(progress, Progress::Whole(_)) {
        let line = data.windows(2).position(|pair| pair == b"\r\n").map(|at| at + 2);
        let length = data.get(14..16).and_then(|length| <[u8; 2]>::try_from(length).ok());
        let length = length.map(|length| 16 + usize::from(u16::from_be_bytes(length)));
        let end = if data.starts_with(b"PROXY ") { line } else { length };
        assert_eq!(Some(consumed), end, "it does not end where its header does");
        let line_end = data.iter().position(|byte| *byte == b'\n').map(|at| at + 1);
        assert!(line_end == end || !data.starts_with(b"PROXY "), "a line end within a line");
    }
    let Some((port, rest)) = data.split_first_chunk::<2>() else { return };
    let port = u16::from_be_bytes(*port);
    if let Some((ip, rest)) = rest.split_first_chunk::<4>() {
        check_written((*ip).into(), port, rest);
    }
    if let Some((ip, rest)) = rest.split_first_chunk::<16>() {
        check_written((*ip).into(), port, rest);
    }
}

/// Feeds the reader as many bytes as it requests, at most `piece` at a time, until it has a result
/// or the data ends. Returns the result and how many bytes were consumed.
fn fed(data: &[u8], piece: usize) -> (Progress, usize) {
    let mut consumed = 0;
    loop {
        let so_far = data.get(..consumed).unwrap_or_default();
        match proxy_protocol::read(so_far) {
            Progress::More(bytes) => {
                assert!(bytes > 0, "it asks for nothing");
                assert!(consumed + bytes <= HEADER_BYTES_MAX, "it asks for more than any has");
                if consumed == data.len() {
                    return (Progress::More(bytes), consumed);
                }
                consumed = (consumed + bytes.min(piece)).min(data.len());
            }
            done => return (done, consumed),
        }
    }
}

/// Both versions of a header for an address, followed by other bytes, are read as that address.
fn check_written(ip: IpAddr, port: u16, behind: &[u8]) {
    let (word, family, octets) = match ip {
        IpAddr::V4(ip) => ("TCP4", 0x11, ip.octets().to_vec()),
        IpAddr::V6(ip) => ("TCP6", 0x21, ip.octets().to_vec()),
    };
    let line = format!("PROXY {word} {ip} {ip} {port} {port}\r\n");
    let port_bytes = port.to_be_bytes();
    let addresses = [&octets[..], &octets, &port_bytes, &port_bytes].concat();
    let length = u16::try_from(addresses.len()).unwrap_or(u16::MAX).to_be_bytes();
    let fixed = [b"\r\n\r\n\0\r\nQUIT\n\x21".as_slice(), &[family], &length].concat();
    for header in [line.into_bytes(), [fixed, addresses].concat()] {
        let whole = Progress::Whole(ProxyHeader::Client(SocketAddr::new(ip, port)));
        assert_eq!(fed(&[&header, behind].concat(), 5), (whole, header.len()));
    }
}

/// The time at which every token is verified, in Unix seconds.
const NOW: u64 = 1_800_000_000;

const SIGNED_HEADER: &str = r#"{"alg":"EdDSA","kid":"ours"}"#;

/// Keys of all three kinds, and the tokens that they have signed.
struct Signers {
    ours: Ed25519KeyPair,
    keys: KeySet,
    terms: Terms,
    /// A valid token: `fuzz/corpus/token/ours`.
    token: String,
    /// The published examples, which have no audience.
    published: Vec<String>,
}

static SIGNERS: LazyLock<Signers> = LazyLock::new(|| {
    let ours = Ed25519KeyPair::from_seed_unchecked(&[7; 32]).expect("a seed has 32 bytes");
    let x = URL_SAFE_NO_PAD.encode(ours.public_key());
    let mut keys = vec![json!({ "kty": "OKP", "crv": "Ed25519", "kid": "ours", "x": x })];
    let vectors = include_str!("../../common/src/token/vectors.json");
    let vectors: Value = serde_json::from_str(vectors).expect("the examples are JSON");
    let mut published = Vec::new();
    for vector in ["rs256", "es256"].iter().filter_map(|name| vectors.get(name)) {
        let mut key = vector.get("key").cloned().unwrap_or_default();
        if let Some(members) = key.as_object_mut() {
            members.retain(|name, _| ["kty", "crv", "n", "e", "x", "y"].contains(&name.as_str()));
        }
        keys.push(key);
        published.extend(vector.get("token").and_then(Value::as_str).map(str::to_owned));
    }
    let keys = KeySet::read(json!({ "keys": keys }).to_string().as_bytes());
    let claims = json!({ "iss": "https://id.test", "aud": "api", "exp": NOW + 60, "sub": "ws_a" });
    Signers {
        token: signed(&ours, SIGNED_HEADER.as_bytes(), claims.to_string().as_bytes()),
        ours,
        keys: keys.expect("the keys are keys"),
        terms: Terms {
            issuer: "https://id.test".to_owned(),
            audience: vec!["api".to_owned()],
            algorithms: vec![Algorithm::Rs256, Algorithm::Es256, Algorithm::EdDsa],
            leeway: Duration::from_secs(30),
        },
        published,
    }
});

fn signed(key: &Ed25519KeyPair, header: &[u8], claims: &[u8]) -> String {
    let [header, claims] = [header, claims].map(|part| URL_SAFE_NO_PAD.encode(part));
    let text = format!("{header}.{claims}");
    let signature = URL_SAFE_NO_PAD.encode(key.sign(text.as_bytes()));
    format!("{text}.{signature}")
}

/// A token, a part of one, or a set of keys: no token is valid that was not signed exactly so, and
/// a valid one has the claims that were signed.
pub fn token(data: &[u8]) {
    let signers = &*SIGNERS;
    let now = UnixTime(NOW * 1_000_000);
    let judge = |token: &str| verify(token, &signers.keys, &signers.terms, now);
    assert!(judge(&signers.token).is_ok(), "a token that holds");
    if let Ok(text) = std::str::from_utf8(data) {
        check_unsigned(text);
        // Inserted into a valid token, it makes the token invalid.
        let at = data.iter().map(|byte| usize::from(*byte)).sum::<usize>() % signers.token.len();
        let (before, behind) = signers.token.split_at(at);
        check_unsigned(&format!("{before}{text}{behind}"));
        let cut = behind.get(text.len()..).unwrap_or_default();
        check_unsigned(&format!("{before}{text}{cut}"));
    }
    let claims = Claims::read(data);
    if let Ok(verified) = judge(&signed(&signers.ours, SIGNED_HEADER.as_bytes(), data)) {
        assert!(verified.expires > now, "it is over");
        assert_eq!(Some(verified.claims), claims, "it says something else");
    }
    let of_token = br#"{"iss":"https://id.test","aud":"api","exp":1800000060}"#;
    if judge(&signed(&signers.ours, data, of_token)).is_ok() {
        let header: Value = serde_json::from_slice(data).unwrap_or_default();
        let alg = header.get("alg").and_then(Value::as_str);
        assert!(matches!(alg, Some("EdDSA" | "Ed25519")), "the algorithm is the token's");
        assert!(header.get("crit").is_none(), "what is critical is not understood");
    }
    claims.iter().for_each(|claims| check_claims(claims, data));
    if let Ok(keys) = KeySet::read(data) {
        assert!((1..=KEYS_MAX).contains(&keys.len()), "{} keys", keys.len());
    }
}

/// A text whose signature is accepted is a token that is known to be signed.
fn check_unsigned(text: &str) {
    let signers = &*SIGNERS;
    let passed = match verify(text, &signers.keys, &signers.terms, UnixTime(NOW * 1_000_000)) {
        Ok(_) => return assert_eq!(text, signers.token, "it has no signature"),
        Err(flaw) => {
            matches!(flaw, Flaw::Issuer | Flaw::Audience | Flaw::Expired | Flaw::Early)
        }
    };
    // Without the signature: an ES256 signature has a second valid form.
    let body = |token: &str| token.rsplit_once('.').map(|(body, _)| body.to_owned());
    let is_known = signers.published.iter().any(|token| body(token) == body(text));
    assert!(!passed || is_known, "its claims are looked at, and it has no signature: {text}");
}

/// Claims give the same result when read again, also as another library writes them.
fn check_claims(claims: &Claims, data: &[u8]) {
    assert_eq!(Claims::read(data).as_ref(), Some(claims), "it reads otherwise the second time");
    let value = serde_json::from_slice::<Value>(data).expect("claims are JSON");
    let written = value.to_string();
    // Reading a fraction again may round it once more.
    if serde_json::from_str::<Value>(&written).is_ok_and(|again| again == value) {
        assert_eq!(Claims::read(written.as_bytes()).as_ref(), Some(claims), "{written}");
    }
    for name in ["sub", "a.b", "scope", ""] {
        let names = claims.names(name).unwrap_or_default();
        assert!(names.len() <= NAMES_MAX && names.iter().all(|name| is_identifier(name)));
    }
}
