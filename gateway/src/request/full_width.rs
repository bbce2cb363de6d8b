//! Reads full-width characters as ASCII, as a server that normalizes text does. (core)
//!
//! Not here: which paths are refused for that (`target`, `route`).

use crate::request::escapes;

/// The ASCII character of a full-width one (U+FF01 to U+FF5E).
#[must_use]
pub fn ascii(char: char) -> char {
    let code = u32::from(char);
    let narrow = (0xff01..=0xff5e).contains(&code).then(|| char::from_u32(code - 0xfee0));
    narrow.flatten().unwrap_or(char)
}

/// A path with its full-width characters, escaped or not, as ASCII, and a backslash among them as a
/// slash; `None` if it has none.
#[must_use]
pub fn narrowed(path: &str) -> Option<String> {
    let mut narrow = String::new();
    // `copied` has all before `rest`, once a full-width character was found.
    let (mut rest, mut copied) = (path, 0);
    while let Some(char) = rest.chars().next() {
        let (wide, length) = match char {
            '%' => (escaped(rest).unwrap_or(char), 9),
            _ => (char, char.len_utf8()),
        };
        let at = path.len() - rest.len();
        if ascii(wide) == wide {
            rest = rest.get(char.len_utf8()..)?;
            continue;
        }
        narrow.push_str(path.get(copied..at)?);
        narrow.push(if ascii(wide) == '\\' { '/' } else { ascii(wide) });
        rest = rest.get(length..)?;
        copied = at + length;
    }
    (copied > 0).then(|| narrow + path.get(copied..).unwrap_or_default())
}

/// The character of three bytes whose escapes `text` begins with.
fn escaped(text: &str) -> Option<char> {
    let mut bytes = [0; 3];
    let mut escapes = text.as_bytes().chunks(3);
    for byte in &mut bytes {
        *byte = escapes::escaped(escapes.next()?.strip_prefix(b"%")?)?;
    }
    std::str::from_utf8(&bytes).ok()?.chars().next().filter(|char| char.len_utf8() == bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_width_characters_are_ascii_whether_escaped_or_not() {
        for (path, narrow) in [
            ("/a", None),
            ("/\u{e9}%C3%A9%EF%BC%EF/%EF%BC", None),
            ("/\u{3000}%E3%80%80\u{ff00}\u{ff5f}", None),
            ("/\u{ff21}\u{ff0f}b\u{ff0e}", Some("/A/b.")),
            ("/a%EF%BC%8F%ef%bc%8ex%2F", Some("/a/.x%2F")),
            ("/%EF%BC%81%EF%BD%9E\u{ff3c}%zz", Some("/!~/%zz")),
        ] {
            assert_eq!(narrowed(path).as_deref(), narrow, "{path}");
        }
    }
}
