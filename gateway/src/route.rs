//! Leads a host, a method and a path to a route.
//!
//! Hosts are exact names or patterns with the instance as their first label. Paths are matched
//! by segment and case-sensitively, the most specific first; a route that lists methods comes
//! before one of the same path that takes all.
//!
//! # Invariants
//!
//! 1. A path that would lead elsewhere without its `;parameters` is refused.
//! 2. Two routes never answer for the same path and method: that is a mistake in the settings.
//!
//! # Not here
//!
//! Which spellings of a target are taken (`target`), what meets a route's requests (`judge`).

use std::collections::HashMap;

use http::Method;
use matchit::Router;

use crate::target::{self, Malformed};

/// A plane, a route, a limit, a plan or an upstream: its place in the settings.
pub type Index = usize;

/// Which plane a host belongs to, and which instance it names.
#[derive(Clone, Debug, Default)]
pub struct Hosts {
    exact: HashMap<Box<str>, (Index, Option<Box<str>>)>,
    /// By what follows the first label, dot included.
    patterns: HashMap<Box<str>, Index>,
}

impl Hosts {
    /// Adds a host name, or a pattern such as `{instance}.auth.example.com`. False where it
    /// belongs to a plane already.
    pub fn add(&mut self, host: &str, plane: Index, instance: Option<&str>) -> bool {
        if let Some(rest) = host.strip_prefix("{instance}.") {
            return *self.patterns.entry(rest.into()).or_insert(plane) == plane;
        }
        if self.exact.contains_key(host) {
            return false;
        }
        self.exact.insert(host.into(), (plane, instance.map(Into::into)));
        true
    }

    /// The plane of `host` (in lower case), and the instance that it names.
    #[must_use]
    pub fn find<'a>(&'a self, host: &'a str) -> Option<(Index, Option<&'a str>)> {
        if let Some((plane, instance)) = self.exact.get(host) {
            return Some((*plane, instance.as_deref()));
        }
        let (label, rest) = host.split_once('.')?;
        Some((*self.patterns.get(rest)?, Some(label)))
    }
}

/// A route's path, and where in it the names are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// As the settings have it.
    pub text: String,
    /// Which segment, from 0, names the workspace.
    pub workspace_at: Option<usize>,
    /// Which segment, from 0, names the organisation.
    pub organisation_at: Option<usize>,
    /// As the matcher wants it: once, or with and without what `{*rest}` stands for.
    matched: Vec<String>,
}

impl Pattern {
    /// Reads a path such as `/v1/workspaces/{workspace}/{*rest}`, or says what is wrong with it.
    pub fn read(text: &str) -> Result<Self, String> {
        let Some(segments) = text.strip_prefix('/') else {
            return Err("a path starts with `/`".to_owned());
        };
        let mut pattern = Self {
            text: text.to_owned(),
            workspace_at: None,
            organisation_at: None,
            matched: Vec::new(),
        };
        let mut path = String::new();
        for (at, segment) in segments.split('/').enumerate() {
            let name = segment.strip_prefix('{').and_then(|name| name.strip_suffix('}'));
            match name {
                Some("*rest") if at + 1 == segments.split('/').count() => {
                    pattern.matched.push(if at == 0 { "/".to_owned() } else { path.clone() });
                    path.push_str("/{*rest}");
                }
                Some("*rest") => return Err("`{*rest}` comes last".to_owned()),
                Some(name) => {
                    pattern.capture(name, at)?;
                    path.push_str(&format!("/{{segment{at}}}"));
                }
                None if segment.contains(['{', '}']) => {
                    return Err(format!("`{segment}` is neither literal nor a name in braces"));
                }
                None => path = format!("{path}/{segment}"),
            }
        }
        let literal = segments.replace("{*rest}", "rest").replace(['{', '}'], "");
        target::check_path(&format!("/{literal}"))
            .map_err(|why| format!("no request ever has this path: {why}"))?;
        pattern.matched.push(path);
        Ok(pattern)
    }

    fn capture(&mut self, name: &str, at: usize) -> Result<(), String> {
        let place = match name {
            "workspace" => &mut self.workspace_at,
            "organisation" => &mut self.organisation_at,
            _ if weir_common::ids::is_identifier(name) => return Ok(()),
            _ => return Err(format!("`{{{name}}}` is not a name")),
        };
        if place.replace(at).is_some() {
            return Err(format!("`{{{name}}}` stands twice"));
        }
        Ok(())
    }
}

/// The nth segment of a path, from 0.
#[must_use]
pub fn segment(path: &str, nth: usize) -> Option<&str> {
    path.split('/').nth(nth + 1)
}

/// The routes of one plane.
#[derive(Clone, Debug, Default)]
pub struct Paths {
    by_method: Vec<(Method, Router<Index>)>,
    /// For methods that no route names.
    any: Router<Index>,
}

/// Where a method and a path lead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// To this route.
    Route(Index),
    /// To routes that do not take this method; these they take.
    OtherMethods(Vec<Method>),
    /// Nowhere.
    Nothing,
}

impl Paths {
    /// Builds the matcher of `routes`: each its place, its pattern, and its methods. Says which
    /// of them answers for what another answers for already.
    pub fn new(routes: &[(Index, &Pattern, &[Method])]) -> (Self, Vec<Index>) {
        let mut doubled = Vec::new();
        let mut methods: Vec<&Method> =
            routes.iter().flat_map(|(_, _, methods)| *methods).collect();
        methods.sort_by_key(|method| method.as_str());
        methods.dedup();
        let mut paths = Self::default();
        for (route, pattern, _) in routes.iter().filter(|(_, _, methods)| methods.is_empty()) {
            if !insert(&mut paths.any, pattern, *route) {
                doubled.push(*route);
            }
        }
        for method in methods {
            let mut router = Router::new();
            for (route, pattern, _) in routes.iter().filter(|(_, _, own)| own.contains(method)) {
                if !insert(&mut router, pattern, *route) {
                    doubled.push(*route);
                }
            }
            for (route, pattern, _) in routes.iter().filter(|(_, _, own)| own.is_empty()) {
                // Where the path is taken, a route that names the method comes first.
                insert(&mut router, pattern, *route);
            }
            paths.by_method.push((method.clone(), router));
        }
        doubled.sort_unstable();
        doubled.dedup();
        (paths, doubled)
    }

    /// Where `method` and an accepted `path` lead.
    pub fn find(&self, method: &Method, path: &str) -> Result<Found, Malformed> {
        let router = self.router(method);
        let route = router.at(path).ok().map(|found| *found.value);
        if let Some(stripped) = target::stripped(path)
            && router.at(&stripped).ok().map(|found| *found.value) != route
        {
            return Err(Malformed::Parameters);
        }
        if let Some(route) = route {
            return Ok(Found::Route(route));
        }
        let others = self.methods(path);
        Ok(if others.is_empty() { Found::Nothing } else { Found::OtherMethods(others) })
    }

    /// The methods that routes of an accepted `path` list.
    #[must_use]
    pub fn methods(&self, path: &str) -> Vec<Method> {
        let taking = self.by_method.iter().filter(|(_, router)| router.at(path).is_ok());
        taking.map(|(method, _)| method.clone()).collect()
    }

    /// Whether one of the routes of an accepted `path` takes every method.
    #[must_use]
    pub fn takes_all(&self, path: &str) -> bool {
        self.any.at(path).is_ok()
    }

    fn router(&self, method: &Method) -> &Router<Index> {
        let own = self.by_method.iter().find(|(own, _)| own == method);
        own.map_or(&self.any, |(_, router)| router)
    }
}

/// Adds all of a pattern's paths; false where one of them is taken.
fn insert(router: &mut Router<Index>, pattern: &Pattern, route: Index) -> bool {
    let mut all = true;
    for path in &pattern.matched {
        all &= router.insert(path, route).is_ok();
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATHS: [(&str, &str); 9] = [
        ("GET HEAD", "/healthz"),
        ("POST", "/v1/workspaces/{workspace}/tenants:batch"),
        ("", "/v1/workspaces/{workspace}/webhooks/{*rest}"),
        ("", "/v1/workspaces/{workspace}/{*rest}"),
        ("", "/v1/organisations/{organisation}/{*rest}"),
        ("", "/v1/{*rest}"),
        ("GET HEAD", "/assets/{*rest}"),
        ("", "/x/{one}/a"),
        ("", "/x/{other}/b"),
    ];

    fn find(method: &str, path: &str) -> Result<Found, Malformed> {
        let patterns = PATHS.map(|(_, path)| Pattern::read(path).unwrap());
        let methods = PATHS.map(|(methods, _)| {
            methods.split_whitespace().map(|name| name.parse().unwrap()).collect::<Vec<Method>>()
        });
        let routes: Vec<_> =
            (0..PATHS.len()).map(|at| (at, &patterns[at], methods[at].as_slice())).collect();
        let (paths, doubled) = Paths::new(&routes);
        assert!(doubled.is_empty());
        paths.find(&method.parse().unwrap(), path)
    }

    fn leads(method: &str, path: &str) -> usize {
        match find(method, path) {
            Ok(Found::Route(route)) => route,
            other => panic!("{method} {path}: {other:?}"),
        }
    }

    #[test]
    fn the_most_specific_route_wins() {
        for (method, path, route) in [
            ("GET", "/healthz", 0),
            ("POST", "/v1/workspaces/ws/tenants:batch", 1),
            ("GET", "/v1/workspaces/ws/tenants:batch", 3),
            ("POST", "/v1/workspaces/ws/tenants:batch/x", 3),
            ("POST", "/v1/workspaces/ws/tenants:batches", 3),
            ("GET", "/v1/workspaces/ws/webhooks", 2),
            ("GET", "/v1/workspaces/ws/webhooks/wh", 2),
            ("GET", "/v1/workspaces/ws/webhooksx", 3),
            ("GET", "/v1/workspaces/ws", 3),
            ("GET", "/v1/workspaces", 5),
            ("GET", "/v1/organisations/org", 4),
            ("GET", "/v1", 5),
            ("FOO", "/v1/a/b/c", 5),
            ("GET", "/assets/a/b", 6),
            ("GET", "/x/1/a", 7),
            ("GET", "/x/1/b", 8),
        ] {
            assert_eq!(leads(method, path), route, "{method} {path}");
        }
    }

    #[test]
    fn another_spelling_leads_nowhere() {
        for path in ["/Healthz", "/healthz/x", "/v2", "/V1/workspaces/ws", "/x/1/c"] {
            assert_eq!(find("GET", path), Ok(Found::Nothing), "{path}");
        }
    }

    #[test]
    fn a_method_that_no_route_takes_is_told_which_are() {
        assert_eq!(
            find("POST", "/healthz"),
            Ok(Found::OtherMethods(vec![Method::GET, Method::HEAD]))
        );
    }

    #[test]
    fn parameters_must_not_lead_elsewhere() {
        for path in [
            "/healthz;x",
            "/v1/workspaces/ws/tenants:batch;x",
            "/v1;a/workspaces/ws/x",
            "/assets;/x",
        ] {
            assert_eq!(
                find("POST", path).err().or(find("GET", path).err()),
                Some(Malformed::Parameters),
                "{path}"
            );
        }
        assert_eq!(leads("GET", "/v1/workspaces/ws/users;v=1"), 3);
    }

    #[test]
    fn a_pattern_that_can_never_match_is_a_mistake() {
        for text in ["v1", "/a/", "/a//b", "/a%2f", "/{*rest}/a", "/a{b}", "/{a b}", "/../a"] {
            assert!(Pattern::read(text).is_err(), "{text}");
        }
        assert!(Pattern::read("/{workspace}/{workspace}").is_err());
        assert!(Pattern::read("/{*rest}").is_ok());
    }

    #[test]
    fn two_routes_for_the_same_are_a_mistake() {
        let pattern = Pattern::read("/a/{x}").unwrap();
        let (_, doubled) = Paths::new(&[(0, &pattern, &[]), (1, &pattern, &[])]);
        assert_eq!(doubled, [1]);
        let (_, doubled) = Paths::new(&[(0, &pattern, &[Method::GET]), (1, &pattern, &[])]);
        assert!(doubled.is_empty());
    }

    #[test]
    fn a_host_belongs_to_one_plane_and_may_name_an_instance() {
        let mut hosts = Hosts::default();
        assert!(hosts.add("api.test", 0, None));
        assert!(hosts.add("{instance}.auth.test", 1, None));
        assert!(hosts.add("login.acme.test", 1, Some("in_acme")));
        assert!(!hosts.add("api.test", 1, None));
        assert_eq!(hosts.find("api.test"), Some((0, None)));
        assert_eq!(hosts.find("in_x.auth.test"), Some((1, Some("in_x"))));
        assert_eq!(hosts.find("login.acme.test"), Some((1, Some("in_acme"))));
        for other in ["auth.test", "a.b.auth.test", "test", "x.api.test"] {
            assert_eq!(hosts.find(other), None, "{other}");
        }
    }

    #[test]
    fn segments_are_counted_from_the_first_name() {
        assert_eq!(segment("/v1/workspaces/ws/x", 2), Some("ws"));
        assert_eq!(segment("/v1", 1), None);
    }
}
