//! Decides which spellings of a target and a host we accept: one each, or none. (core)
//!
//! A backend may decode, fold or strip what we take literally, and then a path that we counted
//! as one thing is served as another. So nothing is rewritten here: what two parsers could read
//! differently is refused.
//!
//! # Invariants
//!
//! 1. The target that was classified is byte for byte the target that is forwarded; of an
//!    absolute-form target, its path and query are.
//! 2. An accepted path has no segment that any common server would drop, decode or merge, but for
//!    the spellings that are told of it, which a route has to take.
//! 3. No accepted path has `.` or `..` as a segment, however it is decoded and split.
//!
//! # Not here
//!
//! Which route a path leads to, which spellings it takes, and what of a path would lead to another
//! one (`route`).

use std::borrow::Cow;
use std::fmt;

use weir_common::directory::is_host;

use crate::settings::spellings::Spellings;

/// An accepted target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target<'r> {
    /// The host in lower case, without a port.
    pub host: Cow<'r, str>,
    /// The path, as it was sent.
    pub path: &'r str,
    /// The path and, after its `?`, the query, as they were sent.
    pub origin_form: &'r str,
    /// What in the path only some routes take.
    pub spellings: Spellings,
}

impl Spellings {
    /// Refuses what is not among the spellings that are taken.
    pub fn within(self, accepted: Self) -> Result<(), Malformed> {
        if self.trailing_slash && !accepted.trailing_slash {
            return Err(Malformed::EmptySegment);
        }
        let escapes = self.escapes && !accepted.escapes;
        let slashes = self.escaped_slash && !accepted.escaped_slash;
        if escapes || slashes { Err(Malformed::NeedlessEscape) } else { Ok(()) }
    }
}

/// Why a target is refused. Each is a 400.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// A request line with bytes that none has: Pingora drops or escapes them without a word.
    RequestLine,
    /// Bytes that are not UTF-8, as they stand or once decoded.
    NotUtf8,
    /// Neither `/path` nor `http://host/path`.
    Form,
    /// A control byte, a space or a backslash, as it stands or escaped.
    ForbiddenByte,
    /// A `#`: a fragment is never sent.
    Fragment,
    /// A `%` that two hexadecimal digits do not follow.
    BrokenEscape,
    /// An escape of a byte that needs none, or of one that means something else unescaped.
    NeedlessEscape,
    /// An escape of an escape.
    DoubleEscape,
    /// `//`, or a slash at the end.
    EmptySegment,
    /// `.` or `..` as a segment, whatever follows a `;` in it.
    DotSegment,
    /// Parameters after `;` that would make it another route if they were dropped.
    Parameters,
    /// A reading of it leads to another route or another tenant.
    OtherRoute,
    /// No `Host`, or an empty one.
    HostMissing,
    /// A `Host` that is no host name, or that ends in a dot.
    HostForm,
    /// An absolute-form target for another host than `Host`.
    HostMismatch,
    /// A body whose end is said twice, or in a way that is read in two ways.
    Framing,
    /// A captured identifier that is none.
    Identifier,
    /// A method that is not in capitals, which some servers put into capitals themselves.
    Method,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RequestLine => "The request line has a space, a control byte or a `#` too many.",
            Self::NotUtf8 => "The request target is not UTF-8.",
            Self::Form => "The request target must be a path that starts with `/`.",
            Self::ForbiddenByte => "The path has a control byte, a space or a backslash in it.",
            Self::Fragment => "The request target has a fragment (`#`), which is never sent.",
            Self::BrokenEscape => "A `%` in the path is not followed by two hexadecimal digits.",
            Self::NeedlessEscape => "The path escapes a byte that must be sent as it is.",
            Self::DoubleEscape => "The path escapes an escape.",
            Self::EmptySegment => "The path has an empty segment: `//`, or a slash at its end.",
            Self::DotSegment => "The path has `.` or `..` as a segment.",
            Self::Parameters => "The path has `;` in a segment that decides where it leads.",
            Self::OtherRoute => {
                "Decoded, in another case or without an ending, the path leads to another route \
                 or tenant."
            }
            Self::HostMissing => "The request has no Host.",
            Self::HostForm => "The Host is not a host name, with a port or without.",
            Self::HostMismatch => "The request target names another host than the Host header.",
            Self::Framing => {
                "A body has one Content-Length, in digits, or one Transfer-Encoding: chunked."
            }
            Self::Method => "The method is not in capitals.",
            Self::Identifier => {
                "An identifier in the request is not 1 to 64 of A-Z a-z 0-9 _ -, or lacks the \
                 prefix that those of workspaces have."
            }
        })
    }
}

/// Reads a request's target and `Host` as they came over the wire.
pub fn read<'r>(target: &'r [u8], host: Option<&'r [u8]>) -> Result<Target<'r>, Malformed> {
    let target = std::str::from_utf8(target).map_err(|_| Malformed::NotUtf8)?;
    let given_host = host.filter(|host| !host.is_empty()).ok_or(Malformed::HostMissing)?;
    let given_host = std::str::from_utf8(given_host).map_err(|_| Malformed::HostForm)?;
    let host = read_host(given_host)?;
    let origin_form = match absolute(target) {
        None if target.starts_with('/') => target,
        None => return Err(Malformed::Form),
        Some((authority, _)) if !authority.eq_ignore_ascii_case(given_host) => {
            return Err(Malformed::HostMismatch);
        }
        Some((_, "")) => "/",
        Some((_, rest)) if rest.starts_with('/') => rest,
        Some(_) => return Err(Malformed::Form),
    };
    let (path, query) = origin_form.split_once('?').unwrap_or((origin_form, ""));
    let spellings = check_path(path)?;
    for byte in query.bytes() {
        match byte {
            0..=b' ' | 0x7f => return Err(Malformed::ForbiddenByte),
            b'#' => return Err(Malformed::Fragment),
            _ => {}
        }
    }
    Ok(Target { host, path, origin_form, spellings })
}

/// Decides whether a path has exactly one reading, but for the spellings that it gives.
pub fn check_path(path: &str) -> Result<Spellings, Malformed> {
    let Some(rest) = path.strip_prefix('/') else { return Err(Malformed::Form) };
    let trailing_slash = rest.ends_with('/');
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    let (mut escaped, mut in_parameters, mut name, mut only_dots) = (false, false, 0_usize, true);
    for byte in rest.bytes().chain([b'/']) {
        match byte {
            b'/' => {
                check_segment(name, only_dots, trailing_slash, rest)?;
                (in_parameters, name, only_dots) = (false, 0, true);
            }
            0..=b' ' | 0x7f | b'\\' => return Err(Malformed::ForbiddenByte),
            b'#' => return Err(Malformed::Fragment),
            b';' => in_parameters = true,
            _ => {
                escaped |= byte == b'%';
                if !in_parameters {
                    name += 1;
                    only_dots &= byte == b'.';
                }
            }
        }
    }
    let spellings = if escaped { check_escapes(rest)? } else { Spellings::NONE };
    Ok(Spellings { trailing_slash, ..spellings })
}

/// Decides about a segment by its name, which ends at the first `;`.
fn check_segment(
    name: usize,
    only_dots: bool,
    trailing_slash: bool,
    path: &str,
) -> Result<(), Malformed> {
    match name {
        0 if path.is_empty() && !trailing_slash => Ok(()),
        0 => Err(Malformed::EmptySegment),
        1 | 2 if only_dots => Err(Malformed::DotSegment),
        _ => Ok(()),
    }
}

/// Whether some servers would drop a part of a path, from a `;` on.
#[must_use]
pub fn has_parameters(path: &str) -> bool {
    let may_have = path.bytes().any(|byte| byte == b';' || byte == b'%');
    may_have && (path.contains(';') || path.contains("%3b") || path.contains("%3B"))
}

/// Decides about a path that has escapes in it, without the slashes at its ends.
fn check_escapes(path: &str) -> Result<Spellings, Malformed> {
    let mut spellings = Spellings::NONE;
    let mut rest = path.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first != b'%' {
            continue;
        }
        let byte = escaped(tail).ok_or(Malformed::BrokenEscape)?;
        rest = tail.get(2..).unwrap_or_default();
        match byte {
            0..0x20 | 0x7f | b'\\' => return Err(Malformed::ForbiddenByte),
            b'/' => spellings.escaped_slash = true,
            b':' | b'-' | b'.' | b'_' | b'~' => spellings.escapes = true,
            byte if byte.is_ascii_alphanumeric() => spellings.escapes = true,
            _ => {}
        }
    }
    let whole = decoded(path);
    if (0..whole.len()).any(|at| whole.get(at..).is_some_and(is_escape)) {
        return Err(Malformed::DoubleEscape);
    }
    let text = std::str::from_utf8(&whole).map_err(|_| Malformed::NotUtf8)?;
    for segment in text.split('/') {
        match segment.split(';').next().unwrap_or_default().trim() {
            "." | ".." => return Err(Malformed::DotSegment),
            _ => {}
        }
    }
    let is_name = |segment: &str| !decoded(segment).starts_with(b";");
    if path.split('/').all(is_name) { Ok(spellings) } else { Err(Malformed::EmptySegment) }
}

/// Whether `text` begins with an escape.
fn is_escape(text: &[u8]) -> bool {
    text.strip_prefix(b"%").is_some_and(|digits| escaped(digits).is_some())
}

/// A path without its escapes; one that is broken stays as it is.
#[must_use]
pub fn decoded(path: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let [first, tail @ ..] = rest {
        let byte = if *first == b'%' { escaped(tail) } else { None };
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { tail.get(2..).unwrap_or_default() } else { tail };
    }
    bytes
}

/// The byte that the two hexadecimal digits in front of `text` stand for.
fn escaped(text: &[u8]) -> Option<u8> {
    let [high, low, ..] = text else { return None };
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    Some(digit(*high)? << 4 | digit(*low)?)
}

/// The authority and the rest of an absolute-form target.
fn absolute(target: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = target.split_once("://")?;
    if !scheme.eq_ignore_ascii_case("http") && !scheme.eq_ignore_ascii_case("https") {
        return None;
    }
    Some(rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len())))
}

fn read_host(given: &str) -> Result<Cow<'_, str>, Malformed> {
    let bracketed = given.starts_with('[');
    let end = if bracketed { given.find(']').map(|end| end + 1) } else { given.find(':') };
    let (name, port) = given.split_at(end.unwrap_or(given.len()));
    let port_is_valid = port.is_empty()
        || port.strip_prefix(':').is_some_and(|digits| {
            (1..=5).contains(&digits.len())
                && digits.bytes().all(|byte| byte.is_ascii_digit())
                && digits.parse::<u16>().is_ok()
        });
    let name: Cow<'_, str> = if name.bytes().any(|byte| byte.is_ascii_uppercase()) {
        name.to_ascii_lowercase().into()
    } else {
        name.into()
    };
    let inside = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    let name_is_valid = inside
        .map_or_else(|| is_host(&name), |address| address.parse::<std::net::Ipv6Addr>().is_ok());
    if port_is_valid && name_is_valid { Ok(name) } else { Err(Malformed::HostForm) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path_of(target: &str) -> Result<&str, Malformed> {
        let target = read(target.as_bytes(), Some(b"h.test"))?;
        target.spellings.within(Spellings::NONE).map(|()| target.path)
    }

    #[test]
    fn a_plain_target_is_accepted_unchanged() {
        for path in
            ["/", "/a", "/a/b", "/a:b", "/a~-._b", "/a%20b", "/%C3%A9", "/é", "/a%25", "/a;x=1/b"]
        {
            assert_eq!(path_of(path), Ok(path));
        }
    }

    #[test]
    fn a_query_is_the_clients_own_affair() {
        for target in ["/a?", "/a?b=%2F%3A%2e//..", "/a??", "/a?;", "/a?\\"] {
            let read = read(target.as_bytes(), Some(b"h.test")).unwrap();
            assert_eq!((read.path, read.origin_form), ("/a", target));
        }
    }

    #[test]
    fn every_second_reading_is_refused() {
        use Malformed::*;
        for (why, paths) in [
            (NeedlessEscape, &["/a%2fb", "/a%2Fb", "/%41", "/%2ea", "/a%3Ab", "/%7e", "/a%2d"][..]),
            (
                ForbiddenByte,
                &["/a%5cb", "/a\\b", "/a%00", "/a\u{0}", "/a b", "/a\tb", "/a%0d%0a", "/a%7f"],
            ),
            (BrokenEscape, &["/%", "/a%2", "/%zz", "/%4", "/%%20"]),
            (
                DoubleEscape,
                &[
                    "/a%252fb",
                    "/%2541",
                    "/a%25252f",
                    "/%25%32%65%25%32%65/b",
                    "/%252%65",
                    "/%25%32e",
                    "/a%25%33%41b",
                    "/%25%35%43",
                    "/%25%30%30",
                    "/a%25%32%46b",
                ],
            ),
            (EmptySegment, &["//", "//a", "/a//b", "/a/", "/a/;x", "/a/%3b"]),
            (
                DotSegment,
                &[
                    "/.",
                    "/..",
                    "/a/../b",
                    "/a/./b",
                    "/a/..;/b",
                    "/a/..;x=1",
                    "/.;",
                    "/..%3b/a",
                    "/%2e",
                    "/%2E%2e/b",
                    "/a%2F..",
                    "/a%2f%2E%2e%2Fb",
                    "/..%20/a",
                    "/a/.%20;x",
                    "/a/../",
                ],
            ),
            (NotUtf8, &["/%ff", "/%c0%af", "/%ed%a0%80"]),
            (Fragment, &["/a#b", "/a?b#c", "/#"]),
            (Form, &["a", "", "*", "?a", "h.test:80", "ftp://h.test/a", "http:/h.test/a"]),
        ] {
            for path in paths {
                assert_eq!(path_of(path), Err(why), "{path}");
            }
        }
        assert_eq!(read(b"/\xff", Some(b"h")).unwrap_err(), NotUtf8);
        assert_eq!(path_of("/a?b\u{7f}"), Err(ForbiddenByte));
    }

    #[test]
    fn what_a_route_may_accept_is_distinguished_from_what_none_does() {
        let spellings = |path: &str| {
            let Spellings { trailing_slash, escapes, escaped_slash } = check_path(path)?;
            Ok::<_, Malformed>([trailing_slash, escapes, escaped_slash])
        };
        assert_eq!(spellings("/a/"), Ok([true, false, false]));
        assert_eq!(spellings("/a/b%3Ac/"), Ok([true, true, false]));
        assert_eq!(spellings("/a%7E%61"), Ok([false, true, false]));
        assert_eq!(spellings("/group%2Fproject"), Ok([false, false, true]));
        assert_eq!(spellings("/https%3A%2F%2Fa.test%2F"), Ok([false, true, true]));
        assert_eq!(spellings("/a%20b/%C3%A9/100%25"), Ok([false, false, false]));
        for none in [
            "//",
            "/a//",
            "//a",
            "/a/;x/",
            "/a%252Fb",
            "/a%25%32%46b",
            "/a%5Cb/",
            "/%2e%2e/",
            "/a%2F../",
        ] {
            assert!(spellings(none).is_err(), "{none}");
        }
    }

    #[test]
    fn an_absolute_form_is_read_where_it_names_the_same_host() {
        assert_eq!(path_of("http://h.test/a"), Ok("/a"));
        assert_eq!(path_of("HTTP://H.TEST"), Ok("/"));
        assert_eq!(path_of("http://other/a"), Err(Malformed::HostMismatch));
        assert_eq!(path_of("http://h.test:80/a"), Err(Malformed::HostMismatch));
        assert_eq!(path_of("http://u@h.test/a"), Err(Malformed::HostMismatch));
        assert_eq!(path_of("http://h.test?a"), Err(Malformed::Form));
    }

    #[test]
    fn a_host_is_a_name_in_any_case_with_a_port_or_without() {
        let host =
            |host: &str| read(b"/", Some(host.as_bytes())).map(|target| target.host.into_owned());
        assert_eq!(host("API.Example:8080").as_deref(), Ok("api.example"));
        assert_eq!(host("[::1]:80").as_deref(), Ok("[::1]"));
        assert_eq!(host("127.0.0.1").as_deref(), Ok("127.0.0.1"));
        for wrong in [
            "a.", "a..b", ".a", "a:", "a:x", "a:99999", "a:+1", "u@a", "a/b", "a?b", "a b", "é",
            "[::1", "[x]", "%41",
        ] {
            assert_eq!(host(wrong), Err(Malformed::HostForm), "{wrong}");
        }
        assert_eq!(host(""), Err(Malformed::HostMissing));
        assert_eq!(read(b"/", None), Err(Malformed::HostMissing));
    }
}
