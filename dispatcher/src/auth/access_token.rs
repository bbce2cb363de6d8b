//! What an access token of the platform permits: which of its claims lead to workspaces and scopes.
//!
//! Not here: whether the token is valid (`weir_common::identity`).

use weir_common::token::claims::Claims;

use crate::auth::{Scope, Token, WorkspaceAccess};
use crate::config::settings::Identity;
use crate::domain::session::Issuer;

/// Verifies access tokens.
pub type Verifier = weir_common::identity::verifier::Verifier<Token>;

/// The longest subject that is kept: names in logs are shorter.
const SUBJECT_BYTES_MAX: usize = 256;

/// What a token with these claims permits.
#[must_use]
pub fn token(claims: &Claims, identity: &Identity) -> Token {
    let words = claims.words(&identity.scope_claim);
    let has_any = |values: &[String]| values.iter().any(|one| words.contains(&one.as_str()));
    let permits = |scope: &Scope| match scope {
        Scope::WebhooksRead => has_any(&identity.webhooks_read),
        Scope::WebhooksWrite => has_any(&identity.webhooks_write),
        Scope::EventsWrite => has_any(&identity.events_write),
    };
    let workspaces = if has_any(&identity.all_workspaces) {
        WorkspaceAccess::All
    } else {
        WorkspaceAccess::Reach {
            workspaces: claims.names(&identity.settings.workspace_claim),
            organisations: claims.names(&identity.settings.organisation_claim),
        }
    };
    let name = claims.scalar("sub", SUBJECT_BYTES_MAX).unwrap_or_default();
    Token {
        workspaces,
        scopes: Scope::ALL.into_iter().filter(permits).collect(),
        until: claims.expires_at(),
        issuer: Issuer::Platform(name.clone().into()),
        name: name.into(),
    }
}

#[cfg(test)]
mod tests {
    use weir_common::config::document::Document;

    use super::*;
    use crate::config::read::read;

    /// The scopes of a token with these claims by this `[identity]`, and whether it reaches all.
    fn check(table: &str, claims: &str) -> String {
        let document = Document::new("t.toml", &format!("[identity]\n{table}"));
        let settings = read(&document).made;
        assert_eq!(document.diagnostics(), []);
        let claims = Claims::read(claims.as_bytes()).expect("claims");
        let token = token(&claims, &settings.identity);
        let scopes: Vec<&str> = token.scopes.iter().map(|scope| scope.name()).collect();
        let all = if token.workspaces == WorkspaceAccess::All { " everywhere" } else { "" };
        format!("{}{all}", scopes.join(" "))
    }

    #[test]
    fn scopes_are_words_in_one_text_or_a_list() {
        let reads = "webhooks:read";
        assert_eq!(check("", r#"{"scope": "openid webhooks:read"}"#), reads);
        assert_eq!(check("", r#"{"scope": ["openid", "webhooks:read"]}"#), reads);
        assert_eq!(check("", r#"{"scope": "webhooks:reads"}"#), "");
        assert_eq!(check("", r#"{"scope": ["openid webhooks:read"]}"#), "", "one word of a list");
        for none in ["{}", r#"{"scope": null}"#, r#"{"scope": {"webhooks:read": true}}"#] {
            assert_eq!(check("", none), "", "{none}");
        }
    }

    #[test]
    fn the_platforms_own_words_are_mapped() {
        let table = "scope_claim = \"realm.roles\"\nwebhooks_read = [\"owner\", \"viewer\"]\n\
            webhooks_write = [\"owner\"]\nevents_write = []\nall_workspaces = [\"backend\"]\n";
        let of = |roles: &str| check(table, &format!("{{\"realm\": {{\"roles\": {roles}}}}}"));
        assert_eq!(of("[\"owner\"]"), "webhooks:read webhooks:write");
        assert_eq!(of("[\"viewer\"]"), "webhooks:read");
        assert_eq!(of("[\"backend\", \"viewer\"]"), "webhooks:read everywhere");
        assert_eq!(of("[\"events:write\", \"webhooks:write\"]"), "", "its own words are replaced");
    }
}
