//! Finds routes that match the same request without an order between them, and contradictions
//! within one route.

use http::Method;

use crate::limit::CHECKS_MAX;
use crate::request::route::{Index, Paths, RouteEntry};
use crate::rules::Route;
use crate::rules::compile::Checker;
use crate::settings::{RawRoute, RouteCost};

impl Checker<'_> {
    /// Compiles the paths of each plane.
    pub(super) fn paths(&self, routes: &[Route]) -> Vec<Paths> {
        for (route, raw) in routes.iter().zip(&self.raw.routes) {
            self.exemption(route, raw);
            if route.spellings.escaped_slash && !route.pattern.has_rest {
                let why = "`escaped_slash` needs a path that ends in {*rest}: decoded, a path with \
                           %2F in it has more segments";
                self.document.fault(raw.at, why);
            }
        }
        (0..self.raw.planes.len()).map(|plane| self.paths_of(plane, routes)).collect()
    }

    fn paths_of(&self, plane: Index, routes: &[Route]) -> Paths {
        let entries = routes.iter().enumerate().filter(|(_, route)| route.plane == plane);
        let entries: Vec<RouteEntry<'_>> = entries
            .map(|(at, route)| RouteEntry {
                route: at,
                pattern: &route.pattern,
                methods: &route.methods,
                spellings: route.spellings,
            })
            .collect();
        let is_stricter = |one: Index, other: Index| match (routes.get(one), routes.get(other)) {
            (Some(one), Some(other)) => one.is_stricter_than(other),
            _ => false,
        };
        let (paths, undecided) = Paths::new(&entries, is_stricter);
        for (later, earlier) in undecided {
            self.undecided(routes, later, earlier);
        }
        paths
    }

    /// Reports two routes that match the same requests without an order between them.
    fn undecided(&self, routes: &[Route], later: Index, earlier: Index) {
        let raw = |at: Index| self.raw.routes.get(at).map_or(0, |route| route.at);
        let (Some(one), Some(other)) = (routes.get(later), routes.get(earlier)) else { return };
        // A path with an error was reported already; its pattern is that of `/`.
        let is_read = |(at, route): (Index, &Route)| {
            let raw = self.raw.routes.get(at).and_then(|raw| raw.path.as_ref());
            raw.is_some_and(|raw| raw.value == route.pattern.text)
        };
        if ![(later, one), (earlier, other)].into_iter().all(is_read) {
            return;
        }
        let methods: Vec<&str> = one.methods.iter().map(Method::as_str).collect();
        let shared = |method: &&str| other.methods.iter().any(|own| own.as_str() == *method);
        let shared: Vec<&str> = methods.into_iter().filter(shared).collect();
        let shared = if shared.is_empty() { "all methods".to_owned() } else { shared.join(", ") };
        let line = self.document.line(raw(earlier));
        let text = format!(
            "no order decides between `{}` here and `{}` of the route in line {line}, for \
             {shared}: change a path or `methods` of one",
            one.pattern.text, other.pattern.text
        );
        self.document.fault(raw(later), text);
    }

    /// Reports a route whose limits and exemption contradict each other, and a batch route whose
    /// methods are not `POST` alone.
    fn exemption(&self, route: &Route, raw: &RawRoute) {
        let reads_only = !route.methods.is_empty()
            && route.methods.iter().all(|method| *method == Method::GET || *method == Method::HEAD);
        let has_limits = !raw.limits.is_empty();
        let methods = raw.methods.iter().map(|method| method.value.as_str());
        let methods = match raw.methods.is_empty() {
            true => "all methods".to_owned(),
            false => format!("{:?}", methods.collect::<Vec<_>>()),
        };
        let fault = |text: String| self.document.fault(raw.at, text);
        match (route.exempt, has_limits) {
            (true, true) => {
                let why = "a route cannot have both limits and exempt = true: remove one of them";
                fault(why.to_owned());
            }
            (true, false) if !reads_only => {
                let allowed = "methods = [\"GET\", \"HEAD\"], or one of these";
                fault(format!("a route with exempt = true needs {allowed}, not {methods}"));
            }
            (false, false) => {
                fault("a route needs limits, such as [\"address\"], or exempt = true".to_owned());
            }
            _ => {}
        }
        if raw.limits.len() > CHECKS_MAX {
            fault(format!(
                "a route can have at most {CHECKS_MAX} limits, not {}",
                raw.limits.len()
            ));
        }
        if route.batch.is_some() && route.exempt {
            let why = "a route cannot have both batch_items_max and exempt = true";
            fault(format!("{why}: remove one of them"));
        } else if route.batch.is_some() && route.methods != [Method::POST] {
            let allowed = "methods = [\"POST\"]";
            fault(format!("a route with batch_items_max needs {allowed}, not {methods}"));
        }
    }
}

impl Route {
    /// Whether it has a restriction that `other` does not have: a limit, a higher cost, a bound on
    /// the body, a required token, or a tenant that the token must reach.
    fn is_stricter_than(&self, other: &Self) -> bool {
        let counts_more = self.limits.iter().any(|limit| !other.limits.contains(limit));
        let bounds_more =
            self.items_max() < other.items_max() || self.bytes_max() < other.bytes_max();
        let names_more = [
            (self.pattern.workspace_at, other.pattern.workspace_at),
            (self.pattern.organisation_at, other.pattern.organisation_at),
        ];
        counts_more
            || self.may_cost_more_than(other)
            || bounds_more
            || (self.needs_token && !other.needs_token)
            || names_more.iter().any(|(own, other)| own.is_some() && own != other)
    }

    /// Whether some request costs more in a limit of this route than in the same one of `other`.
    fn may_cost_more_than(&self, other: &Self) -> bool {
        let costs_more = match (self.cost, other.cost) {
            (RouteCost::Fixed(own), RouteCost::Fixed(other)) => own > other,
            (RouteCost::Fixed(own), RouteCost::Items) => own > 1,
            (RouteCost::Items, RouteCost::Fixed(other)) => self.items_max() > u64::from(other),
            (RouteCost::Items, RouteCost::Items) => false,
        };
        costs_more && !self.limits.is_empty()
    }

    /// The most items of a body.
    fn items_max(&self) -> u64 {
        self.batch.map_or(u64::MAX, |batch| batch.items_max)
    }

    /// The largest body, in bytes.
    fn bytes_max(&self) -> u64 {
        let of_batch = self.batch.map(|batch| batch.bytes_max);
        of_batch.or(self.body_bytes_max).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use http::Method;
    use weir_common::config::document::Document;
    use weir_common::directory::Directory;

    use crate::limit::key::Seed;
    use crate::request::target::{self, Malformed};
    use crate::rules::{RouteError, Rules};

    const SHIPPED: &str = include_str!("../../../../config/gateway.toml");

    /// The shipped settings, where `/export` and the rest of a workspace are routes with the same
    /// limits and these lines.
    fn rules(export: &str, rest: &str) -> Rules {
        let start = "[[routes]]\nplane = \"control\"\n";
        let path = "path = \"/v1/workspaces/{workspace}/{*rest}\"\n";
        let (before, after) = SHIPPED.split_once(path).unwrap();
        let own = "path = \"/v1/workspaces/{workspace}/export\"\n\
            limits = [\"workspace\", \"organisation\"]\nupstream = \"control\"\n";
        let text = format!("{before}{own}{export}\n{start}{path}{rest}\n{after}");
        let (document, of_directory) = (Document::new("g", &text), Document::new("d", ""));
        let raw = crate::settings::read::read(&document).made;
        let directory = Directory::read(&of_directory, &raw.settings.workspaces);
        let seed = Seed::new([1; 16]);
        let rules =
            crate::rules::compile::check((&raw, &document), (&directory, &of_directory), seed);
        assert_eq!(document.diagnostics(), []);
        rules
    }

    #[test]
    fn a_path_that_resembles_a_route_that_costs_more_or_bounds_bodies_is_refused() {
        const BATCH: &str = "methods = [\"POST\"]\nbatch_items_max = 9\n";
        let items = format!("{BATCH}cost = \"items\"");
        let five = format!("{BATCH}cost = 5");
        for (export, rest, is_refused) in [
            ("", "", false),
            ("cost = 25", "", true),
            ("cost = 25", "cost = 24", true),
            ("cost = 25", "cost = 25", false),
            ("cost = 25", "cost = 26", false),
            ("body_bytes_max = \"1KiB\"", "", true),
            ("body_bytes_max = \"1KiB\"", "body_bytes_max = \"2KiB\"", true),
            ("body_bytes_max = \"2KiB\"", "body_bytes_max = \"1KiB\"", false),
            ("", "body_bytes_max = \"1KiB\"", false),
            (&items, BATCH, true),
            (&items, &items, false),
            (&items, &five, true),
            (&five, &items, true),
            (&five, &five, false),
            (&five, "body_bytes_max = \"1KiB\"", true),
        ] {
            let rules = rules(export, rest);
            for end in ["Export", "export.json", "export%20", "%20/export"] {
                let path = format!("/v1/workspaces/ws_a/{end}");
                let target = target::read(path.as_bytes(), Some(b"api.localhost")).unwrap();
                let found = rules.match_route(&target, &Method::POST).map(|_| ());
                let expected = Err(RouteError::Malformed(Malformed::OtherRoute));
                let expected = if is_refused { expected } else { Ok(()) };
                assert_eq!(found, expected, "{path}: {export} beside {rest}");
            }
        }
    }
}
