//! Reports limits whose keys the requests of a route cannot have, or choose for themselves.

use weir_common::config::document::Spanned;
use weir_common::directory::Instance;

use crate::request::route::{Index, Pattern};
use crate::rules::Limit;
use crate::rules::compile::Checker;
use crate::settings::RawRoute;
use crate::settings::limit_key::{KeyPart, LimitKey, Missing};

/// The most claims that limits count by: the value of each is cached with every token.
const CLAIMS_MAX: usize = 16;

/// Which parts of keys the requests of a route may have.
pub(super) struct NamedParts {
    workspace: bool,
    pub(super) organisation: bool,
    instance: bool,
    claims: bool,
}

impl Checker<'_> {
    /// Reports more claims than are cached with a token.
    pub(super) fn check_claims(&self) {
        let mut known = Vec::new();
        for (name, limit) in &self.raw.limits {
            for claim in limit.key.claims() {
                if known.contains(&claim) {
                    continue;
                }
                known.push(claim);
                if known.len() == CLAIMS_MAX + 1 {
                    let text = format!("limits can count by at most {CLAIMS_MAX} claims");
                    self.document.fault(name.at, format!("{text}: claim:{claim} is one more"));
                }
            }
        }
    }

    /// Which parts a request may have. A token may always name a workspace and an organisation.
    pub(super) fn named(&self, pattern: &Pattern, plane: Index, needs_token: bool) -> NamedParts {
        let instance = self.names_instance(plane);
        let has_workspace = |instance: &Instance| instance.workspace.is_some();
        let by_instance =
            instance && (!self.is_file() || self.directory.instances.values().any(has_workspace));
        let workspace = pattern.workspace_at.is_some() || by_instance || needs_token;
        let organisation = pattern.organisation_at.is_some() || workspace;
        NamedParts { workspace, organisation, instance, claims: needs_token }
    }

    /// Reports a limit whose key no request of a route can have.
    pub(super) fn check_key(&self, limit: &Spanned<String>, key: &LimitKey, named: &NamedParts) {
        for part in key.parts() {
            let (found, needed) = match part {
                KeyPart::Workspace => (named.workspace, "its path needs {workspace}"),
                KeyPart::Organisation => {
                    (named.organisation, "its path needs {organisation} or {workspace}")
                }
                KeyPart::Instance => (named.instance, "a host of its plane needs {instance}"),
                KeyPart::Claim(_) => (
                    named.claims,
                    "only a route that needs a token has claims: see [identity], `verify` and \
                     `planes`",
                ),
                KeyPart::Address | KeyPart::Header(_) => (true, ""),
            };
            if !found {
                let kept = format!("limit `{}` is kept by {part}", limit.value);
                self.document.fault(limit.at, format!("{kept}, and this route has none: {needed}"));
            }
        }
    }

    /// Reports a route that refuses by headers alone: with a new value for each request a client
    /// is never refused.
    pub(super) fn check_choice(&self, route: &RawRoute, own: &[Index], limits: &[Limit]) {
        let mut enforced = own
            .iter()
            .filter_map(|index| limits.get(*index))
            .filter(|limit| limit.enforced)
            .peekable();
        let Some(first) = enforced.peek().copied() else { return };
        if enforced.all(|limit| limit.key.is_clients_choice()) {
            let named = route.limits.iter().find(|name| *name.value == *first.name);
            let text = format!(
                "limit `{}` is kept by {}, and this route has no other that refuses: a client \
                 chooses its headers, so add a limit by address, tenant or claim",
                first.name, first.key
            );
            self.document.fault(named.map_or(route.at, |name| name.at), text);
        }
    }

    /// Whether a limit may charge a request of a route to its address.
    pub(super) fn may_be_by_address(&self, key: &LimitKey, pattern: &Pattern) -> bool {
        let named = pattern.workspace_at.is_some();
        let may_lack = |part: &KeyPart| match part {
            KeyPart::Workspace => !named,
            KeyPart::Organisation => !named && pattern.organisation_at.is_none(),
            KeyPart::Claim(_) => true,
            KeyPart::Instance | KeyPart::Address | KeyPart::Header(_) => false,
        };
        let lacks = key.missing == Missing::Address && key.parts().iter().any(may_lack);
        lacks || (self.by_address() && key.parts().iter().any(KeyPart::is_tenant))
    }
}

#[cfg(test)]
mod tests {
    use weir_common::config::document::Document;
    use weir_common::directory::Directory;

    use crate::limit::key::Seed;

    const SHIPPED: &str = include_str!("../../../../config/gateway.toml");
    const JWT: &str = "verify = \"jwt\"\nplanes = [\"control\"]\njwt.issuer = \"https://id.test\"\n\
        jwt.audience = [\"api\"]\njwt.jwks_url = \"https://id.test/keys\"\n";
    const DIRECTORY: &str = "[workspaces.ws_a]\nplan = \"pro\"\n";

    /// The problems in the shipped settings with this `[limits.own]`, which the route of `path` has
    /// in place of its own limits, and with or without tokens.
    fn diagnostics(own: &str, path: &str, limits: &str, more: [&str; 2]) -> Vec<String> {
        let [identity, directory] = more;
        let (before, route) = SHIPPED.split_once(&format!("path = \"{path}\"")).unwrap();
        let at = route.find("limits = [").unwrap();
        let (head, rest) = route.split_at(at);
        let rest = rest.split_once('\n').unwrap().1;
        let own = limit("own", "").replace("key = \n", &format!("{own}\n"));
        let text = format!("{before}path = \"{path}\"{head}limits = [{limits}]\n{rest}\n{own}");
        problems_of(&text.replacen("verify = \"none\"", identity, 1), directory)
    }

    fn limit(name: &str, key: &str) -> String {
        let values = "algorithm = \"rolling_window\"\nrequests = 1\nwindow = \"1s\"";
        format!("[limits.{name}]\nkey = {key}\n{values}\n")
    }

    fn problems(settings: &str) -> Vec<String> {
        problems_of(settings, "")
    }

    fn problems_of(settings: &str, directory: &str) -> Vec<String> {
        let (document, of_directory) =
            (Document::new("g", settings), Document::new("d", directory));
        let raw = crate::settings::read::read(&document).made;
        let directory = Directory::read(&of_directory, &raw.settings.workspaces);
        let seed = Seed::new([1; 16]);
        let _ = crate::rules::compile::check((&raw, &document), (&directory, &of_directory), seed);
        let all = document.diagnostics().into_iter().chain(of_directory.diagnostics());
        all.map(|diagnostic| diagnostic.message).collect()
    }

    const OPEN: &str = "/openapi.json";
    const OF_WORKSPACE: &str = "/v1/workspaces/{workspace}/{*rest}";
    const UNVERIFIED: [&str; 2] = ["verify = \"none\"", ""];

    #[track_caller]
    fn check(own: &str, path: &str, limits: &str, verify: &str, problem: &str) {
        let found = diagnostics(own, path, limits, [verify, ""]);
        match problem {
            "" => assert!(found.is_empty(), "{found:?}"),
            problem => assert!(found.len() == 1 && found[0].contains(problem), "{found:?}"),
        }
    }

    #[test]
    fn a_claim_needs_a_route_that_needs_a_token() {
        let claim = "key = \"claim:sub\"";
        check(claim, OF_WORKSPACE, "\"own\"", JWT, "");
        let problem = "limit `own` is kept by claim:sub, and this route has none: only a route \
                       that needs a token";
        check(claim, OF_WORKSPACE, "\"own\"", UNVERIFIED[0], problem);
        let shared = "key = [\"workspace\", \"claim:sub\"]\nmissing = \"shared\"";
        check(shared, OF_WORKSPACE, "\"own\"", UNVERIFIED[0], problem);
        check(shared, OF_WORKSPACE, "\"own\"", JWT, "");
    }

    #[test]
    fn every_part_of_a_key_must_be_one_that_a_route_has() {
        let key = "key = [\"workspace\", \"address\"]";
        check(key, OF_WORKSPACE, "\"own\"", UNVERIFIED[0], "");
        let problem = "limit `own` is kept by workspace, and this route has none";
        check(key, OPEN, "\"own\"", UNVERIFIED[0], problem);
        let key = "key = [\"workspace\", \"instance\"]";
        let problem = "limit `own` is kept by instance, and this route has none";
        check(key, OF_WORKSPACE, "\"own\"", UNVERIFIED[0], problem);
    }

    #[test]
    fn a_route_that_refuses_by_headers_alone_is_reported() {
        let problem = "limit `own` is kept by header:x-key, and this route has no other that \
                       refuses: a client chooses its headers";
        let header = "key = \"header:X-Key\"";
        check(header, OPEN, "\"own\"", UNVERIFIED[0], problem);
        check(header, OPEN, "\"own\", \"address\"", UNVERIFIED[0], "");
        check("key = [\"header:X-Key\", \"address\"]", OPEN, "\"own\"", UNVERIFIED[0], "");
        let two = "key = [\"header:a\", \"header:b\"]";
        check(two, OPEN, "\"own\"", UNVERIFIED[0], "is kept by header:a/header:b, and this route");
        let observed = format!("{header}\nmode = \"observe\"");
        check(&observed, OPEN, "\"own\"", UNVERIFIED[0], "");
    }

    #[test]
    fn a_tenants_values_belong_to_the_only_tenant_of_a_key() {
        let own = |key: &str| {
            let directory = format!("{DIRECTORY}limits.own = {{ requests = 2 }}\n");
            diagnostics(&format!("key = {key}"), OF_WORKSPACE, "\"own\"", [JWT, &directory])
        };
        assert!(own("[\"workspace\", \"claim:sub\"]").is_empty());
        for (key, kept) in [
            ("[\"workspace\", \"organisation\"]", "workspace/organisation"),
            ("\"claim:sub\"", "claim:sub"),
            ("[\"organisation\", \"claim:sub\"]", "organisation/claim:sub"),
        ] {
            assert_eq!(own(key), [format!("limit `own` is kept by {kept}, not by workspace")]);
        }
    }

    #[test]
    fn a_plan_has_values_only_for_a_limit_with_one_tenant() {
        let with = |key: &str| {
            let plan = "[plans.pro]\nlimits.own = { requests = 2 }";
            let text = SHIPPED.replacen("[plans.pro]", plan, 1);
            problems(&format!("{text}\n{}", limit("own", key)))
        };
        assert!(with("[\"workspace\", \"claim:sub\"]").is_empty());
        for key in ["\"address\"", "\"claim:sub\"", "[\"workspace\", \"organisation\"]"] {
            let found = with(key);
            assert!(found.len() == 1 && found[0].contains("has no values of a plan"), "{found:?}");
        }
    }

    #[test]
    fn tokens_are_cached_with_sixteen_claims_at_most() {
        let with = |count: usize| {
            let more = (0..count).map(|nth| {
                limit(&format!("l{nth:02}"), &format!("[\"claim:c{nth}\", \"claim:c0\"]"))
            });
            problems(&format!("{SHIPPED}\n{}", more.skip(1).collect::<String>()))
        };
        assert!(with(16).is_empty());
        let text = "limits can count by at most 16 claims: claim:c16 is one more";
        assert_eq!(with(18), [text]);
    }
}
