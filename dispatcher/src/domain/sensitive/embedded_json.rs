//! Finds secrets in the texts of an event that are JSON themselves. (core)
//!
//! A text counts as JSON from its first letter on, however it goes on: cut off, several values one
//! after another, with numbers that no parser reads. So it is split into strings and marks only.
//! JSON that was encoded twice and lost its outer quotes counts, too: `{\"a\":1}`, or
//! `{\u0022a\u0022:1}`.
//!
//! Invariant: the work is linear in the length of the text. JSON in the texts of JSON is read to
//! [`LEVELS_MAX`] levels, which bounds the stack, too.

use std::borrow::Cow;

use crate::domain::sensitive::values::is_blank;
use crate::domain::sensitive::{keys, never_allowed};

/// How often JSON may be a text of JSON. Escapes can be as short as five letters more for each
/// level, so that the length of a text bounds no levels.
const LEVELS_MAX: usize = 4;

/// A quote as some encoders write it within a string.
const ESCAPED_QUOTE: &str = r"\u0022";

const BELOW_KEY: &str = "a JSON text with a secret";

/// What finds the kind of secret in a text, JSON or not.
type Finder = fn(&str) -> Option<&'static str>;

/// The kind of secret in a text that is JSON: a text under a key that names one, or what `find`
/// finds in a string whose escapes hid it.
pub(super) fn secret(text: &str, find: Finder) -> Option<&'static str> {
    secret_to(text, LEVELS_MAX, find)
}

fn secret_to(text: &str, levels: usize, find: Finder) -> Option<&'static str> {
    // Most texts have neither a quote nor an escape.
    if levels == 0 || !text.contains(['"', '\\']) {
        return None;
    }
    let shown = text.trim_matches(is_blank);
    if !shown.starts_with(['{', '[', '"']) {
        return None;
    }
    let quote = shown.find('"').unwrap_or(shown.len());
    if shown.find(ESCAPED_QUOTE).is_some_and(|escaped| escaped < quote) {
        let text = unescaped(shown);
        return find(&text).or_else(|| secret_to(&text, levels - 1, find));
    }
    // How many brackets are open, and how many were at the key of the secret whose value this is.
    let (mut depth, mut named, mut is_value) = (0_usize, None, false);
    let mut rest = shown;
    while let Some(at) = rest.find(['{', '[', '}', ']', ',', ':', '"']) {
        let (before, from) = rest.split_at(at);
        let (mark, after) = from.split_at(1);
        rest = after;
        match mark {
            "{" | "[" => depth += 1,
            "\"" => {
                let (mut written, after) = string(rest);
                if before.ends_with('\\') && written.len() == rest.len() {
                    // Encoded once more from here on: no quote ends a string.
                    written = shown.get(shown.len() - from.len() - 1..).unwrap_or(written);
                }
                let text = unescaped(written);
                rest = after;
                let follows = after.trim_start();
                match follows.strip_prefix(':').filter(|_| !is_value) {
                    Some(value) if named.is_none() && names_secret(&text) => {
                        let has_texts = value.trim_start().starts_with(['"', '{', '[']);
                        named = has_texts.then_some(depth);
                    }
                    Some(_) => {}
                    None if named.is_some() && !text.is_empty() => return Some(BELOW_KEY),
                    None => {
                        let hidden = match &text {
                            Cow::Owned(text) => find(text),
                            Cow::Borrowed(_) => None,
                        };
                        let found = hidden.or_else(|| secret_to(&text, levels - 1, find));
                        if found.is_some() {
                            return found;
                        }
                    }
                }
            }
            "}" | "]" => depth = depth.saturating_sub(1),
            _ => {}
        }
        is_value = mark == ":";
        let has_ended = |of: &mut usize| depth < *of || depth == *of && !matches!(mark, ":" | "\"");
        named.take_if(has_ended);
    }
    None
}

fn names_secret(key: &str) -> bool {
    keys::is_forbidden(key) && never_allowed::is_never(key)
}

/// Splits a text behind a quote at the quote that ends the string.
fn string(text: &str) -> (&str, &str) {
    let mut is_escaped = false;
    let end = text.find(|letter| {
        let ends = letter == '"' && !is_escaped;
        is_escaped = letter == '\\' && !is_escaped;
        ends
    });
    end.and_then(|end| Some((text.get(..end)?, text.get(end + 1..)?))).unwrap_or((text, ""))
}

/// What a string stands for, with spaces for its control characters. Half a surrogate stands for a
/// letter that names nothing.
fn unescaped(written: &str) -> Cow<'_, str> {
    let Some((before, mut rest)) = written.split_once('\\') else { return written.into() };
    let mut units: Vec<u16> = before.encode_utf16().collect();
    loop {
        let mut letters = rest.chars();
        let letter = letters.next();
        rest = letters.as_str();
        match letter {
            Some('u') => {
                let code = rest.get(..4).and_then(|hex| u16::from_str_radix(hex, 16).ok());
                units.extend(code);
                rest = code.and_then(|_| rest.get(4..)).unwrap_or(rest);
            }
            Some('n' | 'r' | 't' | 'b' | 'f') => units.push(b' '.into()),
            Some(other) => units.extend(other.encode_utf16(&mut [0; 2]).iter()),
            None => {}
        }
        let Some((before, after)) = rest.split_once('\\') else { break };
        units.extend(before.encode_utf16());
        rest = after;
    }
    units.extend(rest.encode_utf16());
    String::from_utf16_lossy(&units).into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn has_secret(text: &str) -> bool {
        secret(text, |_| None).is_some()
    }

    #[test]
    fn escapes_stand_for_their_letters() {
        for (written, text) in [
            (r#"a\"b\\c\/d"#, "a\"b\\c/d"),
            (r"\u0070ass\u0057ord", "passWord"),
            (r"\ud835\udc29\ud835", "\u{1d429}\u{fffd}"),
            (r"a\nb\tc", "a b c"),
            (r"\u12", "12"),
            (r"\", ""),
        ] {
            assert_eq!(unescaped(written), text, "{written}");
        }
    }

    #[test]
    fn a_text_that_is_json_has_no_secret_under_a_key_that_names_one() {
        let inner = r#"{"user":{"password":"hunter2"}}"#;
        for text in [
            inner.to_owned(),
            format!(" [1, {inner}]"),
            format!("\u{feff}{inner}\u{200b}"),
            r#"{"access_token":{"value":["abc"]}}"#.to_owned(),
            serde_json::json!({ "body": inner }).to_string(),
            serde_json::json!({ "body": format!("\u{feff}{inner}") }).to_string(),
            serde_json::json!(inner).to_string(),
            r#"{"password":"cut off"#.to_owned(),
            format!("{{\"size\":1}}\n{inner}"),
            format!("{{\"size\":1e999,\"at\":\"\\ud800\",\"user\":{inner}}}"),
            format!("{}{inner}", "[".repeat(1_000)),
            r#"{"password":"hunter2","password":true}"#.to_owned(),
            r#"{"password":["","hunter2"]}"#.to_owned(),
            r#"{"access\u005ftoken":"abc"}"#.to_owned(),
            r#"{"a":"\\","password":"hunter2"}"#.to_owned(),
            r#"{\"password\":\"hunter2\"}"#.to_owned(),
            r#"{\n  \"user\": {\"password\": \"cut of"#.to_owned(),
            r"{\u0022password\u0022:\u0022hunter2\u0022}".to_owned(),
            r#" [{\u0022a\u0022: {\u0022password\u0022:\u0022cut of", "b"#.to_owned(),
            r#"{"a":1} [{\"a\":\"{\\\"password\\\":\\\"hunter2\\\"}\"}]"#.to_owned(),
        ] {
            assert!(has_secret(&text), "{text}");
        }
        for text in [
            r#"{"field":"password","changed":true}"#,
            r#"{"password":true,"id_token":null,"access_token":""}"#,
            r#"{"has_password":true,"note":"the password is secret"}"#,
            r#"{password: hunter2}"#,
            r#"{"password":"","note":"a"}"#,
            r#"[{"password":[true,1]},"a",{"b":"c"}]"#,
            r#"{"a":"the \"password\":"}"#,
            r#"{\"note\":\"the password\",\"password\":true}"#,
            r"{\u0022note\u0022:\u0022the password\u0022,\u0022password\u0022:true}",
            r#"[the \"password\" of \"Ada\"]"#,
            "[see] the \"password\": it is \"old\"",
        ] {
            assert!(!has_secret(text), "{text}");
        }
        let deep = "[".repeat(100_000);
        assert!(!has_secret(&deep));
    }

    #[test]
    fn json_in_texts_of_json_is_read_to_a_few_levels_however_its_quotes_are_written() {
        let escaped = |text: &str| text.replace('\\', r"\u005c").replace('"', r"\u0022");
        let around = |text: &str| format!(r#"["{}"]"#, escaped(text));
        let mut text = r#"{"password":"hunter2"}"#.to_owned();
        for _ in 1..LEVELS_MAX {
            text = around(&text);
            assert!(has_secret(&text), "{text}");
        }
        assert!(!has_secret(&around(&text)));
        // So deep that one level after the other would need more stack than there is.
        let lists = |text: &str| format!("{}{}{}", "[".repeat(120), text, "]".repeat(120));
        let mut deep = String::new();
        for _ in 0..90 {
            deep = lists(&around(&deep));
        }
        assert!(!has_secret(&deep));
    }

    /// A value with texts that are JSON, and whether one of them stands under a secret's name.
    fn values() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(json!(null)),
            Just(json!(1.5)),
            Just(json!("")),
            "[a\"\\\\:,{}\\[\\]\u{e9}\n]{0,6}".prop_map(serde_json::Value::from),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            let names = prop_oneof![Just("password"), Just("id_token"), Just("note"), Just("a\"b")];
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(serde_json::Value::from),
                prop::collection::vec((names, inner), 0..4).prop_map(|members| {
                    members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
                }),
            ]
        })
    }

    /// The dumbest model: the parsed value.
    fn has_named_text(value: &serde_json::Value, is_named: bool) -> bool {
        match value {
            serde_json::Value::String(text) => is_named && !text.is_empty(),
            serde_json::Value::Array(items) => {
                items.iter().any(|item| has_named_text(item, is_named))
            }
            serde_json::Value::Object(members) => members.iter().any(|(name, member)| {
                has_named_text(member, is_named || ["password", "id_token"].contains(&&**name))
            }),
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn whole_json_has_the_secrets_that_its_parsed_value_has(value in values()) {
            let short = value.to_string();
            let pretty = serde_json::to_string_pretty(&value).unwrap();
            let twice = json!(pretty).to_string();
            let expected = short.starts_with(['{', '[']) && has_named_text(&value, false);
            prop_assert_eq!(has_secret(&short), expected, "{}", short);
            prop_assert_eq!(has_secret(&pretty), expected, "{}", pretty);
            prop_assert_eq!(has_secret(twice.trim_matches('"')), expected, "{}", twice);
        }
    }
}
