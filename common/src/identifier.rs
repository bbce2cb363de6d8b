//! Defines the identifiers of workspaces, tenants, organisations and instances.
//!
//! One spelling, no escapes: the same text is compared, hashed, logged and shown. Identifiers of
//! workspaces and tenants start with a prefix, which the settings can change: both programs check
//! it with [`IdForm`].

use std::fmt;

use crate::config::document::table::Table;

/// The longest identifier; a DNS label, which an instance's name has to fit, allows 63.
pub const LENGTH_MAX: usize = 64;

/// The default prefix of a workspace's identifier.
pub const WORKSPACE_PREFIX: &str = "ws_";

/// The default prefix of a tenant's identifier.
pub const TENANT_PREFIX: &str = "tn_";

/// Whether `text` is an identifier: `[A-Za-z0-9_-]{1,64}`.
#[must_use]
pub fn is_identifier(text: &str) -> bool {
    (1..=LENGTH_MAX).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
}

/// The form of one kind of identifier: any, or with a prefix and at least one character after it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdForm {
    prefix: Box<str>,
}

impl IdForm {
    /// Identifiers with this prefix, which may be empty; `None` if no identifier can have it.
    #[must_use]
    pub fn new(prefix: &str) -> Option<Self> {
        let is_valid = prefix.is_empty() || is_identifier(prefix) && prefix.len() < LENGTH_MAX;
        is_valid.then(|| Self { prefix: prefix.into() })
    }

    /// The default form for workspaces.
    #[must_use]
    pub fn workspace() -> Self {
        Self { prefix: WORKSPACE_PREFIX.into() }
    }

    /// The default form for tenants.
    #[must_use]
    pub fn tenant() -> Self {
        Self { prefix: TENANT_PREFIX.into() }
    }

    /// The shortest identifier of this form, for examples.
    #[must_use]
    pub fn example(&self) -> String {
        format!("{}1", self.prefix)
    }

    /// Reads the prefix that the settings have under `key`.
    pub fn read(table: &mut Table<'_>, key: &str, default: Self, doc: &str) -> Self {
        let given = table.text(key, doc);
        table.set_default(key, (*default.prefix).into());
        let Some(given) = given else { return default };
        Self::new(&given.value).unwrap_or_else(|| {
            let text = format!(
                "`{}` begins no identifier: letters, digits, _ or -, 63 at most, or \"\" for none",
                given.value
            );
            table.fault_at(given.at, text);
            default
        })
    }

    /// Whether `text` is an identifier of this form.
    #[must_use]
    pub fn allows(&self, text: &str) -> bool {
        let rest = text.strip_prefix(&*self.prefix);
        is_identifier(text) && rest.is_some_and(|rest| !rest.is_empty())
    }
}

/// The form in words, for messages: `must be {form}`.
impl fmt::Display for IdForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.prefix.is_empty() {
            f.write_str("1 to 64 of A-Z a-z 0-9 _ -")
        } else {
            write!(f, "`{}` and letters, digits, _ or -, 64 at most", self.prefix)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_digits_underscores_and_hyphens_make_an_identifier() {
        for text in ["ws_acme", "A", "0-9", "_", &"x".repeat(64)] {
            assert!(is_identifier(text), "{text}");
        }
    }

    #[test]
    fn anything_else_does_not() {
        for text in ["", "a.b", "a b", "a/b", "ä", "a%20", "a;b", "a:b", &"x".repeat(65)] {
            assert!(!is_identifier(text), "{text}");
        }
    }

    #[test]
    fn a_prefix_is_needed_with_something_behind_it() {
        let long = format!("ws_{}", "x".repeat(62));
        for (prefix, text, allowed) in [
            ("ws_", "ws_acme", true),
            ("ws_", "ws_", false),
            ("ws_", "shop_prod", false),
            ("ws_", "WS_acme", false),
            ("ws_", "ws_a.b", false),
            ("ws_", &long, false),
            ("shop_", "shop_prod", true),
            ("", "shop_prod", true),
            ("", "", false),
            ("", "a.b", false),
        ] {
            assert_eq!(IdForm::new(prefix).unwrap().allows(text), allowed, "{prefix} {text}");
        }
        for none in ["a b", "é", &"x".repeat(64)] {
            assert_eq!(IdForm::new(none), None, "{none}");
        }
    }
}
