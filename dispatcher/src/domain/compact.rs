//! A compact form of numbers and bytes for columns. (core)
//!
//! Invariant: a reader of any bytes ends, and returns `None` beyond their end.

/// Writes values one after another.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    /// What was written so far.
    pub(crate) written: Vec<u8>,
}

impl Writer {
    /// Appends bytes as they are.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.written.extend_from_slice(bytes);
    }

    /// Appends a number: seven bits a byte, the lowest first; the highest bit: more follow.
    pub(crate) fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.written.push(number.to_le_bytes()[0] | 0x80);
            number >>= 7;
        }
        self.written.push(number.to_le_bytes()[0]);
    }

    /// Appends bytes after their number.
    pub(crate) fn text(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.bytes(bytes);
    }
}

/// Reads what a [`Writer`] wrote.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    /// What is not read yet.
    pub(crate) rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(rest: &'a [u8]) -> Self {
        Self { rest }
    }

    pub(crate) fn byte(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*first)
    }

    pub(crate) fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    pub(crate) fn text(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.number()?).ok()?;
        let (text, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_back() {
        let numbers = [0, 1, 127, 128, 16_383, 16_384, u64::from(u32::MAX), u64::MAX];
        let mut writer = Writer::default();
        for number in numbers {
            writer.number(number);
            writer.text(number.to_string().as_bytes());
        }
        let mut reader = Reader::new(&writer.written);
        for number in numbers {
            assert_eq!(reader.number(), Some(number));
            assert_eq!(reader.text(), Some(number.to_string().as_bytes()));
        }
        assert_eq!((reader.byte(), reader.number(), reader.text()), (None, None, None));
    }

    #[test]
    fn damaged_bytes_are_refused() {
        assert_eq!(Reader::new(&[0x80; 20]).number(), None, "no end");
        assert_eq!(Reader::new(&[5, b'a']).text(), None, "too short");
        assert_eq!(Reader::new(&[0xff, 0xff, 0xff, 0xff, 0xff, 0x0f]).text(), None, "too long");
    }
}
