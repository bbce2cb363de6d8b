//! What holds of every input, whatever it is: one function for each reader of what strangers send.
//!
//! The fuzzer searches for an input that breaks one (`scripts/fuzz`); the end-to-end tests run each
//! on the inputs in `fuzz/corpus`, where a finding is kept.

use http::{HeaderName, HeaderValue, Method};
use pingora_http::RequestHeader;
use serde::de::IgnoredAny;
use serde_json::Value;
use weir_common::directory::Directory;
use weir_common::ids::is_identifier;
use weir_common::reader::{At, Document, Mistake};
use weir_gateway::batch::{self, Miscount};
use weir_gateway::judge::head::check_framing;
use weir_gateway::limit::key::Seed;
use weir_gateway::lookups::answer::{self, Kind, Raw};
use weir_gateway::wire::head::Head;
use weir_gateway::{rules, settings, target as targets};

/// A function that panics where an input breaks what must hold.
pub type Check = fn(&[u8]);

/// Every check, by the name of its folder in the corpus.
pub const ALL: [(&str, Check); 5] = [
    ("target", target),
    ("head", head),
    ("batch", batch),
    ("settings", settings),
    ("answer", answer),
];

/// A host, a line end, a target: what is classified is what is forwarded, and has one reading.
pub fn target(data: &[u8]) {
    let at = data.iter().position(|byte| *byte == b'\n').unwrap_or(0);
    let (host, rest) = data.split_at(at);
    let sent = rest.get(1..).unwrap_or_default();
    let Ok(read) = targets::read(sent, Some(host)) else { return };
    // Of an absolute form, what is behind the host; the root where nothing is (RFC 9112, 3.2.1).
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
    let decoded = decoded(read.path);
    let segments = |path: &[u8]| path.split(|byte| *byte == b'/').count();
    assert_eq!(segments(&decoded), segments(read.path.as_bytes()), "an escape makes a segment");
    for segment in decoded.split(|byte| *byte == b'/').skip(1) {
        let name = segment.split(|byte| *byte == b';').next().unwrap_or_default();
        assert!(name != b"." && name != b"..", "a segment climbs");
        assert!(!name.is_empty() || read.path == "/", "a segment that some would drop");
    }
    assert!(!decoded.iter().any(|byte| *byte < 0x20 || *byte == 0x7f || *byte == b'\\'));
    if let Some(stripped) = targets::stripped(read.path) {
        assert!(!stripped.contains(';'), "a parameter is left");
        assert_eq!(targets::stripped(&stripped), None, "what is stripped has nothing to strip");
    }
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

/// A request head: it is as odd in pieces as it is whole, and what passes has one framing.
pub fn head(data: &[u8]) {
    let whole = Head::default().has_oddities(data);
    let mut head = Head::default();
    let in_pieces = data.chunks(3).any(|piece| head.has_oddities(piece));
    assert_eq!(whole, in_pieces, "it depends on how the bytes arrive");
    let Ok(mut parsed) = RequestHeader::build(Method::POST, b"/", None) else { return };
    let mut lengths = Vec::new();
    let mut codings = Vec::new();
    for line in data.split(|byte| *byte == b'\n').skip(1) {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let (name, value) = line.split_at(colon);
        let value = value.get(1..).unwrap_or_default().trim_ascii();
        let Ok(name) = HeaderName::from_bytes(name) else { continue };
        let Ok(value) = HeaderValue::from_bytes(value) else { continue };
        match name.as_str() {
            "content-length" => lengths.push(value.as_bytes().to_vec()),
            "transfer-encoding" => codings.push(value.as_bytes().to_vec()),
            _ => {}
        }
        // An error is a header that has no room, which ends a request elsewhere.
        let _ = parsed.append_header(name, value);
    }
    if check_framing(&parsed, data).is_err() {
        return;
    }
    let is_length = |length: &[u8]| !length.is_empty() && length.iter().all(u8::is_ascii_digit);
    match (lengths.as_slice(), codings.as_slice()) {
        ([], []) => {}
        ([length], []) => assert!(is_length(length), "a length that is no number"),
        ([], [coding]) => assert!(coding.eq_ignore_ascii_case(b"chunked"), "another coding"),
        _ => panic!("a body whose end is said twice: {lengths:?} {codings:?}"),
    }
}

/// A batch: its items are as many as serde_json finds, and what it cannot read is refused.
pub fn batch(data: &[u8]) {
    const MOST: u64 = 5;
    let counted = batch::count(data, MOST);
    let values = serde_json::from_slice::<Vec<Value>>(data);
    let items = values.map(|items| u64::try_from(items.len()).unwrap_or(u64::MAX));
    match (&counted, items) {
        (Ok(count), Ok(items)) => assert_eq!(*count, items),
        (Err(Miscount::TooMany), Ok(items)) => assert!(items > MOST, "{items} are not too many"),
        (Err(why), Ok(_)) => panic!("a batch is refused: {why:?}"),
        // Numbers beyond all bounds and halves of characters are JSON (RFC 8259, 6 and 8.2).
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

/// A configuration and, after a line `---`, a directory: every mistake has a place in its file.
pub fn settings(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (text, directory_text) = text.split_once("\n---\n").unwrap_or((text, ""));
    let (document, of_directory) = (Document::new("g", text), Document::new("d", directory_text));
    let made = settings::read(&document).made;
    let directory = Directory::read(&of_directory);
    let seed = Seed::new([1; 16]);
    let rules = rules::check(made, &document, &directory, &of_directory, seed);
    for (document, text) in [(&document, text), (&of_directory, directory_text)] {
        document.mistakes().iter().for_each(|mistake| check_place(mistake, text));
    }
    // Rules with mistakes are never in force, and still do not panic.
    if let Ok(target) = targets::read(b"/v1/workspaces/ws_a/x", Some(b"api.localhost"))
        && let Ok(way) = rules.lead(&target, &Method::GET)
    {
        let identity = rules.identify(&way.names, None);
        let _ = rules.charges(way.route, &identity, [127, 0, 0, 1].into());
    }
}

fn check_place(mistake: &Mistake, text: &str) {
    let line = text.split('\n').nth(mistake.line.wrapping_sub(1));
    let line = line.unwrap_or_else(|| panic!("{mistake} is beyond the end"));
    let columns = line.chars().count() + 1;
    assert!((1..=columns).contains(&mistake.column), "{mistake} is beyond its line");
    assert!(
        !mistake.message.is_empty() && !mistake.message.contains(char::is_control),
        "{mistake:?}"
    );
}

/// What a directory answers: it is refused, or names identifiers and numbers within bounds.
pub fn answer(data: &[u8]) {
    for kind in Kind::ALL {
        let (parent, limits) = match answer::read(kind, data) {
            Err(why) => {
                assert!(!why.is_empty() && why.chars().count() <= 1_000, "{why}");
                continue;
            }
            Ok(Raw::Organisation(entry)) => (None, entry.limits),
            Ok(Raw::Workspace(entry)) => (entry.organisation, entry.limits),
            Ok(Raw::Instance(entry)) => (entry.workspace, entry.limits),
        };
        let named = |At { value, .. }: At<String>| is_identifier(&value);
        assert!(parent.is_none_or(named), "it would be asked about in a URL");
        let numbers = limits.iter().flat_map(|(_, v)| [v.requests, v.rate, v.burst]);
        assert!(numbers.flatten().all(|number| number >= 1), "an allowance of nothing");
        assert!(serde_json::from_slice::<Value>(data).is_ok_and(|value| value.is_object()));
    }
}
