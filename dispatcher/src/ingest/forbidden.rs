//! Refuses data that names what must never be sent (CONTRACT §6.4), however deep it hides.
//!
//! Which keys those are, and why: `forbidden::key`.
//!
//! # Invariants
//!
//! 1. Every key of every object is looked at, those that escapes spell among them.
//! 2. A key that stands twice in one object is refused: of two readers each might see the other.
//! 3. A string that is no text (half of a surrogate pair) is refused: a receiver that reads
//!    strictly would refuse it for as long as it is tried.
//! 4. Nesting has a bound, and values are never converted: what is sent is what was sent.
//!
//! Not here: whether the text is JSON, which its reader has made sure of.

// core
mod key;

use std::borrow::Cow;
use std::collections::HashSet;

use crate::serve::refuse::{Flaw, Flaws, step};

/// Objects and arrays within each other, as most readers of JSON allow.
const DEPTH_MAX: usize = 128;

const NO_TEXT: &str = "is no text that every reader reads";

/// Looks at every key of `text`, which is JSON, and reports those that may not be sent below
/// `pointer`.
pub(super) fn check(text: &str, pointer: &str, flaws: &mut Flaws) {
    Walk::new(pointer, key::is_forbidden, flaws).run(text);
}

/// Looks at every key of `text`, which is JSON, and reports those that stand twice in an object.
pub(crate) fn check_twice(text: &str, flaws: &mut Flaws) {
    Walk::new("", |_| false, flaws).run(text);
}

/// Where a walk through JSON is.
struct Walk<'a, 'f> {
    pointer: &'f str,
    open: Vec<Open<'a>>,
    /// Every key with the number of its object.
    seen: HashSet<(usize, Cow<'a, str>)>,
    objects: usize,
    refuses: fn(&str) -> bool,
    flaws: &'f mut Flaws,
}

/// An object or an array that has not ended.
enum Open<'a> {
    Object { number: usize, key: Option<Cow<'a, str>> },
    Array { place: usize },
}

impl<'a, 'f> Walk<'a, 'f> {
    fn new(pointer: &'f str, refuses: fn(&str) -> bool, flaws: &'f mut Flaws) -> Self {
        Self { pointer, open: Vec::new(), seen: HashSet::new(), objects: 0, refuses, flaws }
    }

    fn run(&mut self, text: &'a str) {
        let mut rest = text;
        while let Some(at) = rest.find(['"', '{', '}', '[', ']', ',']) {
            let (_, from) = rest.split_at(at);
            let mut after = from.get(1..).unwrap_or_default();
            match from.as_bytes().first() {
                Some(b'"') => {
                    let (string, behind) = string(from);
                    self.string(string);
                    after = behind;
                }
                Some(b'{') => {
                    self.objects += 1;
                    self.open.push(Open::Object { number: self.objects, key: None });
                }
                Some(b'[') => self.open.push(Open::Array { place: 0 }),
                Some(b',') => match self.open.last_mut() {
                    Some(Open::Object { key, .. }) => *key = None,
                    Some(Open::Array { place }) => *place += 1,
                    None => {}
                },
                _ => drop(self.open.pop()),
            }
            if self.open.len() > DEPTH_MAX {
                let (pointer, most) = (self.pointer, DEPTH_MAX);
                self.flaws.at(pointer, format!("is nested more than {most} deep"));
                return;
            }
            rest = after;
        }
    }

    /// A string, with its quotes: a key where an object waits for one.
    fn string(&mut self, quoted: &'a str) {
        let Some(Open::Object { number, key: key @ None }) = self.open.last_mut() else {
            // Nothing but an escape can make it something else than text.
            if quoted.contains("\\u") && serde_json::from_str::<String>(quoted).is_err() {
                self.report(NO_TEXT);
            }
            return;
        };
        let plain = quoted.get(1..quoted.len().saturating_sub(1)).unwrap_or_default();
        let name = if plain.contains('\\') {
            match serde_json::from_str::<String>(quoted) {
                Ok(name) => Cow::Owned(name),
                Err(_) => {
                    *key = Some(Cow::Borrowed(plain));
                    return self.report(NO_TEXT);
                }
            }
        } else {
            Cow::Borrowed(plain)
        };
        *key = Some(name.clone());
        let forbidden = (self.refuses)(&name);
        let again = !self.seen.insert((*number, name));
        if forbidden {
            self.report("tokens, passwords and hashes of them are never sent");
        }
        if again {
            self.report("stands here twice");
        }
    }

    fn report(&mut self, detail: &str) {
        let (pointer, open) = (self.pointer, &self.open);
        self.flaws.add(|| {
            let steps = open.iter().map(|open| match open {
                Open::Object { key, .. } => step(key.as_deref().unwrap_or_default()),
                Open::Array { place } => format!("/{place}"),
            });
            Flaw::at(pointer.to_owned() + &steps.collect::<String>(), detail)
        });
    }
}

/// The string that `text` begins with, quotes and all, and what comes after it.
fn string(text: &str) -> (&str, &str) {
    let bytes = text.as_bytes();
    let mut end = 1;
    while let Some(byte) = bytes.get(end) {
        end += match byte {
            b'\\' => 2,
            b'"' => return text.split_at(end + 1),
            _ => 1,
        };
    }
    (text, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<String> {
        let mut flaws = Flaws::default();
        check(text, "/data", &mut flaws);
        flaws.pointers()
    }

    #[test]
    fn a_forbidden_key_is_found_however_deep_and_named_by_its_pointer() {
        let cases = [
            (r#"{"a":1}"#, vec![]),
            (r#"{"user":{"access_token":"x"}}"#, vec!["/data/user/access_token"]),
            (r#"{"a":[1,[{"b":[]},{"jwt":{}}],2]}"#, vec!["/data/a/1/1/jwt"]),
            (r#"{"a/b":{"~":{"secret":1}}}"#, vec!["/data/a~1b/~0/secret"]),
            (
                r#"{"token":{"password":1},"x":"token"}"#,
                vec!["/data/token", "/data/token/password"],
            ),
            ("{ \"a\" : \"{\\\"token\\\":1}\" , \"pwd\" :\n null }", vec!["/data/pwd"]),
            (r#"{"t\u006fken":1}"#, vec!["/data/token"]),
            (r#"{"a":"\\","b":"\\\"","token":1}"#, vec!["/data/token"]),
            (r#"{"a":["password","x,{\"y\":"],"b":{"c":"token"}}"#, vec![]),
        ];
        for (text, pointers) in cases {
            assert_eq!(found(text), pointers, "{text}");
        }
    }

    #[test]
    fn a_key_stands_once_in_its_object() {
        assert_eq!(found(r#"{"a":{"b":1,"b":2},"b":1,"a":0}"#), ["/data/a/b", "/data/a"]);
        assert_eq!(found(r#"{"a":1,"\u0061":2}"#), ["/data/a"]);
        assert_eq!(found(r#"[{"a":1},{"a":2},{"A":1,"a":2}]"#), [""; 0]);
    }

    #[test]
    fn a_key_that_is_no_text_is_refused() {
        assert_eq!(found(r#"{"\ud800":1}"#), [r"/data/\ud800"]);
    }

    #[test]
    fn a_value_that_is_no_text_is_refused() {
        assert_eq!(
            found(r#"{"a":"\ud800","b":["",{"c":"x\udc00\ud83d"}]}"#),
            ["/data/a", "/data/b/1/c"]
        );
        assert_eq!(found(r#"{"a":"\ud83d\ude00","b":"\\ud800","c":"\u0000"}"#), [""; 0]);
    }

    #[test]
    fn nesting_has_a_bound_and_no_depth_is_too_much_to_refuse() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert_eq!(found(&nested(128)), [""; 0]);
        assert_eq!(found(&nested(129)), ["/data"]);
        assert_eq!(found(&nested(100_000)), ["/data"]);
        let objects = "{\"a\":".repeat(129) + "1" + &"}".repeat(129);
        assert_eq!(found(&objects), ["/data"]);
    }

    #[test]
    fn many_keys_in_one_object_take_no_time_that_grows_with_their_square() {
        let keys: Vec<String> = (0..100_000).map(|n| format!("\"k{n}\":{n}")).collect();
        assert_eq!(found(&format!("{{{}}}", keys.join(","))), [""; 0]);
    }
}
