//! Finds the route of a host, a method and a path. (core)
//!
//! Hosts are exact names or patterns with the instance as their first label. Paths are matched
//! by segment and case-sensitively, the most specific first; a route that lists methods precedes
//! one of the same path that accepts all.
//!
//! # Invariants
//!
//! 1. A path with `;parameters`, or with a spelling that only some routes accept, is refused unless
//!    all its readings lead to the same route and name the same tenants.
//! 2. Any other path is refused if one of its readings leads to a stricter route or another tenant.
//! 3. The same holds of a path with its full-width characters as ASCII.
//! 4. Two routes never have the same path and method: that is an error in the settings.
//!
//! # Not here
//!
//! Paths that are refused on every route (`target`), tokens and limits of a route (`admission`).

mod readings;

mod tree;

use std::collections::{HashMap, HashSet};

use http::Method;

use crate::request::route::readings::Words;
use crate::request::route::tree::Tree;
use crate::request::target::{self, Malformed, Target};
use crate::settings::spellings::Spellings;

/// The index of a plane, route, limit, plan or upstream in the settings.
pub type Index = usize;

/// Which plane a host belongs to, and which instance it names.
#[derive(Clone, Debug, Default)]
pub struct Hosts {
    exact: HashMap<Box<str>, (Index, Option<Box<str>>)>,
    /// By the host name after the first label and its dot.
    patterns: HashMap<Box<str>, Index>,
}

impl Hosts {
    /// Adds a host name, or a pattern such as `{instance}.auth.example.com`. False if an exact name
    /// is there already, or if a pattern belongs to another plane.
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

/// A route's path, and which of its segments name tenants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// The path as in the settings.
    pub text: String,
    /// Which segment, from 0, names the workspace.
    pub workspace_at: Option<usize>,
    /// Which segment, from 0, names the organisation.
    pub organisation_at: Option<usize>,
    /// Whether it ends in `{*rest}`.
    pub has_rest: bool,
    /// The segments before `{*rest}`; none for `/`.
    segments: Vec<Segment>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    Literal(Box<str>),
    Capture,
}

impl Pattern {
    /// Parses a path such as `/v1/workspaces/{workspace}/{*rest}`, or returns its error.
    pub fn read(text: &str) -> Result<Self, String> {
        let Some(path) = text.strip_prefix('/') else {
            return Err(format!("a path must start with `/`, not `{text}`"));
        };
        let mut pattern = Self {
            text: text.to_owned(),
            workspace_at: None,
            organisation_at: None,
            has_rest: false,
            segments: Vec::new(),
        };
        for segment in path.split('/').filter(|_| !path.is_empty()) {
            let name = segment.strip_prefix('{').and_then(|name| name.strip_suffix('}'));
            let segment = match name {
                _ if pattern.has_rest => return Err("`{*rest}` must come last".to_owned()),
                Some("*rest") => {
                    pattern.has_rest = true;
                    continue;
                }
                Some(name) => {
                    pattern.capture(name, pattern.segments.len())?;
                    Segment::Capture
                }
                None if segment.contains(['{', '}']) => {
                    return Err(format!(
                        "`{segment}` must be text without braces, or one name in braces"
                    ));
                }
                None => Segment::Literal(literal(segment)?),
            };
            pattern.segments.push(segment);
        }
        if path.contains('?') {
            return Err(
                "a query never decides about a route: leave out `?` and what follows".into()
            );
        }
        let literal = path.replace("{*rest}", "rest").replace(['{', '}'], "");
        let spelled = target::check_path(&format!("/{literal}"));
        spelled
            .and_then(|spellings| spellings.within(Spellings::NONE))
            .map_err(|why| format!("no request ever has this path: {why}"))?;
        Ok(pattern)
    }

    fn capture(&mut self, name: &str, at: usize) -> Result<(), String> {
        let place = match name {
            "workspace" => &mut self.workspace_at,
            "organisation" => &mut self.organisation_at,
            _ if weir_common::identifier::is_identifier(name) => return Ok(()),
            _ => return Err(format!("`{{{name}}}` must be 1 to 64 of A-Z a-z 0-9 _ -, in braces")),
        };
        if place.replace(at).is_some() {
            return Err(format!("`{{{name}}}` is in the path twice"));
        }
        Ok(())
    }

    /// The workspace and the organisation that a path of this pattern names.
    #[must_use]
    pub fn names<'p>(&self, path: &'p str) -> [Option<&'p str>; 2] {
        self.tenants_at(|at| segment(path, at))
    }

    /// The same of a path of these segments.
    fn names_of<'p>(&self, reading: &[&'p str]) -> [Option<&'p str>; 2] {
        self.tenants_at(|at| reading.get(at).copied())
    }

    fn tenants_at<'p>(&self, segment: impl Fn(usize) -> Option<&'p str>) -> [Option<&'p str>; 2] {
        [self.workspace_at, self.organisation_at].map(|at| at.and_then(&segment))
    }

    /// A bit for each literal segment among the first 64.
    fn literals(&self) -> u64 {
        let bits = self.segments.iter().take(64).enumerate();
        bits.filter(|(_, segment)| **segment != Segment::Capture)
            .fold(0, |all, (at, _)| all | 1 << at)
    }
}

/// A segment of text; those that are patterns in other proxies would match only themselves.
fn literal(segment: &str) -> Result<Box<str>, String> {
    if segment.contains('*') {
        return Err(format!("`{segment}` would match only itself: write `{{*rest}}`, or `{{id}}`"));
    }
    if let Some(name) = segment.strip_prefix(':') {
        return Err(format!("`{segment}` would match only itself: write `{{{name}}}`"));
    }
    Ok(segment.into())
}

/// The nth segment of a path, from 0.
#[must_use]
pub fn segment(path: &str, nth: usize) -> Option<&str> {
    let slashes = path.bytes().enumerate().filter(|(_, byte)| *byte == b'/');
    let mut places = slashes.map(|(place, _)| place);
    let from = places.nth(nth)? + 1;
    path.get(from..places.next().unwrap_or(path.len()))
}

/// A route among the others of its plane.
#[derive(Clone, Copy, Debug)]
pub struct RouteEntry<'r> {
    /// Its index in the settings.
    pub route: Index,
    /// Its path.
    pub pattern: &'r Pattern,
    /// Its methods; all where empty.
    pub methods: &'r [Method],
    /// The spellings that it accepts beyond those that every route accepts.
    pub spellings: Spellings,
}

/// The routes of one plane.
#[derive(Clone, Debug, Default)]
pub struct Paths {
    tree: Tree,
    /// The literal segments of all routes.
    words: Words,
    /// The literal segments of routes that are stricter than another route.
    guarded: Words,
    routes: Vec<Own>,
}

/// The data of a route that a lookup needs.
#[derive(Clone, Debug)]
struct Own {
    /// Its index in the settings.
    route: Index,
    pattern: Pattern,
    literals: u64,
    spellings: Spellings,
    /// Indices in `Paths::routes` of the routes that are stricter than this one.
    stricter: HashSet<usize>,
}

/// The result of a lookup by method and path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathMatch {
    /// This route.
    Route(Index),
    /// Only routes that do not accept the method; these are the methods that they accept.
    OtherMethods(Vec<Method>),
    /// No route.
    Nothing,
}

impl Paths {
    /// Builds the matcher of `routes`. `is_stricter(a, b)` returns whether requests of route `a`
    /// are checked for something that those of `b` are not. Also returns the pairs of routes that
    /// conflict because neither is more specific, the later one first.
    pub fn new(
        routes: &[RouteEntry<'_>],
        is_stricter: impl Fn(Index, Index) -> bool,
    ) -> (Self, Vec<(Index, Index)>) {
        let (mut paths, mut undecided) = (Self::default(), Vec::new());
        for (at, entry) in routes.iter().enumerate() {
            let same = paths.tree.insert(entry.pattern, entry.methods, at);
            let same = same.into_iter().filter_map(|other| routes.get(other));
            undecided.extend(same.map(|other| (entry.route, other.route)));
            let stricter = routes.iter().enumerate();
            let stricter = stricter.filter(|(_, other)| is_stricter(other.route, entry.route));
            let stricter: HashSet<usize> = stricter.map(|(other, _)| other).collect();
            paths.words.add(entry.pattern);
            stricter.iter().filter_map(|other| routes.get(*other)).for_each(|other| {
                paths.guarded.add(other.pattern);
            });
            paths.routes.push(Own {
                route: entry.route,
                pattern: entry.pattern.clone(),
                literals: entry.pattern.literals(),
                spellings: entry.spellings,
                stricter,
            });
        }
        (paths, undecided)
    }

    /// Finds the route of `method` and the path of an accepted target.
    pub fn find(&self, method: &Method, target: &Target<'_>) -> Result<PathMatch, Malformed> {
        let path = target.path;
        let at = self.tree.find(method, path);
        let own = at.and_then(|at| self.routes.get(at));
        target.spellings.within(own.map_or(Spellings::NONE, |own| own.spellings))?;
        let is_plain = target.spellings == Spellings::NONE;
        let narrow = target.narrowed.as_deref();
        if !is_plain || target::has_parameters(path) {
            let mut texts = [Some(path), narrow].into_iter().flatten();
            if !texts.all(|text| self.has_one_meaning(method, [path, text], at)) {
                return Err(if is_plain { Malformed::Parameters } else { Malformed::OtherRoute });
            }
        } else if let Some(own) = own {
            let is_stricter = |text| self.may_reach_stricter(method, [path, text], own);
            let may_differ = self.guarded.may_have_readings(path, own.literals);
            if may_differ && is_stricter(path) || narrow.is_some_and(is_stricter) {
                return Err(Malformed::OtherRoute);
            }
        }
        if let Some(own) = own {
            return Ok(PathMatch::Route(own.route));
        }
        let (others, _) = self.tree.methods(path);
        Ok(if others.is_empty() { PathMatch::Nothing } else { PathMatch::OtherMethods(others) })
    }

    /// Whether every reading of a path, as `text`, leads to its route and names the same tenants.
    fn has_one_meaning(&self, method: &Method, [path, text]: [&str; 2], at: Option<usize>) -> bool {
        let own = at.and_then(|at| self.routes.get(at));
        let names = own.map(|own| own.pattern.names(path));
        let same = |reading: &Vec<&str>| {
            self.tree.find_reading(method, reading) == at
                && own.map(|own| own.pattern.names_of(reading)) == names
        };
        let readings = self.words.readings(text, self.words.depth());
        readings.is_some_and(|readings| readings.iter().all(same))
    }

    /// Whether a reading of a path, as `text`, leads to a route that is stricter than its own, or
    /// names another tenant.
    fn may_reach_stricter(&self, method: &Method, [path, text]: [&str; 2], own: &Own) -> bool {
        let names = own.pattern.names(path);
        let reaches_stricter = |reading: &Vec<&str>| {
            let Some(at) = self.tree.find_reading(method, reading) else { return false };
            let others = self.routes.get(at).map(|other| other.pattern.names_of(reading));
            let foreign = |(other, own): (Option<&str>, _)| other.is_some() && other != own;
            let is_foreign = others.into_iter().flat_map(|others| others.into_iter().zip(names));
            own.stricter.contains(&at) || is_foreign.into_iter().any(foreign)
        };
        let readings = self.guarded.readings(text, self.words.depth());
        readings.is_none_or(|readings| readings.iter().any(reaches_stricter))
    }

    /// The methods that routes of an accepted `path` list.
    #[must_use]
    pub fn methods(&self, path: &str) -> Vec<Method> {
        self.tree.methods(path).0
    }

    /// Whether one of the routes of an accepted `path` accepts every method.
    #[must_use]
    pub fn accepts_all(&self, path: &str) -> bool {
        self.tree.methods(path).1
    }
}

#[cfg(test)]
mod tests {
    mod full_width;
    mod servers;

    use super::*;

    /// Repeatable random numbers.
    pub(super) struct Dice(pub(super) u64);

    impl Dice {
        pub(super) fn roll(&mut self, sides: usize) -> usize {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            usize::try_from(self.0 >> 33).unwrap() % sides
        }
    }

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

    fn find(method: &str, path: &str) -> Result<PathMatch, Malformed> {
        let patterns = PATHS.map(|(_, path)| Pattern::read(path).unwrap());
        let methods = PATHS.map(|(methods, _)| {
            methods.split_whitespace().map(|name| name.parse().unwrap()).collect::<Vec<Method>>()
        });
        let entry = |at: usize| RouteEntry {
            route: at,
            pattern: &patterns[at],
            methods: &methods[at],
            spellings: Spellings::NONE,
        };
        let routes: Vec<_> = (0..PATHS.len()).map(entry).collect();
        let (paths, undecided) = Paths::new(&routes, |_, _| false);
        assert!(undecided.is_empty());
        let target = target::read(path.as_bytes(), Some(b"h.test"))?;
        paths.find(&method.parse().unwrap(), &target)
    }

    fn leads(method: &str, path: &str) -> usize {
        match find(method, path) {
            Ok(PathMatch::Route(route)) => route,
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
    fn another_spelling_matches_no_route() {
        for path in ["/Healthz", "/healthz/x", "/v2", "/V1/workspaces/ws", "/x/1/c"] {
            assert_eq!(find("GET", path), Ok(PathMatch::Nothing), "{path}");
        }
    }

    #[test]
    fn a_method_that_no_route_has_gets_the_methods_of_the_path() {
        assert_eq!(
            find("POST", "/healthz"),
            Ok(PathMatch::OtherMethods(vec![Method::GET, Method::HEAD]))
        );
    }

    #[test]
    fn parameters_must_not_match_another_route() {
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
    fn a_pattern_that_can_never_match_is_reported() {
        for text in ["v1", "/a/", "/a//b", "/a%2f", "/{*rest}/a", "/a{b}", "/{a b}", "/../a"] {
            assert!(Pattern::read(text).is_err(), "{text}");
        }
        assert!(Pattern::read("/{workspace}/{workspace}").is_err());
        assert!(Pattern::read("/{*rest}").is_ok());
    }

    #[test]
    fn a_pattern_in_the_manner_of_another_proxy_is_reported() {
        for (text, part) in [
            ("/x/*", "{*rest}"),
            ("/x/.*", "{*rest}"),
            ("/x*", "{*rest}"),
            ("/v1/x/:id", "{id}"),
            ("/x?a=1", "query"),
        ] {
            let why = Pattern::read(text).unwrap_err();
            assert!(why.contains(part), "{text}: {why}");
        }
        assert!(Pattern::read("/x/events:batch").is_ok());
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
