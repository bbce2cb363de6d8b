//! Decides which routes need a token, and reports errors in `identity.planes`.

use crate::request::route::Index;
use crate::rules::compile::{Checker, lookup, names};
use crate::settings::RawRoute;
use weir_common::identity::settings::Verify;

impl Checker<'_> {
    pub(super) fn token_planes(&self) {
        let planes = &self.raw.token_planes;
        for (nth, plane) in planes.iter().enumerate() {
            let known = names(&self.raw.planes, |(name, _)| &name.value);
            let _ = lookup(self.document, plane, "plane", known);
            if planes.iter().take(nth).any(|earlier| earlier.value == plane.value) {
                self.document.fault(plane.at, format!("plane `{}` is listed twice", plane.value));
            }
        }
        if let Some(plane) = planes.first().filter(|_| !self.verifies()) {
            let text = "`planes` has no effect with verify = \"none\": set verify to \
                        \"jwt\" or \"introspection\", or leave `planes` out";
            self.document.fault(plane.at, text);
        }
    }

    fn verifies(&self) -> bool {
        self.raw.settings.identity.verify != Verify::Nothing
    }

    /// Whether a route needs a token.
    pub(super) fn needs_token(&self, route: &RawRoute, plane: Index) -> bool {
        let name = self.raw.planes.get(plane).map(|(name, _)| &name.value);
        let planned = self.raw.token_planes.iter().any(|plane| Some(&plane.value) == name);
        self.verifies() && planned && !route.anonymous && !route.exempt
    }
}

#[cfg(test)]
mod tests {
    use weir_common::config::document::Document;
    use weir_common::directory::Directory;

    use crate::limit::key::Seed;
    use crate::rules::Rules;

    const SEED: Seed = Seed::new([1; 16]);

    const SHIPPED: &str = include_str!("../../../../config/gateway.toml");
    const JWT: &str = "verify = \"jwt\"\nplanes = [\"control\"]\njwt.issuer = \"https://id.test\"\n\
        jwt.audience = [\"api\"]\njwt.jwks_url = \"https://id.test/keys\"\n";

    fn read(shipped: &str, identity: &str) -> (Rules, Vec<String>) {
        let text = shipped.replacen("verify = \"none\"", identity, 1);
        let document = Document::new("g", &text);
        let nothing = Document::new("d", "");
        let raw = crate::settings::read::read(&document).made;
        let rules = crate::rules::compile::check(
            (&raw, &document),
            (&Directory::default(), &nothing),
            SEED,
        );
        (rules, document.diagnostics().into_iter().map(|diagnostic| diagnostic.message).collect())
    }

    #[track_caller]
    fn check(from: &str, to: &str, diagnostic: &str) {
        assert!(JWT.contains(from), "{from}");
        let (_, found) = read(SHIPPED, &JWT.replacen(from, to, 1));
        let meant = |found: &String| !diagnostic.is_empty() && found.contains(diagnostic);
        assert!(found.iter().any(meant) || diagnostic.is_empty() && found.is_empty(), "{found:?}");
    }

    #[test]
    fn token_verification_needs_an_issuer_and_an_audience() {
        check("", "", "");
        check("jwt.issuer = \"https://id.test\"\n", "", "identity.jwt.issuer is missing");
        check("jwt.audience = [\"api\"]\n", "", "identity.jwt.audience is missing");
        check("jwt.jwks_url = \"https://id.test/keys\"\n", "", "identity.jwt.jwks_url is missing");
        check("planes = [\"control\"]\n", "", "`planes` is missing");
        check("issuer = \"https://id.test\"", "issuer = \"\"", "an empty text");
        check("[\"api\"]", "[\"api\", \"\"]", "an empty text");
        check("[\"api\"]", "[]", "`audience` is empty");
        check("jwt.issuer", "workspace_claim = \"\"\njwt.issuer", "is empty: name a claim");
        check("jwt.issuer", "organisation_claim = \"\"\njwt.issuer", "is empty: name a claim");
        check("[\"control\"]", "[\"control\", \"control\"]", "plane `control` is listed twice");
        check("[\"control\"]", "[\"contrl\"]", "unknown plane `contrl`; did you mean `control`?");
        check("verify = \"jwt\"", "verify = \"none\"", "`planes` has no effect");
        check(
            "jwt.issuer",
            "jwt.algorithms = [\"RS256\", \"HS256\"]\njwt.issuer",
            "unknown algorithm `HS256`; known: RS256, ES256, EdDSA",
        );
    }

    #[test]
    fn keys_are_fetched_over_tls_or_from_this_machine() {
        for good in [
            "https://id.test/keys?x=1",
            "http://127.0.0.1:9/k",
            "http://[::1]/k",
            "http://localhost/k",
        ] {
            check("https://id.test/keys", good, "");
        }
        for bad in [
            "http://id.test/keys",
            "http://127.0.0.1.id.test/k",
            "http://10.0.0.1/k",
            "ftp://id.test/keys",
        ] {
            check("https://id.test/keys", bad, "must start with https://");
        }
        for bad in ["id.test/keys", "https://", "/keys", "data:,x", "file://localhost/keys"] {
            check("https://id.test/keys", bad, "must be a URL");
        }
        check("https://id.test/keys", "https://me:pw@id.test/keys", "must not contain a user");
    }

    #[test]
    fn limits_of_unknown_tenants_are_read_where_one_may_be_unknown() {
        let without =
            SHIPPED.replace("unknown_limits = [\"address\"]", "unknown_limits = [\"adress\"]");
        for verify in ["verify = \"none\"", JWT] {
            assert!(
                read(&without, verify).1.is_empty(),
                "each request charges a tenant or `refused`"
            );
        }
        let by_address = without.replace("unknown = \"own_key\"", "unknown = \"by_address\"");
        let (_, found) = read(&by_address, "verify = \"none\"");
        assert_eq!(found, ["unknown limit `adress`; did you mean `address`?"]);
    }

    #[test]
    fn a_token_names_the_tenant_of_a_route_without_names() {
        let of =
            "path = \"/v1/{*rest}\"            # no tenant in the path: charged to the address\n";
        let from = format!("{of}limits = [\"address\"]");
        assert!(SHIPPED.contains(&from));
        let to = format!("{of}limits = [\"workspace\", \"organisation\"]");
        let shipped = SHIPPED.replace(&from, &to);
        assert_eq!(
            read(&shipped, "verify = \"none\"").1.len(),
            2,
            "without one there is no workspace"
        );
        assert_eq!(read(&shipped, JWT).1, Vec::<String>::new());
        let anonymous = shipped.replace(&to, &format!("verify = \"none\"\n{to}"));
        assert_eq!(read(&anonymous, JWT).1.len(), 2);
    }

    #[test]
    fn exempt_anonymous_and_other_planes_need_no_token() {
        let (rules, found) = read(
            &SHIPPED
                .replace("path = \"/openapi.json\"", "verify = \"none\"\npath = \"/openapi.json\""),
            JWT,
        );
        assert_eq!(found, Vec::<String>::new());
        for route in &rules.routes {
            let anonymous = ["/openapi.json", "/dashboard/{*rest}"];
            let is_anonymous = anonymous.contains(&&*route.pattern.text);
            let is_control = rules.planes[route.plane].name == "control";
            let free = route.exempt || !is_control || is_anonymous;
            assert_eq!(route.needs_token, !free, "{}", route.pattern.text);
        }
        let (rules, _) = read(SHIPPED, "verify = \"none\"");
        assert!(rules.routes.iter().all(|route| !route.needs_token));
    }
}
