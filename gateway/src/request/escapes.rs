//! Decodes the escapes of a path. (core)
//!
//! Not here: which escapes are accepted (`target`).

/// A path with its escapes decoded; a broken escape is left unchanged.
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

/// The byte that the two hexadecimal digits at the start of `text` encode.
#[must_use]
pub fn escaped(text: &[u8]) -> Option<u8> {
    let [high, low, ..] = text else { return None };
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    Some(digit(*high)? << 4 | digit(*low)?)
}
