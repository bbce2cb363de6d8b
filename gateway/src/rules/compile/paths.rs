//! Finds routes that match the same request without an order between them, and contradictions
//! within one route.

use http::Method;

use crate::limit::CHECKS_MAX;
use crate::request::route::{Index, Paths, RouteEntry};
use crate::rules::Route;
use crate::rules::compile::Checker;
use crate::settings::RawRoute;

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
    /// Whether it has a restriction that `other` does not have: a limit, a bound on the body, a
    /// required token, or a tenant that the token must reach.
    fn is_stricter_than(&self, other: &Self) -> bool {
        let counts_more = self.limits.iter().any(|limit| !other.limits.contains(limit));
        let bounds_more = self.batch.is_some_and(|own| {
            other.batch.is_none_or(|other| {
                own.items_max < other.items_max || own.bytes_max < other.bytes_max
            })
        });
        let names_more = [
            (self.pattern.workspace_at, other.pattern.workspace_at),
            (self.pattern.organisation_at, other.pattern.organisation_at),
        ];
        counts_more
            || bounds_more
            || (self.needs_token && !other.needs_token)
            || names_more.iter().any(|(own, other)| own.is_some() && own != other)
    }
}
