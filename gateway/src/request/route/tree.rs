//! Finds the route of a method and a path. (core)
//!
//! Patterns form a tree of their segments. A lookup follows a path segment by segment and tries
//! literals first, then captures, then a catch-all. It backtracks from a branch that has no route
//! of the method.
//!
//! # Invariants
//!
//! 1. A lookup finds the most specific of the routes that have the path and the method, in
//!    whatever order they were inserted.
//! 2. If two routes of one path name the same method, or both accept all methods, inserting the
//!    second returns the first.
//! 3. A route that names GET accepts HEAD too, unless another one of its path names HEAD.
//! 4. A lookup visits each node at most once, and does not allocate.

use http::Method;

use crate::request::route::{Index, Pattern, Segment};

/// Up to this many literals a linear search is faster than a binary search.
const LINEAR_MAX: usize = 8;

/// Routes by their paths.
#[derive(Clone, Debug, Default)]
pub(super) struct Tree {
    root: Node,
}

/// A prefix of paths, and what may follow it.
#[derive(Clone, Debug, Default)]
struct Node {
    /// Sorted by length, then by bytes: most comparisons then need only the lengths.
    literals: Vec<(Box<[u8]>, Node)>,
    capture: Option<Box<Node>>,
    /// Routes whose path ends here.
    end: Leaf,
    /// Routes that end here with `{*rest}`: any further segments match, and none.
    rest: Leaf,
}

/// The routes of one path.
#[derive(Clone, Debug, Default)]
struct Leaf {
    named: Vec<(Method, Index)>,
    all: Option<Index>,
}

impl Tree {
    /// Inserts a route; no methods means all methods. Returns the routes that have the same path
    /// and one of these methods already; these stay.
    #[must_use = "of two routes for the same one would never be met"]
    pub(super) fn insert(
        &mut self,
        pattern: &Pattern,
        methods: &[Method],
        route: Index,
    ) -> Vec<Index> {
        let mut node = &mut self.root;
        for segment in &pattern.segments {
            node = match segment {
                Segment::Literal(text) => node.literal_mut(text.as_bytes()),
                Segment::Capture => node.capture.get_or_insert_default(),
            };
        }
        let leaf = if pattern.has_rest { &mut node.rest } else { &mut node.end };
        leaf.insert(methods, route)
    }

    /// The route of a method and a path.
    pub(super) fn find(&self, method: &Method, path: &str) -> Option<Index> {
        self.root.find(method, segments(path))
    }

    /// The route of a method and a path of these segments.
    pub(super) fn find_reading(&self, method: &Method, reading: &[&str]) -> Option<Index> {
        self.root.find(method, reading.iter().map(|segment| segment.as_bytes()))
    }

    /// The methods that routes of a path name, HEAD with GET, and whether a route accepts all.
    pub(super) fn methods(&self, path: &str) -> (Vec<Method>, bool) {
        let (mut named, mut all) = (Vec::new(), false);
        self.root.visit(segments(path), &mut |leaf| {
            named.extend(leaf.named.iter().map(|(method, _)| method.clone()));
            all |= leaf.all.is_some();
        });
        if named.contains(&Method::GET) {
            named.push(Method::HEAD);
        }
        named.sort_by(|one, other| one.as_str().cmp(other.as_str()));
        named.dedup();
        (named, all)
    }
}

/// The segments of a path; none for the root. A slash at the end adds no segment.
fn segments(path: &str) -> Segments<'_> {
    let path = path.as_bytes();
    let path = path.strip_prefix(b"/").unwrap_or(path);
    let path = path.strip_suffix(b"/").unwrap_or(path);
    Segments(Some(path).filter(|path| !path.is_empty()))
}

/// Segments with the slashes between them.
#[derive(Clone)]
struct Segments<'p>(Option<&'p [u8]>);

impl<'p> Iterator for Segments<'p> {
    type Item = &'p [u8];

    fn next(&mut self) -> Option<&'p [u8]> {
        let path = self.0?;
        let end = path.iter().position(|byte| *byte == b'/').unwrap_or(path.len());
        let (segment, tail) = path.split_at(end);
        self.0 = tail.split_first().map(|(_, tail)| tail);
        Some(segment)
    }
}

impl Node {
    fn literal_mut(&mut self, text: &[u8]) -> &mut Self {
        let at = self.place(text).unwrap_or_else(|at| {
            self.literals.insert(at, (text.into(), Self::default()));
            at
        });
        let entry = self.literals.get_mut(at).expect("it was found or put in just above");
        &mut entry.1
    }

    fn literal(&self, text: &[u8]) -> Option<&Self> {
        let found = if self.literals.len() <= LINEAR_MAX {
            self.literals.iter().find(|(own, _)| **own == *text)
        } else {
            self.place(text).ok().and_then(|at| self.literals.get(at))
        };
        found.map(|(_, node)| node)
    }

    fn place(&self, text: &[u8]) -> Result<usize, usize> {
        self.literals
            .binary_search_by(|(own, _)| own.len().cmp(&text.len()).then_with(|| (**own).cmp(text)))
    }

    fn find<'p>(
        &self,
        method: &Method,
        mut path: impl Iterator<Item = &'p [u8]> + Clone,
    ) -> Option<Index> {
        let Some(segment) = path.next() else {
            return self.end.route(method).or_else(|| self.rest.route(method));
        };
        let literal = self.literal(segment).and_then(|node| node.find(method, path.clone()));
        let capture = || self.capture.as_ref().and_then(|node| node.find(method, path.clone()));
        literal.or_else(capture).or_else(|| self.rest.route(method))
    }

    /// Calls `show` with every leaf that matches the path.
    fn visit(&self, mut path: Segments<'_>, show: &mut impl FnMut(&Leaf)) {
        show(&self.rest);
        let Some(segment) = path.next() else { return show(&self.end) };
        let nodes = [self.literal(segment), self.capture.as_deref()];
        nodes.into_iter().flatten().for_each(|node| node.visit(path.clone(), show));
    }
}

impl Leaf {
    fn route(&self, method: &Method) -> Option<Index> {
        let named = |method: &Method| {
            let named = self.named.iter().find(|(own, _)| own == method);
            named.map(|(_, route)| *route)
        };
        // Web frameworks serve HEAD by their GET handler (RFC 9110, 9.3.2).
        let as_get = || (*method == Method::HEAD).then(|| named(&Method::GET)).flatten();
        named(method).or_else(as_get).or(self.all)
    }

    fn insert(&mut self, methods: &[Method], route: Index) -> Vec<Index> {
        let mut others = Vec::new();
        if methods.is_empty() {
            others.extend(self.all);
            self.all.get_or_insert(route);
        }
        for method in methods {
            match self.named.iter().find(|(own, _)| own == method) {
                Some((_, other)) => others.push(*other),
                None => self.named.push((method.clone(), route)),
            }
        }
        // A route that names a method twice does not conflict with itself.
        others.retain(|other| *other != route);
        others.dedup();
        others
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::route::tests::Dice;

    const METHODS: [Method; 5] =
        [Method::GET, Method::HEAD, Method::POST, Method::DELETE, Method::PATCH];

    /// One route as in a configuration file.
    type Row = (String, Vec<Method>);

    /// How specific each segment of a path is: a lower number is more specific.
    type Rank = Vec<u8>;

    /// The rank of a pattern for a path; `None` if it does not match.
    fn rank(pattern: &str, path: &str) -> Option<Rank> {
        let parts = |text: &str| -> Vec<String> {
            text.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect()
        };
        let (pattern, path) = (parts(pattern), parts(path));
        let mut rank = Rank::new();
        for (at, part) in pattern.iter().enumerate() {
            match (part.as_str(), path.get(at)) {
                ("{*rest}", _) => {
                    rank.push(3);
                    return Some(rank);
                }
                (_, None) => return None,
                (part, Some(_)) if part.starts_with('{') => rank.push(2),
                (part, Some(own)) if part == own => rank.push(1),
                _ => return None,
            }
        }
        (pattern.len() == path.len()).then_some(rank)
    }

    /// Tries every route and returns the most specific.
    fn by_trying_every_route(rows: &[Row], method: &Method, path: &str) -> Option<Index> {
        let having = rows.iter().enumerate().filter_map(|(at, (pattern, methods))| {
            let as_get = *method == Method::HEAD && methods.contains(&Method::GET);
            let order = [methods.contains(method), as_get, methods.is_empty()];
            let order = order.into_iter().position(|accepts| accepts)?;
            rank(pattern, path).map(|rank| (rank, order, at))
        });
        having.min().map(|(_, _, at)| at)
    }

    /// Whether two routes conflict: the same path except for names, and a common method.
    fn is_undecided((path, methods): &Row, (other, others): &Row) -> bool {
        let shape = |path: &str| {
            let name = |part: &str| part.starts_with('{') && part != "{*rest}";
            path.split('/').map(|part| if name(part) { "{}" } else { part }.to_owned()).collect()
        };
        let (one, two): (Vec<String>, Vec<String>) = (shape(path), shape(other));
        let common = methods.iter().any(|method| others.contains(method));
        one == two && (common || methods.is_empty() && others.is_empty())
    }

    impl Dice {
        fn row(&mut self) -> Row {
            let parts = ["a", "b", "a:b", "{x}", "{y}", "{workspace}"];
            let mut path = String::new();
            for depth in 0..self.roll(5) {
                let part = parts[self.roll(parts.len())];
                let doubled = part == "{workspace}" && path.contains(part);
                path += &if doubled { format!("/{{z{depth}}}") } else { format!("/{part}") };
            }
            if path.is_empty() || self.roll(3) == 0 {
                path += if self.roll(2) == 0 && path.is_empty() { "/" } else { "/{*rest}" };
            }
            let mut methods = METHODS.to_vec();
            methods.retain(|_| self.roll(3) == 0);
            (path, methods)
        }

        fn short_path(&mut self) -> String {
            let parts = ["a", "b", "a:b", "c", "a:c"];
            let path: String =
                (0..self.roll(6)).map(|_| format!("/{}", parts[self.roll(5)])).collect();
            if path.is_empty() { "/".to_owned() } else { path }
        }
    }

    #[test]
    fn random_tables_are_matched_as_by_trying_every_route() {
        for seed in 1..=600_u64 {
            let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let (mut tree, mut rows) = (Tree::default(), Vec::<Row>::new());
            for _ in 0..=dice.roll(12) {
                let row = dice.row();
                let undecided = |other: &usize| is_undecided(&row, &rows[*other]);
                let same: Vec<usize> = (0..rows.len()).filter(undecided).collect();
                let mut tried = tree.clone();
                let mut reported =
                    tried.insert(&Pattern::read(&row.0).unwrap(), &row.1, rows.len());
                reported.sort_unstable();
                reported.dedup();
                assert_eq!(reported, same, "seed {seed}: {row:?} beside {rows:?}");
                if same.is_empty() {
                    tree = tried;
                    rows.push(row);
                }
            }
            for _ in 0..60 {
                let path = dice.short_path();
                let expected = |method| by_trying_every_route(&rows, method, &path);
                for method in &METHODS {
                    let found = tree.find(method, &path);
                    assert_eq!(found, expected(method), "seed {seed}: {method} {path} in {rows:?}");
                }
                let (named, all) = tree.methods(&path);
                assert_eq!(
                    all,
                    expected(&Method::TRACE).is_some(),
                    "seed {seed}: {path}, {rows:?}"
                );
                let has = |method: &Method| {
                    let names = |(own, methods): &Row| {
                        let as_get = *method == Method::HEAD && methods.contains(&Method::GET);
                        (methods.contains(method) || as_get) && rank(own, &path).is_some()
                    };
                    rows.iter().any(names)
                };
                let mut expected = METHODS.to_vec();
                expected.retain(has);
                expected.sort_by(|one, other| one.as_str().cmp(other.as_str()));
                assert_eq!(named, expected, "seed {seed}: {path} in {rows:?}");
            }
        }
    }

    #[test]
    fn a_route_of_get_accepts_head_unless_another_of_its_path_names_it() {
        let insert = |rows: &[(&str, &[Method])]| {
            let mut tree = Tree::default();
            for (at, (path, methods)) in rows.iter().enumerate() {
                assert!(tree.insert(&Pattern::read(path).unwrap(), methods, at).is_empty());
            }
            tree
        };
        let tree = insert(&[("/{*rest}", &[]), ("/a", &[Method::GET]), ("/a", &[])]);
        assert_eq!(tree.find(&Method::HEAD, "/a"), Some(1));
        assert_eq!(tree.find(&Method::POST, "/a"), Some(2));
        let named = insert(&[("/a", &[Method::HEAD]), ("/a", &[Method::GET])]);
        assert_eq!(named.find(&Method::HEAD, "/a"), Some(0));
        let only = insert(&[("/a", &[Method::GET])]);
        assert_eq!(only.methods("/a"), (vec![Method::GET, Method::HEAD], false));
    }

    #[test]
    fn a_route_that_names_a_method_hides_no_other_method_and_no_longer_path() {
        let rows = [
            ("/v1/{*rest}", vec![]),
            ("/v1/workspaces/{workspace}/{*rest}", vec![]),
            ("/v1/workspaces/{workspace}/{thing}", vec![Method::DELETE]),
        ];
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
            let mut tree = Tree::default();
            for at in order {
                let (path, methods) = &rows[at];
                assert!(tree.insert(&Pattern::read(path).unwrap(), methods, at).is_empty());
            }
            for (path, route) in [
                ("/v1/workspaces/ws_a/users/u1", 1),
                ("/v1/workspaces/ws_a/users", 2),
                ("/v1/workspaces/ws_a", 1),
                ("/v1/workspaces", 0),
            ] {
                assert_eq!(tree.find(&Method::DELETE, path), Some(route), "{path}");
            }
            assert_eq!(tree.find(&Method::GET, "/v1/workspaces/ws_a/users"), Some(1));
        }
    }
}
