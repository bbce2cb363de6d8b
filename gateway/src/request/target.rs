//! Decides which spellings of a target and a host are accepted: one each, or none. (core)
//!
//! An upstream may decode, strip or change the case of a path that the gateway reads literally, and
//! then serve another route than the one that was checked. So a target that two parsers could read
//! differently is refused, and none is rewritten.
//!
//! # Invariants
//!
//! 1. The target that was classified is forwarded byte for byte; of an absolute-form target, its
//!    path and query are.
//! 2. An accepted path has no segment that a common server would drop, decode or merge, except for
//!    the reported [`Spellings`], which its route must accept.
//! 3. No accepted path has `.` or `..` as a segment, however it is decoded and split, also with its
//!    full-width characters as ASCII.
//!
//! # Not here
//!
//! A path's route, the spellings that the route accepts, and readings of the path that lead to
//! another route (`route`).

use std::borrow::Cow;
use std::fmt;

use weir_common::directory::is_host;

use crate::request::escapes::{decoded, escaped};
use crate::request::full_width;
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
    /// Spellings in the path that only some routes accept.
    pub spellings: Spellings,
    /// The path with its full-width characters as ASCII, if it has any.
    pub narrowed: Option<String>,
}

impl Spellings {
    /// Refuses spellings that are not `accepted`.
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
    /// A request line with bytes that a lenient parser would drop or escape.
    RequestLine,
    /// Bytes that are not UTF-8, literally or once decoded.
    NotUtf8,
    /// Neither `/path` nor `http://host/path`.
    Form,
    /// A control byte, space or backslash, or an escaped control byte or backslash.
    ForbiddenByte,
    /// A `#`: a fragment is never sent.
    Fragment,
    /// A `%` without two hexadecimal digits after it.
    BrokenEscape,
    /// An escape of `/`, a letter, a digit or one of `:-._~` that the route does not accept.
    NeedlessEscape,
    /// An escape of an escape.
    DoubleEscape,
    /// `//`, or a slash at the end.
    EmptySegment,
    /// `.` or `..` as a segment, with or without `;parameters`.
    DotSegment,
    /// Parameters after `;`: a server that drops them would find another route or tenant.
    Parameters,
    /// Another reading of the path leads to another route or tenant.
    OtherRoute,
    /// No `Host`, or an empty one.
    HostMissing,
    /// A `Host` that is not a host name, or that ends in a dot.
    HostForm,
    /// An absolute-form target for another host than `Host`.
    HostMismatch,
    /// A body whose length is given twice, or ambiguously.
    Framing,
    /// A segment or host label that is not a valid identifier.
    Identifier,
    /// A method with lower-case letters, which some servers convert to capitals.
    Method,
    /// A `Connection` that is no list of names, a long one, or one with a field that servers need.
    Connection,
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
            Self::HostMismatch => {
                "The request target names another host than the Host header, or spells it \
                 otherwise."
            }
            Self::Framing => {
                "A body has one Content-Length, in digits, or one Transfer-Encoding: chunked."
            }
            Self::Method => "The method is not in capitals.",
            Self::Connection => {
                "`Connection` lists nine names at most, and neither Host nor X-Forwarded-For, \
                 -Host or -Proto."
            }
            Self::Identifier => {
                "An identifier in the request is not 1 to 64 of A-Z a-z 0-9 _ -, or lacks the \
                 prefix that those of workspaces have."
            }
        })
    }
}

/// Reads a request's target and `Host` as received.
pub fn read<'r>(target: &'r [u8], host: Option<&'r [u8]>) -> Result<Target<'r>, Malformed> {
    let target = std::str::from_utf8(target).map_err(|_| Malformed::NotUtf8)?;
    let given_host = host.filter(|host| !host.is_empty()).ok_or(Malformed::HostMissing)?;
    let given_host = std::str::from_utf8(given_host).map_err(|_| Malformed::HostForm)?;
    let host = read_host(given_host)?;
    let is_origin_form = target.starts_with('/');
    let origin_form = match (!is_origin_form).then(|| absolute(target)).flatten() {
        None if is_origin_form => target,
        None => return Err(Malformed::Form),
        Some((authority, _)) if authority != given_host => {
            return Err(Malformed::HostMismatch);
        }
        Some((_, "")) => "/",
        Some((_, rest)) if rest.starts_with('/') => rest,
        Some(_) => return Err(Malformed::Form),
    };
    let (path, query) = origin_form.split_once('?').unwrap_or((origin_form, ""));
    let (spellings, narrowed) = read_path(path)?;
    for byte in query.bytes() {
        match byte {
            0..=b' ' | 0x7f => return Err(Malformed::ForbiddenByte),
            b'#' => return Err(Malformed::Fragment),
            _ => {}
        }
    }
    Ok(Target { host, path, origin_form, spellings, narrowed })
}

/// Checks that a path has exactly one reading, except for the spellings that it returns.
pub fn check_path(path: &str) -> Result<Spellings, Malformed> {
    read_path(path).map(|(spellings, _)| spellings)
}

/// The same, and [`Target::narrowed`].
fn read_path(path: &str) -> Result<(Spellings, Option<String>), Malformed> {
    if is_plain(path.as_bytes()) {
        return Ok((Spellings::NONE, None));
    }
    let (spellings, narrowed) = (check_path_closely(path)?, full_width::narrowed(path));
    let has_dots = |narrow| has_dot_segment(&String::from_utf8_lossy(&decoded(narrow)));
    match narrowed.as_deref().is_some_and(has_dots) {
        true => Err(Malformed::DotSegment),
        false => Ok((spellings, narrowed)),
    }
}

/// Whether a path has only segments and bytes with one reading: most have. Every byte is looked at,
/// without a branch: the compiler compares sixteen at a time.
fn is_plain(path: &[u8]) -> bool {
    let is_plain = |byte: u8| {
        matches!(byte, b'!'..=b'~')
            & (byte != b'#')
            & (byte != b'%')
            & (byte != b';')
            & (byte != b'\\')
    };
    let starts_name = |byte: u8, next: u8| (byte != b'/') | ((next != b'/') & (next != b'.'));
    let pairs = path.iter().zip(path.get(1..).unwrap_or_default());
    path.first() == Some(&b'/')
        && path.last() != Some(&b'/')
        && path.iter().fold(true, |all, byte| all & is_plain(*byte))
        && pairs.fold(true, |all, (byte, next)| all & starts_name(*byte, *next))
}

fn check_path_closely(path: &str) -> Result<Spellings, Malformed> {
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

/// Checks a segment's name, which ends at the first `;`: its length, and if it is all dots.
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

/// Whether a path has a `;`, literal or escaped: some servers drop what follows it.
#[must_use]
pub fn has_parameters(path: &str) -> bool {
    let may_have = path.bytes().any(|byte| byte == b';' || byte == b'%');
    may_have && (path.contains(';') || path.contains("%3b") || path.contains("%3B"))
}

/// Checks a path that has escapes, without the slashes at its ends.
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
    if has_dot_segment(text) {
        return Err(Malformed::DotSegment);
    }
    let is_name = |segment: &str| !decoded(segment).starts_with(b";");
    if path.split('/').all(is_name) { Ok(spellings) } else { Err(Malformed::EmptySegment) }
}

/// Whether a decoded path has `.` or `..` as a segment, with spaces or parameters or without.
fn has_dot_segment(text: &str) -> bool {
    let is_space = |char: char| char.is_whitespace() || char == '\u{feff}';
    text.split('/').any(|segment| {
        let name = segment.split(';').next().unwrap_or_default();
        matches!(name.trim_matches(is_space), "." | "..")
    })
}

/// Whether `text` begins with an escape.
fn is_escape(text: &[u8]) -> bool {
    text.strip_prefix(b"%").is_some_and(|digits| escaped(digits).is_some())
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
    use proptest::prelude::*;

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
        assert_eq!(path_of("HTTP://h.test"), Ok("/"));
        assert_eq!(path_of("http://H.TEST"), Err(Malformed::HostMismatch));
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

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]
        #[test]
        fn a_path_that_needs_no_closer_look_is_accepted_by_one(
            path in "/[/.aZ0_~:;%#\\\\ \\t\u{7f}é!@-]{0,8}|/[a/.]{0,8}",
        ) {
            if is_plain(path.as_bytes()) {
                prop_assert_eq!(check_path_closely(&path), Ok(Spellings::NONE));
            }
        }
    }

    #[test]
    fn most_paths_need_no_closer_look() {
        assert!(is_plain(b"/v1/workspaces/ws_1/tenants:batch/a.b"));
    }
}
