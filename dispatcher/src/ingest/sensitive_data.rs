//! Refuses data that holds what must never be sent (CONTRACT §6.4), however deep it hides.
//!
//! Which keys name a secret, and which texts are one: `domain::sensitive`.
//!
//! # Invariants
//!
//! 1. Every key of every object is looked at, those that escapes spell among them, and every text.
//! 2. A key that names a secret is refused where there is a text, not an empty one, in its value,
//!    however deep. Booleans, numbers and null pass: no token, password or hash is one. A number
//!    under a key for a code that is sent to a phone is the code, however deep.
//! 3. A field that the operator allows passes (`allowed_fields`), and nothing beside it; a key
//!    that is a secret by its shape never does.
//! 4. A key that stands twice in one object is refused: of two readers each might see the other.
//! 5. A string that is no text (half of a surrogate pair) is refused: a receiver that reads
//!    strictly would refuse it for as long as it is tried.
//! 6. Nesting has a bound, and values are never converted: what is sent is what was sent.
//!
//! Not here: whether the text is JSON, which its reader has made sure of.

use std::borrow::Cow;
use std::collections::HashSet;

use crate::config::allowed_fields::Allowed;
use crate::domain::event::EventType;
use crate::domain::sensitive::{keys, never_allowed, values};
use crate::http_errors::{Flaw, Flaws, step};

/// Objects and arrays within each other, as most readers of JSON allow.
const DEPTH_MAX: usize = 128;

const NO_TEXT: &str = "is no text that every reader reads";

const NAMES_SECRET: &str = "names a secret: tokens, passwords and hashes of them are never sent \
    (ingest.allow lists fields that only sound so)";

/// Looks at every key and text of `text`, which is JSON, and reports those that may not be sent
/// below `pointer`; `allowed` says which may all the same in an event of this type.
pub(super) fn check(
    text: &str,
    pointer: &str,
    allowed: (&Allowed, Option<EventType>),
    flaws: &mut Flaws,
) {
    Walk::new(pointer, Some(allowed), flaws).run(text);
}

/// Looks at every key of `text`, which is JSON, and reports those that stand twice in an object.
pub(crate) fn check_twice(text: &str, flaws: &mut Flaws) {
    Walk::new("", None, flaws).run(text);
}

/// Where a walk through JSON is.
struct Walk<'a, 'f> {
    pointer: &'f str,
    open: Vec<Open<'a>>,
    /// Every key with the number of its object.
    seen: HashSet<(usize, Cow<'a, str>)>,
    objects: usize,
    /// What may pass of secrets; where there is nothing, all of them.
    allowed: Option<(&'f Allowed, Option<EventType>)>,
    /// The outermost key around this place that names a secret.
    named: Option<Named>,
    flaws: &'f mut Flaws,
}

/// A key that names a secret.
#[derive(Clone, Copy)]
struct Named {
    /// How many objects and arrays are open where it stands.
    depth: usize,
    is_reported: bool,
    /// How many digits make a number below it a code; nothing where none does.
    digits: Option<usize>,
}

/// An object or an array that has not ended.
enum Open<'a> {
    Object { number: usize, key: Option<Cow<'a, str>> },
    Array { place: usize },
}

impl<'a, 'f> Walk<'a, 'f> {
    fn new(
        pointer: &'f str,
        allowed: Option<(&'f Allowed, Option<EventType>)>,
        flaws: &'f mut Flaws,
    ) -> Self {
        let (open, seen) = (Vec::new(), HashSet::new());
        Self { pointer, open, seen, objects: 0, allowed, named: None, flaws }
    }

    fn run(&mut self, text: &'a str) {
        let mut rest = text;
        while let Some(at) = rest.find(['"', '{', '}', '[', ']', ',']) {
            let (_, from) = rest.split_at(at);
            let mut after = from.get(1..).unwrap_or_default();
            match from.as_bytes().first() {
                Some(b'"') => {
                    let (string, behind) = string(from);
                    self.string(string, behind);
                    after = behind;
                }
                Some(b'{') => {
                    self.objects += 1;
                    self.open.push(Open::Object { number: self.objects, key: None });
                }
                Some(b'[') => {
                    self.open.push(Open::Array { place: 0 });
                    self.number(after);
                }
                Some(b',') => self.next(after),
                _ => {
                    self.open.pop();
                    self.named = self.named.filter(|named| named.depth <= self.open.len());
                }
            }
            if self.open.len() > DEPTH_MAX {
                let (pointer, most) = (self.pointer, DEPTH_MAX);
                self.flaws.at(pointer, format!("is nested more than {most} deep"));
                return;
            }
            rest = after;
        }
    }

    /// A comma: the next key, or the next place.
    fn next(&mut self, ahead: &str) {
        let depth = self.open.len();
        match self.open.last_mut() {
            Some(Open::Object { key, .. }) => {
                *key = None;
                self.named = self.named.filter(|named| named.depth != depth);
            }
            Some(Open::Array { place }) => {
                *place += 1;
                self.number(ahead);
            }
            None => {}
        }
    }

    /// Reports a code, where one begins here: a number below a key that names one.
    fn number(&mut self, ahead: &str) {
        let Some(Named { digits: Some(least), is_reported: false, .. }) = self.named else {
            return;
        };
        let digits = ahead.trim_start().trim_start_matches('-').bytes();
        let digits = digits.take_while(u8::is_ascii_digit).take(least).count();
        if digits >= least && !self.is_allowed() {
            self.report_named();
        }
    }

    /// A string, with its quotes, and what comes after it: a key where an object waits for one.
    fn string(&mut self, quoted: &'a str, behind: &str) {
        let is_key = matches!(self.open.last(), Some(Open::Object { key: None, .. }));
        let plain = quoted.get(1..quoted.len().saturating_sub(1)).unwrap_or_default();
        let text = if plain.contains('\\') {
            // Nothing but an escape can make it something else than text.
            serde_json::from_str(quoted).map(Cow::Owned).ok()
        } else {
            Some(Cow::Borrowed(plain))
        };
        match text {
            Some(text) if is_key => self.key(text, behind),
            Some(text) => self.text(&text),
            None => {
                if let (true, Some(Open::Object { key, .. })) = (is_key, self.open.last_mut()) {
                    *key = Some(Cow::Borrowed(plain));
                }
                self.report(NO_TEXT);
            }
        }
    }

    fn key(&mut self, name: Cow<'a, str>, behind: &str) {
        let Some(Open::Object { number, key }) = self.open.last_mut() else { return };
        let again = !self.seen.insert((*number, name.clone()));
        *key = Some(name.clone());
        if again {
            self.report("stands here twice");
        }
        if self.allowed.is_none() {
            return;
        }
        if self.named.is_none() && keys::is_forbidden(&name) && !self.is_allowed() {
            let digits = never_allowed::code_digits(&name);
            self.named = Some(Named { depth: self.open.len(), is_reported: false, digits });
        }
        if let Some(Named { depth, digits: Some(_), .. }) = self.named
            && (depth == self.open.len() || !never_allowed::is_detail(&name))
        {
            self.number(behind.trim_start().strip_prefix(':').unwrap_or_default());
        }
        if let Some(kind) = values::secret(&name) {
            self.report_shape(kind);
        }
    }

    /// A text that is a value.
    fn text(&mut self, text: &str) {
        if self.allowed.is_none() {
            return;
        }
        match self.named {
            Some(named) if named.is_reported => {}
            Some(_) if !text.is_empty() && !self.is_allowed() => self.report_named(),
            _ => {
                if let Some(kind) = values::secret(text)
                    && !self.is_allowed()
                {
                    self.report_shape(kind);
                }
            }
        }
    }

    /// Reports a text that is a secret itself, whatever it is called.
    fn report_shape(&mut self, kind: &str) {
        self.report(&format!("is {kind} by its shape, and those are never sent"));
    }

    /// Whether the operator lets this field pass.
    fn is_allowed(&self) -> bool {
        self.allowed.is_some_and(|(allowed, kind)| {
            let steps = self.open.iter().map(|open| match open {
                Open::Object { key, .. } => key.as_deref().unwrap_or_default().to_owned(),
                Open::Array { place } => place.to_string(),
            });
            allowed.covers(kind, &steps.collect::<Vec<_>>())
        })
    }

    /// Reports the key around this place that names a secret, once.
    fn report_named(&mut self) {
        if let Some(named) = &mut self.named {
            named.is_reported = true;
            let depth = named.depth;
            self.report_at(depth, NAMES_SECRET);
        }
    }

    fn report(&mut self, detail: &str) {
        self.report_at(self.open.len(), detail);
    }

    /// Reports the value that the outer so many open ones lead to.
    fn report_at(&mut self, depth: usize, detail: &str) {
        let (pointer, open) = (self.pointer, self.open.iter().take(depth));
        self.flaws.add(|| {
            let steps = open.map(|open| match open {
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
    use proptest::prelude::*;
    use serde_json::{Value, json};
    use weir_common::config::document::Document;

    use super::*;

    const JWT: &str = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl";

    fn found(text: &str) -> Vec<String> {
        found_where(&Allowed::default(), text)
    }

    fn found_where(allowed: &Allowed, text: &str) -> Vec<String> {
        let mut flaws = Flaws::default();
        check(text, "/data", (allowed, Some(EventType::UserUpdated)), &mut flaws);
        flaws.pointers()
    }

    /// What settings with these fields of `user.updated` allow.
    fn allowing(fields: &str) -> Allowed {
        let text = format!("[ingest]\nallow = [{{ type = \"user.updated\", fields = {fields} }}]");
        let document = Document::new("d", &text);
        let settings = crate::config::read::read(&document).made;
        assert_eq!(document.diagnostics(), []);
        settings.ingest.allowed
    }

    #[test]
    fn a_forbidden_key_is_found_however_deep_and_named_by_its_pointer() {
        let cases = [
            (r#"{"a":1}"#, vec![]),
            (r#"{"user":{"access_token":"x"}}"#, vec!["/data/user/access_token"]),
            (r#"{"a":[1,[{"b":[]},{"jwt":["x"]}],2]}"#, vec!["/data/a/1/1/jwt"]),
            (r#"{"a/b":{"~":{"secret":"x"}}}"#, vec!["/data/a~1b/~0/secret"]),
            (r#"{"token":{"password":"x"},"x":"token"}"#, vec!["/data/token"]),
            (r#"{"token":{"a":[1,{"b":"x"},"y"]},"pwd":"z"}"#, vec!["/data/token", "/data/pwd"]),
            ("{ \"a\" : \"{\\\"token\\\":1}\" , \"pwd\" :\n \"x\" }", vec!["/data/pwd"]),
            (r#"{"t\u006fken":"x"}"#, vec!["/data/token"]),
            (r#"{"a":"\\","b":"\\\"","token":"x"}"#, vec!["/data/token"]),
            (r#"[{"token":1},{"a":"x"},{"token":"x"}]"#, vec!["/data/2/token"]),
            (r#"{"a":["password","x,{\"y\":"],"b":{"c":"token"}}"#, vec![]),
        ];
        for (text, pointers) in cases {
            assert_eq!(found(text), pointers, "{text}");
        }
    }

    #[test]
    fn what_is_no_text_is_no_secret_whatever_its_key() {
        let text = r#"{"has_password":true,"max_tokens":4096,"tokens":{"in":12,"out":[3]},
            "token":null,"password":"","secret":[],"jwt":{},"access_token":-1.5e3}"#;
        assert_eq!(found(text), [""; 0]);
    }

    #[test]
    fn a_number_is_a_code_where_its_key_says_so() {
        assert_eq!(found(r#"{"otp":123456,"mfa_code" : 7}"#), ["/data/otp", "/data/mfa_code"]);
        assert_eq!(found(r#"{"otp":true,"backup_codes":8,"mfa_code_length":6}"#), [""; 0]);
        let about = r#"{"otp":{"length":6,"expires_in":300,"on":true},"backup_codes":{"left":8}}"#;
        assert_eq!(found(about), [""; 0]);
        for (text, pointer) in [
            (r#"{"backup_codes":[12345678, 87654321]}"#, "/data/backup_codes"),
            (r#"{"recovery_codes":[true, 12345678]}"#, "/data/recovery_codes"),
            (r#"{"otp":[ 123456]}"#, "/data/otp"),
            (r#"{"otp":{"v":1}}"#, "/data/otp"),
            (r#"{"otp":[{"v":[7]}]}"#, "/data/otp"),
            (r#"{"otp":-1}"#, "/data/otp"),
            (r#"{"otps":123456}"#, "/data/otps"),
            (r#"{"otp_codes":123456}"#, "/data/otp_codes"),
        ] {
            assert_eq!(found(text), [pointer], "{text}");
        }
        let allowed = allowing(r#"["/data/otp/0"]"#);
        assert_eq!(found_where(&allowed, r#"{"otp":[1]}"#), [""; 0]);
        assert_eq!(found_where(&allowed, r#"{"otp":[1,2]}"#), ["/data/otp"]);
    }

    #[test]
    fn a_value_that_is_a_secret_is_found_whatever_it_is_called() {
        let text = json!({"note": JWT, "list": ["x", [JWT]], "mentioned": format!("see {JWT}")});
        assert_eq!(found(&text.to_string()), ["/data/note", "/data/list/1/0"]);
        assert_eq!(found(&format!("{{\"{JWT}\":1}}")), [format!("/data/{JWT}")]);
        let escaped = JWT.replacen('y', "\\u0079", 1);
        assert_eq!(found(&format!("{{\"a\":\"{escaped}\"}}")), ["/data/a"]);
        let key = "-----BEGIN RSA PRIVATE KEY-----\\nMIIE\\n-----END RSA PRIVATE KEY-----\\n";
        assert_eq!(found(&format!("{{\"pem\":\"{key}\"}}")), ["/data/pem"]);
    }

    #[test]
    fn a_field_that_is_allowed_passes_and_nothing_beside_it() {
        let allowed = allowing(r#"["/data/reset_password_url", "/data/keys/*/secret", "/data/a"]"#);
        let text = json!({
            "reset_password_url": "https://a.example/reset", "a": JWT,
            "keys": [{"secret": "x"}, {"secret": "y", "token": "z"}],
            "nested": {"reset_password_url": "https://a.example/reset"},
        });
        let pointers = ["/data/keys/1/token", "/data/nested/reset_password_url"];
        assert_eq!(found_where(&allowed, &text.to_string()), pointers);
        let mut flaws = Flaws::default();
        let other = (&allowed, Some(EventType::UserDeleted));
        check(r#"{"reset_password_url":"x"}"#, "/data", other, &mut flaws);
        assert_eq!(flaws.pointers(), ["/data/reset_password_url"]);
        // Of what is within a secret, the field that is allowed.
        let allowed = allowing(r#"["/data/token/type"]"#);
        let token = json!({"token": {"type": "Bearer"}});
        assert_eq!(found_where(&allowed, &token.to_string()), [""; 0]);
        let token = json!({"token": {"type": "Bearer", "value": "x"}});
        assert_eq!(found_where(&allowed, &token.to_string()), ["/data/token"]);
    }

    #[test]
    fn what_the_contract_names_passes_under_no_star() {
        let allowed = allowing(r#"["/data/*", "/data/*/*", "/data/*/deep"]"#);
        for (text, pointer) in [
            (json!({"password": "hunter2"}), "/data/password"),
            (json!({"access_token": JWT}), "/data/access_token"),
            (json!({"idTokens": [JWT]}), "/data/idTokens"),
            (json!({"password_hash": "x"}), "/data/password_hash"),
            (json!({"oauth_access_token": "x"}), "/data/oauth_access_token"),
            (json!({"user_password_raw": "x"}), "/data/user_password_raw"),
            (json!({"pässword": "x"}), "/data/pässword"),
            (json!({"p\u{430}ssword": "x"}), "/data/p\u{430}ssword"),
            (json!({"password": {"deep": "hunter2"}}), "/data/password"),
            (json!({"attributes": {"password": "hunter2"}}), "/data/attributes/password"),
        ] {
            assert_eq!(found_where(&allowed, &text.to_string()), [pointer], "{text}");
        }
        let key = format!("{{\"{JWT}\":1}}");
        assert_eq!(found_where(&allowed, &key), [format!("/data/{JWT}")]);
        let others = json!({"reset_password_url": "x", "attributes": {"secret": "x"}});
        assert_eq!(found_where(&allowed, &others.to_string()), [""; 0]);
    }

    /// Any JSON of these keys and values.
    fn nested(
        keys: &'static [&str],
        values: impl Strategy<Value = Value> + 'static,
    ) -> impl Strategy<Value = Value> {
        values.prop_recursive(4, 24, 4, move |within| {
            let object =
                prop::collection::btree_map(prop::sample::select(keys), within.clone(), 0..4);
            prop_oneof![
                prop::collection::vec(within, 0..4).prop_map(Value::from),
                object.prop_map(|all| all.into_iter().collect()),
            ]
        })
    }

    proptest! {
        #[test]
        fn no_key_makes_a_secret_of_booleans_numbers_and_null(
            data in nested(
                &["has_password", "tokens", "secret", "api_key", "max_tokens", "hash"],
                prop_oneof![
                    Just(Value::Null),
                    any::<bool>().prop_map(Value::from),
                    any::<i64>().prop_map(Value::from),
                    any::<f64>().prop_map(Value::from),
                ],
            )
        ) {
            prop_assert_eq!(found(&data.to_string()), [""; 0]);
        }

        #[test]
        fn a_secret_is_found_at_every_depth_and_nothing_else_is(
            data in nested(
                &["a", "b", "note"],
                prop_oneof![Just(json!(JWT)), Just(json!("a text of some length")), Just(json!(7))],
            )
        ) {
            let text = data.to_string();
            let expected = text.matches(JWT).count();
            let mut flaws = Flaws::default();
            check(&text, "/data", (&Allowed::default(), None), &mut flaws);
            prop_assert_eq!(flaws.count(), expected);
            for pointer in flaws.pointers() {
                let place = pointer.strip_prefix("/data").unwrap();
                prop_assert_eq!(data.pointer(place), Some(&json!(JWT)));
            }
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
