//! Finds secrets in an event's data: tokens, passwords, password hashes, one-time codes.
//!
//! # Invariants
//!
//! 1. Every key and every string is checked, at any depth, with escapes decoded.
//! 2. A key that names a secret is refused if its value contains a non-empty string at any depth.
//!    Booleans, numbers and null pass: no token, password or hash has these types. A number below a
//!    key for a one-time code counts as the code, at any depth.
//! 3. A field that the operator allows (`allowed_fields`) passes, and no field beside it. A key
//!    that is itself a secret by its format never passes.
//! 4. A duplicate key in one object is refused: two parsers might read different values.
//! 5. A string that is not Unicode (half of a surrogate pair) is refused: a strict receiver would
//!    refuse every attempt.
//! 6. Nesting is bounded, and values are never converted: receivers get the bytes that were sent.
//!
//! Not here: which keys name a secret and which values look like one (`domain::sensitive`), whether
//! the text is JSON (`parse`).

use std::borrow::Cow;
use std::collections::HashSet;

use crate::catalogue::allowed_fields::AllowedFields;
use crate::domain::sensitive::{self, keys, never_allowed};
use crate::http_errors::{ValidationError, ValidationErrors, step};

/// The nesting that most JSON parsers accept.
const DEPTH_MAX: usize = 128;

const INVALID_TEXT: &str = "is not valid Unicode: it has half of a surrogate pair";

const NAMES_SECRET: &str = "names a secret: tokens, passwords and hashes of them are never sent \
    (`allow` in events.toml exempts fields that only have such a name)";

/// Checks every key and string of `text`, which is JSON, and reports secrets below `pointer`;
/// `allowed` exempts fields.
pub(crate) fn check(
    text: &str,
    pointer: &str,
    allowed: &AllowedFields,
    errors: &mut ValidationErrors,
) {
    Walk::new(pointer, Some(allowed), errors).run(text);
}

/// Reports duplicate keys in the objects of `text`, which is JSON.
pub(crate) fn check_duplicate_keys(text: &str, errors: &mut ValidationErrors) {
    Walk::new("", None, errors).run(text);
}

/// A traversal of a JSON text, with its position.
struct Walk<'a, 'f> {
    pointer: &'f str,
    open: Vec<Container<'a>>,
    /// Every key seen, with the number of its object.
    seen: HashSet<(usize, Cow<'a, str>)>,
    objects: usize,
    /// Allowed fields; `None` where secrets are not checked.
    allowed: Option<&'f AllowedFields>,
    /// The outermost key around this place that names a secret.
    named: Option<SecretKey>,
    errors: &'f mut ValidationErrors,
}

/// A key that names a secret.
#[derive(Clone, Copy)]
struct SecretKey {
    /// The number of open objects and arrays at the key.
    depth: usize,
    is_reported: bool,
    /// The fewest digits of a number that is a code; `None` if numbers pass.
    digits: Option<usize>,
}

/// An open object or array.
enum Container<'a> {
    Object { number: usize, key: Option<Cow<'a, str>> },
    Array { place: usize },
}

impl<'a, 'f> Walk<'a, 'f> {
    fn new(
        pointer: &'f str,
        allowed: Option<&'f AllowedFields>,
        errors: &'f mut ValidationErrors,
    ) -> Self {
        let (open, seen) = (Vec::new(), HashSet::new());
        Self { pointer, open, seen, objects: 0, allowed, named: None, errors }
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
                    self.open.push(Container::Object { number: self.objects, key: None });
                }
                Some(b'[') => {
                    self.open.push(Container::Array { place: 0 });
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
                self.errors.at(pointer, format!("is nested more than {most} deep"));
                return;
            }
            rest = after;
        }
    }

    /// After a comma: the next key, or the next element.
    fn next(&mut self, ahead: &str) {
        let depth = self.open.len();
        match self.open.last_mut() {
            Some(Container::Object { key, .. }) => {
                *key = None;
                self.named = self.named.filter(|named| named.depth != depth);
            }
            Some(Container::Array { place }) => {
                *place += 1;
                self.number(ahead);
            }
            None => {}
        }
    }

    /// Reports the number that begins here if it is a one-time code.
    fn number(&mut self, ahead: &str) {
        let Some(SecretKey { digits: Some(least), is_reported: false, .. }) = self.named else {
            return;
        };
        let digits = ahead.trim_start().trim_start_matches('-').bytes();
        let digits = digits.take_while(u8::is_ascii_digit).take(least).count();
        if digits >= least && !self.is_allowed() {
            self.report_named();
        }
    }

    /// Checks a quoted string: a key where an object expects one, else a value.
    fn string(&mut self, quoted: &'a str, behind: &str) {
        let is_key = matches!(self.open.last(), Some(Container::Object { key: None, .. }));
        let plain = quoted.get(1..quoted.len().saturating_sub(1)).unwrap_or_default();
        let text = if plain.contains('\\') {
            // Only an escape can make it invalid Unicode.
            serde_json::from_str(quoted).map(Cow::Owned).ok()
        } else {
            Some(Cow::Borrowed(plain))
        };
        match text {
            Some(text) if is_key => self.key(text, behind),
            Some(text) => self.text(&text),
            None => {
                if let (true, Some(Container::Object { key, .. })) = (is_key, self.open.last_mut())
                {
                    *key = Some(Cow::Borrowed(plain));
                }
                self.report(INVALID_TEXT);
            }
        }
    }

    fn key(&mut self, name: Cow<'a, str>, behind: &str) {
        let Some(Container::Object { number, key }) = self.open.last_mut() else { return };
        let again = !self.seen.insert((*number, name.clone()));
        *key = Some(name.clone());
        if again {
            self.report("appears twice");
        }
        if self.allowed.is_none() {
            return;
        }
        if self.named.is_none() && keys::is_forbidden(&name) && !self.is_allowed() {
            let digits = never_allowed::code_digits(&name);
            self.named = Some(SecretKey { depth: self.open.len(), is_reported: false, digits });
        }
        if let Some(SecretKey { depth, digits: Some(_), .. }) = self.named
            && (depth == self.open.len() || !never_allowed::is_detail(&name))
        {
            self.number(behind.trim_start().strip_prefix(':').unwrap_or_default());
        }
        if let Some(kind) = sensitive::secret(&name) {
            self.report_value(kind);
        }
    }

    /// Checks a string that is a value.
    fn text(&mut self, text: &str) {
        if self.allowed.is_none() {
            return;
        }
        match self.named {
            Some(named) if named.is_reported => {}
            Some(_) if !text.is_empty() && !self.is_allowed() => self.report_named(),
            _ => {
                if let Some(kind) = sensitive::secret(text)
                    && !self.is_allowed()
                {
                    self.report_value(kind);
                }
            }
        }
    }

    /// Reports a string whose format is that of a secret, whatever its key.
    fn report_value(&mut self, kind: &str) {
        self.report(&format!("has the format of {kind}, which is never sent"));
    }

    /// Whether the operator allows this field.
    fn is_allowed(&self) -> bool {
        self.allowed.is_some_and(|allowed| {
            let steps = self.open.iter().map(|open| match open {
                Container::Object { key, .. } => key.as_deref().unwrap_or_default().to_owned(),
                Container::Array { place } => place.to_string(),
            });
            allowed.covers(&steps.collect::<Vec<_>>())
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

    /// Reports the value below the outermost `depth` objects and arrays.
    fn report_at(&mut self, depth: usize, detail: &str) {
        let (pointer, open) = (self.pointer, self.open.iter().take(depth));
        self.errors.add(|| {
            let steps = open.map(|open| match open {
                Container::Object { key, .. } => step(key.as_deref().unwrap_or_default()),
                Container::Array { place } => format!("/{place}"),
            });
            ValidationError::at(pointer.to_owned() + &steps.collect::<String>(), detail)
        });
    }
}

/// Splits the leading quoted string from the rest of `text`.
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
        found_where(&AllowedFields::default(), text)
    }

    fn found_where(allowed: &AllowedFields, text: &str) -> Vec<String> {
        let mut errors = ValidationErrors::default();
        check(text, "/data", allowed, &mut errors);
        errors.pointers()
    }

    /// Exactly these fields.
    fn allowing(fields: &str) -> AllowedFields {
        let document = Document::new("d", &format!("allow = {fields}"));
        let allowed = document.read(|table| AllowedFields::read(table, "")).made;
        assert_eq!(document.diagnostics(), []);
        allowed
    }

    #[test]
    fn a_forbidden_key_is_found_at_any_depth_with_its_pointer() {
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
    fn values_that_are_no_strings_are_no_secrets_whatever_their_key() {
        let text = r#"{"has_password":true,"max_tokens":4096,"tokens":{"in":12,"out":[3]},
            "token":null,"password":"","secret":[],"jwt":{},"access_token":-1.5e3}"#;
        assert_eq!(found(text), [""; 0]);
    }

    #[test]
    fn a_number_below_a_key_for_a_code_is_a_code() {
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
    fn a_value_with_the_format_of_a_secret_is_found_whatever_its_key() {
        let text = json!({"note": JWT, "list": ["x", [JWT]], "mentioned": format!("see {JWT}")});
        assert_eq!(found(&text.to_string()), ["/data/note", "/data/list/1/0", "/data/mentioned"]);
        assert_eq!(found(&format!("{{\"{JWT}\":1}}")), [format!("/data/{JWT}")]);
        let escaped = JWT.replacen('y', "\\u0079", 1);
        assert_eq!(found(&format!("{{\"a\":\"{escaped}\"}}")), ["/data/a"]);
        let key = "-----BEGIN RSA PRIVATE KEY-----\\nMIIE\\n-----END RSA PRIVATE KEY-----\\n";
        assert_eq!(found(&format!("{{\"pem\":\"{key}\"}}")), ["/data/pem"]);
    }

    #[test]
    fn an_allowed_field_passes_and_no_field_beside_it() {
        let allowed = allowing(r#"["/data/reset_password_url", "/data/keys/*/secret", "/data/a"]"#);
        let text = json!({
            "reset_password_url": "https://a.example/reset", "a": JWT,
            "keys": [{"secret": "x"}, {"secret": "y", "token": "z"}],
            "nested": {"reset_password_url": "https://a.example/reset"},
        });
        let pointers = ["/data/keys/1/token", "/data/nested/reset_password_url"];
        assert_eq!(found_where(&allowed, &text.to_string()), pointers);
        // Inside of a secret's value only the allowed field passes.
        let allowed = allowing(r#"["/data/token/type"]"#);
        let token = json!({"token": {"type": "Bearer"}});
        assert_eq!(found_where(&allowed, &token.to_string()), [""; 0]);
        let token = json!({"token": {"type": "Bearer", "value": "x"}});
        assert_eq!(found_where(&allowed, &token.to_string()), ["/data/token"]);
    }

    #[test]
    fn passwords_and_tokens_pass_under_no_wildcard() {
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
            let mut errors = ValidationErrors::default();
            check(&text, "/data", &AllowedFields::default(), &mut errors);
            prop_assert_eq!(errors.count(), expected);
            for pointer in errors.pointers() {
                let place = pointer.strip_prefix("/data").unwrap();
                prop_assert_eq!(data.pointer(place), Some(&json!(JWT)));
            }
        }
    }

    #[test]
    fn a_duplicate_key_is_refused() {
        assert_eq!(found(r#"{"a":{"b":1,"b":2},"b":1,"a":0}"#), ["/data/a/b", "/data/a"]);
        assert_eq!(found(r#"{"a":1,"\u0061":2}"#), ["/data/a"]);
        assert_eq!(found(r#"[{"a":1},{"a":2},{"A":1,"a":2}]"#), [""; 0]);
    }

    #[test]
    fn a_key_that_is_not_unicode_is_refused() {
        assert_eq!(found(r#"{"\ud800":1}"#), [r"/data/\ud800"]);
    }

    #[test]
    fn a_value_that_is_not_unicode_is_refused() {
        assert_eq!(
            found(r#"{"a":"\ud800","b":["",{"c":"x\udc00\ud83d"}]}"#),
            ["/data/a", "/data/b/1/c"]
        );
        assert_eq!(found(r#"{"a":"\ud83d\ude00","b":"\\ud800","c":"\u0000"}"#), [""; 0]);
    }

    #[test]
    fn nesting_is_bounded_and_any_depth_is_refused_in_time() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert_eq!(found(&nested(128)), [""; 0]);
        assert_eq!(found(&nested(129)), ["/data"]);
        assert_eq!(found(&nested(100_000)), ["/data"]);
        let objects = "{\"a\":".repeat(129) + "1" + &"}".repeat(129);
        assert_eq!(found(&objects), ["/data"]);
    }

    #[test]
    fn many_keys_in_one_object_are_checked_in_linear_time() {
        let keys: Vec<String> = (0..100_000).map(|n| format!("\"k{n}\":{n}")).collect();
        assert_eq!(found(&format!("{{{}}}", keys.join(","))), [""; 0]);
    }
}
