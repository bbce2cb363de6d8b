//! Compiles settings and directory into rules, and reports contradictions between them.
//!
//! Every problem is reported in the document that has it. Rules compiled from a document with
//! problems serve to find further ones, and are never activated.
//!
//! Not here: errors of a single value (`settings`).

mod bodies;
mod cors;
mod identity;
mod keys;
mod paths;
mod slots;
pub mod tenants;

use std::sync::Arc;

use http::Method;
use weir_common::config::document::{Document, Spanned, suggestion};
use weir_common::directory::values::{Values, ValuesError};
use weir_common::directory::{Directory, is_host};

use crate::limit::key::Seed;
use crate::limit::{CHECKS_MAX, Horizon, Quota, StoreFailure};
use crate::request::route::{Hosts, Index, Pattern};
use crate::rules::{Limit, Plan, Route, Rules};
use crate::settings::directory::{DirectorySource, Unknown};
use crate::settings::limit_key::KeyPart;
use crate::settings::{REFUSED, RawLimit, RawPlan, RawRoute, RawSettings, RouteCost};

/// Compiles rules from settings and directory, and reports problems to their documents.
#[must_use]
pub fn check(
    settings: (&RawSettings, &Document),
    directory: (&Directory, &Document),
    seed: Seed,
) -> Rules {
    let ((raw, document), (directory, of_directory)) = (settings, directory);
    let checker = Checker { raw, document, directory, of_directory, seed };
    let limits = checker.limits();
    let plans = checker.plans(&limits);
    let routes = checker.routes(&limits);
    let unknown_limits = checker.unknown_limits(&limits, &routes);
    let tenants = checker.tenants(&limits, &plans);
    let hosts = checker.hosts();
    let paths = checker.paths(&routes);
    let planes = checker.planes();
    checker.token_planes();
    let mut rules = Rules {
        routes,
        plans,
        planes,
        tenants: Arc::new(tenants),
        workspaces: raw.settings.workspaces.clone(),
        is_file: checker.is_file(),
        by_address: checker.by_address(),
        is_cluster: checker.is_cluster(),
        hosts: Arc::new(hosts),
        paths,
        refused: limits.iter().position(|limit| &*limit.name == REFUSED),
        limits,
        unknown_limits,
        seed,
    };
    let widened = (0..rules.limits.len())
        .map(|index| (Horizon::of(rules.quotas_of(index)), shapes(rules.quotas_of(index))))
        .collect::<Vec<_>>();
    for (limit, (horizon, shapes)) in rules.limits.iter_mut().zip(widened) {
        (limit.horizon, limit.shapes) = (horizon, shapes);
    }
    checker.check_costs(&rules);
    rules
}

/// One of each kind of quotas that differ in more than their numbers.
fn shapes(quotas: impl Iterator<Item = Quota>) -> Vec<Quota> {
    let mut shapes: Vec<Quota> = Vec::new();
    for quota in quotas {
        if !shapes.iter().any(|shape| shape.is_alike(&quota)) {
            shapes.push(quota);
        }
    }
    shapes
}

struct Checker<'c> {
    raw: &'c RawSettings,
    document: &'c Document,
    directory: &'c Directory,
    of_directory: &'c Document,
    seed: Seed,
}

impl Checker<'_> {
    fn limits(&self) -> Vec<Limit> {
        let limit = |(name, limit): &(Spanned<String>, RawLimit)| {
            let [tag, in_flight] = Limit::tags(&self.seed, &name.value);
            Limit {
                name: name.value.as_str().into(),
                tag,
                in_flight,
                key: limit.key.clone(),
                quota: limit.quota,
                horizon: Horizon::of([limit.quota]),
                shapes: vec![limit.quota],
                enforced: limit.enforced,
                shown: limit.shown,
                warn_at: limit.warn_at,
                on_failure: limit.on_failure,
            }
        };
        for (name, limit) in &self.raw.limits {
            let in_flight = matches!(limit.quota, Quota::Concurrency(_));
            if name.value == REFUSED && (in_flight || !limit.key.is_address()) {
                let needed = "it needs key = \"address\" and no algorithm = \"concurrency\"";
                let text = format!("`refused` counts the gateway's own refusals: {needed}");
                self.document.fault(name.at, text);
            }
            if name.value == REFUSED && limit.on_failure == StoreFailure::Refuse {
                let text = "on_store_failure = \"refuse\" of `refused` would replace the gateway's \
                            own refusals by 503: use \"local_share\" or \"allow\"";
                self.document.fault(name.at, text);
            }
            if !weir_common::identifier::is_identifier(&name.value) {
                const NAME: &str = "use 1 to 64 of A-Z a-z 0-9 _ -";
                self.document
                    .fault(name.at, format!("`{}` is not a limit's name: {NAME}", name.value));
            }
        }
        self.check_claims();
        self.raw.limits.iter().map(limit).collect()
    }

    fn plans(&self, limits: &[Limit]) -> Vec<Plan> {
        let plan = |(name, plan): &(Spanned<String>, RawPlan)| Plan {
            name: name.value.clone(),
            per_instance_limits: plan.per_instance_limits,
            quotas: quotas(self.document, &plan.limits, limits, None),
        };
        self.raw.plans.iter().map(plan).collect()
    }

    fn routes(&self, limits: &[Limit]) -> Vec<Route> {
        if self.raw.routes.is_empty() {
            self.document.fault(0, "there are no [[routes]]: every request would be refused");
        }
        self.raw.routes.iter().map(|route| self.route(route, limits)).collect()
    }

    fn route(&self, route: &RawRoute, limits: &[Limit]) -> Route {
        let find = |name: &Option<Spanned<String>>, what, known: Vec<&str>| {
            name.as_ref()
                .and_then(|name| lookup(self.document, name, what, known))
                .unwrap_or_default()
        };
        let plane = find(&route.plane, "plane", names(&self.raw.planes, |(name, _)| &name.value));
        let upstreams = names(&self.raw.settings.upstreams, |upstream| &upstream.name);
        let upstream = find(&route.upstream, "upstream", upstreams);
        let pattern = route.path.as_ref().map(|path| {
            let read = Pattern::read(&path.value);
            read.map_err(|why| self.document.fault(path.at, why)).ok()
        });
        let pattern =
            pattern.flatten().unwrap_or_else(|| Pattern::read("/").expect("`/` is a path"));
        let methods = route.methods.iter().filter_map(|method| self.method(method)).collect();
        let needs_token = self.needs_token(route, plane);
        let named = self.named(&pattern, plane, needs_token);
        let mut own_limits = Vec::new();
        for name in &route.limits {
            let known = names(limits, |limit| &limit.name);
            let Some(index) = lookup(self.document, name, "limit", known) else { continue };
            if own_limits.contains(&index) {
                self.document.fault(name.at, format!("limit `{}` is listed twice", name.value));
                continue;
            }
            if let Some(limit) = limits.get(index) {
                self.check_key(name, &limit.key, &named);
            }
            own_limits.push(index);
        }
        self.check_choice(route, &own_limits, limits);
        self.check_slots(route, &pattern, &own_limits, limits);
        let (batch, body_bytes_max) = self.body(route);
        let (exempt, limits, spellings) = (route.exempt, own_limits, route.spellings);
        let cost = route.cost.as_ref().map_or(RouteCost::Fixed(1), |cost| cost.value);
        let answers_limits = self.answers_limits(route, needs_token, &named);
        Route {
            pattern,
            plane,
            methods,
            exempt,
            limits,
            upstream,
            cost,
            batch,
            body_bytes_max,
            answers_limits,
            needs_token,
            spellings,
        }
    }

    fn method(&self, name: &Spanned<String>) -> Option<Method> {
        let is_valid =
            !name.value.is_empty() && name.value.bytes().all(|byte| byte.is_ascii_uppercase());
        if !is_valid {
            let text = format!("`{}` is not a method: write it in capitals, as GET", name.value);
            self.document.fault(name.at, text);
        }
        if name.value == "CONNECT" {
            self.document.fault(name.at, "the gateway refuses every CONNECT: no route can have it");
        }
        name.value.parse().ok()
    }

    /// Whether the directory is a file, which lists all tenants.
    fn is_file(&self) -> bool {
        matches!(self.raw.settings.directory.source, DirectorySource::File(_))
    }

    /// Whether tenants that the directory does not know are charged to the client's address.
    fn by_address(&self) -> bool {
        self.raw.settings.directory.unknown == Unknown::ByAddress
    }

    /// Whether a plane's hosts name instances.
    fn names_instance(&self, plane: Index) -> bool {
        let plane = self.raw.planes.get(plane);
        plane.is_some_and(|(_, plane)| {
            plane.hosts.iter().any(|host| host.value.starts_with("{instance}."))
        })
    }

    fn unknown_limits(&self, limits: &[Limit], routes: &[Route]) -> Vec<Index> {
        let may_lack_part = |route: &Route| {
            let mut own = route.limits.iter().filter_map(|index| limits.get(*index));
            own.any(|limit| self.may_be_by_address(&limit.key, &route.pattern))
        };
        if !routes.iter().any(may_lack_part) {
            return Vec::new();
        }
        let mut found = Vec::new();
        for name in &self.raw.unknown_limits {
            let known = names(limits, |limit| &limit.name);
            let Some(index) = lookup(self.document, name, "limit", known) else { continue };
            if limits.get(index).is_some_and(|limit| !limit.key.is_address()) {
                let needed = "unknown_limits needs limits with key = \"address\"";
                self.document.fault(name.at, format!("{needed}, which `{}` has not", name.value));
            }
            if found.contains(&index) {
                self.document.fault(name.at, format!("limit `{}` is listed twice", name.value));
            }
            found.push(index);
        }
        let most = routes.iter().map(|route| route.limits.len()).max().unwrap_or_default();
        if most + found.len() > CHECKS_MAX {
            let at = self.raw.unknown_limits.first().map_or(0, |name| name.at);
            let sum = format!("{most} of a route and {} of unknown_limits", found.len());
            let text = format!("a request can have at most {CHECKS_MAX} limits, not {sum}");
            self.document.fault(at, text);
        }
        found
    }

    fn hosts(&self) -> Hosts {
        let mut hosts = Hosts::default();
        if self.raw.planes.is_empty() {
            self.document.fault(0, "there are no [planes]: every host would be unknown");
        }
        for (index, (name, plane)) in self.raw.planes.iter().enumerate() {
            if plane.hosts.is_empty() {
                let example = "hosts = [\"api.example.com\"]";
                let text = format!("plane `{}` has no hosts: list them, as {example}", name.value);
                self.document.fault(name.at, text);
            }
            for host in &plane.hosts {
                let plain = host.value.strip_prefix("{instance}.").unwrap_or(&host.value);
                let bracketed = plain.starts_with('[') && plain.ends_with(']');
                if !is_host(plain) && !bracketed {
                    let how = match plain.contains('{') {
                        true => {
                            "only `{instance}` may stand for a label, and only for the first, as \
                             {instance}.example.com"
                        }
                        false => "write a name in lower case, without a port",
                    };
                    self.document.fault(host.at, format!("`{}` is not a host: {how}", host.value));
                } else if !hosts.add(&host.value, index, None) {
                    let own = plane.hosts.iter().filter(|own| own.value == host.value).count() > 1;
                    let why = if own { "is listed twice" } else { "belongs to another plane" };
                    self.document.fault(host.at, format!("`{}` {why}", host.value));
                }
            }
        }
        self.domains(&mut hosts);
        hosts
    }
}

/// The quotas that result from a plan's or a tenant's own values of limits.
fn quotas(
    document: &Document,
    values: &[(Spanned<String>, Values)],
    limits: &[Limit],
    key: Option<&KeyPart>,
) -> Vec<(Index, Quota)> {
    let mut quotas = Vec::new();
    for (name, values) in values {
        let Some(index) = lookup(document, name, "limit", names(limits, |limit| &limit.name))
        else {
            continue;
        };
        let Some(limit) = limits.get(index) else { continue };
        let kept = format!("limit `{}` is kept by {}", limit.name, limit.key);
        match (key, limit.key.tenant()) {
            (None, None) => {
                let needed = "which has no values of a plan: that needs one tenant in its key";
                document.fault(name.at, format!("{kept}, {needed}"));
            }
            (Some(here), own) if own != Some(here) => {
                document.fault(name.at, format!("{kept}, not by {here}"));
            }
            _ => {}
        }
        match values.over(Some(limit.quota)) {
            Ok(quota) => quotas.push((index, quota)),
            // What is wrong with the only value is reported already.
            Err(ValuesError::Nothing(_)) if document.count() > 0 => {}
            Err(error) => {
                document.fault(name.at, format!("limit `{}`: {}", limit.name, error.message()));
            }
        }
    }
    quotas
}

fn names<T>(all: &[T], name: impl Fn(&T) -> &str) -> Vec<&str> {
    all.iter().map(name).collect()
}

/// The index of `name` among the known names; reports an unknown one with a suggestion.
fn lookup(
    document: &Document,
    name: &Spanned<String>,
    what: &str,
    known: Vec<&str>,
) -> Option<Index> {
    let found = known.iter().position(|known| *known == name.value);
    if found.is_none() {
        let all = match known.is_empty() {
            true => format!("no {what} is defined"),
            false => format!("known: {}", known.join(", ")),
        };
        let hint = suggestion(&name.value, &known).unwrap_or(all);
        document.fault(name.at, format!("unknown {what} `{}`; {hint}", name.value));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: Seed = Seed::new([1; 16]);
    const SHIPPED: &str = include_str!("../../../config/gateway.toml");
    const DIRECTORY: &str = "[organisations.org_a]\n[workspaces.ws_a]\norganisation = \"org_a\"\n\
        plan = \"pro\"\n[instances.in_a]\nworkspace = \"ws_a\"\n";

    /// The problems in the shipped settings after replacing `from` by `to`, and in a directory.
    fn diagnostics(from: &str, to: &str, directory: &str) -> Vec<String> {
        assert!(SHIPPED.contains(from), "{from} is not in the shipped settings");
        let document = Document::new("g", &SHIPPED.replacen(from, to, 1));
        let of_directory = Document::new("d", directory);
        let raw = crate::settings::read::read(&document).made;
        let directory = Directory::read(&of_directory, &raw.settings.workspaces);
        let _ = check((&raw, &document), (&directory, &of_directory), SEED);
        let all = document.diagnostics().into_iter().chain(of_directory.diagnostics());
        // Lines are left out: they depend on the comments in the shipped file.
        all.map(|diagnostic| diagnostic.message).collect()
    }

    fn of_settings(from: &str, to: &str) -> Vec<String> {
        diagnostics(from, to, DIRECTORY)
    }

    fn of_directory(more: &str) -> Vec<String> {
        diagnostics("", "", &format!("{DIRECTORY}{more}"))
    }

    #[test]
    fn the_shipped_settings_have_no_problems() {
        assert!(of_settings("", "").is_empty());
    }

    #[test]
    fn an_unknown_name_is_reported_with_a_suggestion() {
        for (from, to, message) in [
            (
                "limits = [\"batch\"]",
                "limits = [\"bacth\"]",
                "unknown limit `bacth`; did you mean `batch`?",
            ),
            (
                "upstream = \"dispatcher\"",
                "upstream = \"dispatchr\"",
                "unknown upstream `dispatchr`; did you mean `dispatcher`?",
            ),
            (
                "plane = \"control\"",
                "plane = \"contrl\"",
                "unknown plane `contrl`; did you mean `control`?",
            ),
        ] {
            let found = of_settings(from, to);
            assert!(found.iter().any(|found| found.starts_with(message)), "{to}: {found:?}");
        }
    }

    #[test]
    fn a_limit_whose_key_no_request_has_is_reported() {
        let found = of_settings(
            "limits = [\"address\"]\nupstream = \"control\"",
            "limits = [\"workspace\"]\nupstream = \"control\"",
        );
        assert_eq!(
            found,
            ["limit `workspace` is kept by workspace, and this route has none: its path needs \
              {workspace}"]
        );
        let found = of_settings("limits = [\"batch\"]", "limits = [\"instance\"]");
        assert_eq!(
            found,
            ["limit `instance` is kept by instance, and this route has none: a host of its plane \
              needs {instance}"]
        );
    }

    #[test]
    fn a_store_away_replaces_no_refusal_of_the_gateway_itself() {
        let found =
            of_settings("[limits.refused]", "[limits.refused]\non_store_failure = \"refuse\"");
        assert_eq!(
            found,
            ["on_store_failure = \"refuse\" of `refused` would replace the gateway's own \
              refusals by 503: use \"local_share\" or \"allow\""]
        );
        let allow = "[limits.refused]\non_store_failure = \"allow\"";
        assert!(of_settings("[limits.refused]", allow).is_empty());
    }

    #[test]
    fn the_most_requests_of_a_limit_are_those_of_its_algorithm() {
        for (algorithm, most) in [
            ("rolling_window", "10000000"),
            ("concurrency", "1000000"),
            ("calendar_day", "1000000000"),
        ] {
            let limit = "[limits.more]\nkey = \"address\"\n";
            let limit = format!("{limit}algorithm = \"{algorithm}\"\nrequests = 0\n");
            let found = of_settings("[limits.refused]", &format!("{limit}[limits.refused]"));
            let text = "limits.more.requests must be a whole number from 1 to";
            let text = format!("{text} {most}, not 0");
            assert!(found.contains(&text), "{algorithm}: {found:?}");
        }
    }

    #[test]
    fn a_hosts_pattern_that_is_none_is_reported_with_the_one_there_is() {
        for host in ["{inst}.auth.localhost", "{:id}.auth.localhost", "a.{instance}.localhost"] {
            let found = of_settings("{instance}.auth.localhost", host);
            let text = format!(
                "`{host}` is not a host: only `{{instance}}` may stand for a label, and only for \
                 the first, as {{instance}}.example.com"
            );
            assert!(found.contains(&text), "{found:?}");
        }
    }

    #[test]
    fn a_route_for_connect_is_reported() {
        let found = of_settings("methods = [\"POST\"]", "methods = [\"POST\", \"CONNECT\"]");
        assert!(found.iter().any(|one| one.contains("refuses every CONNECT")), "{found:?}");
    }

    #[test]
    fn exemption_and_limits_exclude_each_other_and_one_is_needed() {
        assert_eq!(
            of_settings("exempt = true", "exempt = true\nlimits = [\"address\"]"),
            ["a route cannot have both limits and exempt = true: remove one of them"]
        );
        assert_eq!(
            of_settings("exempt = true", "exempt = false"),
            ["a route needs limits, such as [\"address\"], or exempt = true"]
        );
        let found = of_settings(
            "methods = [\"GET\", \"HEAD\"]\npath = \"/healthz\"",
            "path = \"/healthz\"",
        );
        let allowed = "methods = [\"GET\", \"HEAD\"], or one of these";
        let text = format!("a route with exempt = true needs {allowed}, not all methods");
        assert_eq!(found, [text]);
    }

    #[test]
    fn a_duplicate_route_is_reported() {
        let line = SHIPPED.lines().position(|line| line.starts_with("path = \"/v1/{*rest}\""));
        // The line number, from 1, of its `[[routes]]`.
        let line = line.unwrap() - 1;
        let found = of_settings("path = \"/dashboard/{*rest}\"", "path = \"/v1/{*rest}\"");
        let text = format!(
            "no order decides between `/v1/{{*rest}}` here and `/v1/{{*rest}}` of the route in \
             line {line}, for all methods: change a path or `methods` of one"
        );
        assert_eq!(found, [text]);
        let twin = "methods = [\"GET\", \"POST\"]\npath = \"/v1/workspaces/{other}/tenants:batch\"";
        let found = of_settings("path = \"/dashboard/{*rest}\"", twin);
        assert!(found[0].contains("`/v1/workspaces/{workspace}/tenants:batch`"), "{found:?}");
        assert!(found[0].contains("for POST:"), "{found:?}");
    }

    #[test]
    fn a_value_of_the_other_algorithm_is_reported() {
        let found = of_settings(
            "limits.workspace = { requests = 600 }",
            "limits.workspace = { rate = 600 }",
        );
        assert_eq!(
            found,
            ["limit `workspace`: `rate` is used only with algorithm = \"token_bucket\", not with \
              \"rolling_window\", which takes requests and window: remove it"]
        );
        let found = of_settings("burst = 200", "burst = 200\nwindow = \"1s\"");
        let only = "used only with algorithm = \"rolling_window\", not with \"token_bucket\"";
        assert!(found[0].contains(&format!("`window` is {only}")), "{found:?}");
        let found = of_settings("requests = 60", "requests = 10_000_001");
        assert!(found[0].contains("or use algorithm = \"token_bucket\""), "{found:?}");
    }

    #[test]
    fn an_instance_has_its_own_values_only_on_a_plan_that_allows_it() {
        assert!(of_directory("limits.instance = { rate = 100 }").is_empty());
        let free = of_directory("limits.instance = { rate = 100 }").is_empty()
            && diagnostics("", "", &DIRECTORY.replace("pro", "free")).is_empty();
        assert!(free);
        let on_free =
            format!("{}limits.instance = {{ rate = 100 }}", DIRECTORY.replace("pro", "free"));
        assert_eq!(
            diagnostics("", "", &on_free),
            ["instance `in_a` cannot have limits of its own: the plan `free` of its workspace \
                 does not set per_instance_limits = true"]
        );
        let found = of_directory("[instances.in_b]\nlimits.instance = { rate = 1 }");
        assert_eq!(
            found,
            ["instance `in_b` cannot have limits of its own: its workspace has no plan that sets \
              per_instance_limits = true"]
        );
    }

    #[test]
    fn a_tenant_overrides_only_what_is_kept_for_its_like() {
        let found = of_directory("limits.workspace = { requests = 6 }");
        assert!(
            found.contains(&"limit `workspace` is kept by workspace, not by instance".to_owned()),
            "{found:?}"
        );
        let found = of_directory("[workspaces.ws_b]\nplan = \"por\"");
        assert_eq!(found, ["unknown plan `por`; did you mean `pro`?"]);
    }

    #[test]
    fn a_domain_needs_one_plane_that_names_instances() {
        assert!(of_directory("domains = [\"login.example\"]").is_empty());
        assert_eq!(
            of_directory("domains = [\"api.localhost\"]"),
            ["`api.localhost` is already a host of a plane"]
        );
        assert_eq!(
            of_directory("domains = [\"in_b.auth.localhost\"]"),
            ["`in_b.auth.localhost` is already a host of a plane"]
        );
        assert!(of_directory("domains = [\"auth.localhost\"]").is_empty());
        assert!(of_directory("domains = [\"a.b.auth.localhost\"]").is_empty());
        let with = format!("{DIRECTORY}domains = [\"login.example\"]");
        let found = diagnostics(
            "hosts = [\"api.localhost\"]",
            "hosts = [\"{instance}.api.localhost\"]",
            &with,
        );
        assert_eq!(found, ["domains need exactly one plane with {instance} in its hosts"]);
    }

    #[test]
    fn rules_without_tenants_know_no_domain_of_any() {
        let document = Document::new("g", SHIPPED);
        let domains = format!("{DIRECTORY}domains = [\"login.example\"]");
        let of_directory = Document::new("d", &domains);
        let raw = crate::settings::read::read(&document).made;
        let directory = Directory::read(&of_directory, &raw.settings.workspaces);
        let rules = check((&raw, &document), (&directory, &of_directory), SEED);
        assert!(rules.plane_of("login.example").is_some());
        assert_eq!(rules.without_tenants().plane_of("login.example"), None);
    }

    #[test]
    fn charging_by_address_needs_a_limit_by_address() {
        let shipped = "unknown = \"own_key\"";
        assert!(of_settings(shipped, "unknown = \"by_address\"").is_empty());
        let with = |limits: &str| {
            let settings = SHIPPED.replace(shipped, "unknown = \"by_address\"");
            let line = settings.lines().find(|line| line.starts_with("unknown_limits")).unwrap();
            settings.replace(line, &format!("unknown_limits = [{limits}]"))
        };
        for (limits, diagnostic) in [
            (
                "\"workspace\"",
                "unknown_limits needs limits with key = \"address\", which `workspace` has not",
            ),
            // The limit would be charged twice for each request.
            ("\"address\", \"address\"", "limit `address` is listed twice"),
        ] {
            let document = Document::new("g", &with(limits));
            let nothing = Document::new("d", "");
            let raw = crate::settings::read::read(&document).made;
            let _ = check((&raw, &document), (&Directory::default(), &nothing), SEED);
            let found: Vec<String> =
                document.diagnostics().into_iter().map(|m| m.message).collect();
            assert_eq!(found, [diagnostic]);
        }
    }

    #[test]
    fn an_admin_listener_for_others_needs_a_token() {
        let found = of_settings("admin = \"127.0.0.1:8081\"", "admin = \"0.0.0.0:8081\"");
        let why = "is not on loopback: set server.admin_token_file, or an address that is";
        assert_eq!(found, [format!("server.admin `0.0.0.0:8081` {why}")]);
    }

    #[test]
    fn clients_need_an_address_and_an_empty_list_is_none() {
        let shipped = "http = [\"127.0.0.1:8080\"]";
        let why = "there is no listener for clients: set server.http or server.https";
        assert_eq!(of_settings(shipped, "http = []"), [why]);
        let by_tls = "{ address = \"127.0.0.1:8443\", certificate = \"c\", key = \"k\" }";
        let secure = format!("http = []\nhttps = [{by_tls}]");
        assert!(of_settings(shipped, &secure).is_empty());
    }

    #[test]
    fn a_batch_is_posted_and_limited() {
        let found = of_settings("methods = [\"POST\"]\n", "");
        let text = "a route with batch_items_max needs methods = [\"POST\"], not all methods";
        assert_eq!(found, [text]);
        let found = of_settings("methods = [\"POST\"]\n", "methods = [\"PUT\"]\n");
        assert_eq!(found, [text.replace("all methods", "[\"PUT\"]")]);
    }

    #[test]
    fn what_can_never_work_is_refused() {
        let held = of_settings("held_bytes_max = \"256MiB\"", "held_bytes_max = \"1MiB\"");
        assert_eq!(held, Vec::<String>::new(), "as much as a batch may have");
        let held = of_settings("held_bytes_max = \"256MiB\"", "held_bytes_max = \"1000KiB\"");
        let never = "a batch of 1048576 bytes would never pass: `server.held_bytes_max` is \
            1024000; raise it, or lower `body_bytes_max` of the route";
        assert_eq!(held, [never]);
        let found = of_settings("unknown_limits = [\"address\"]", "unknown_limits = []");
        assert_eq!(found, ["`unknown_limits` is empty: name at least one, or leave it out"]);
        let found = of_settings("\"127.0.0.1:9001\"", "\"127.0.0.1:0\"");
        assert_eq!(found, ["`127.0.0.1:0` is not host:port, such as \"10.0.0.1:9001\""]);
    }
}
