//! Tests of the routes that other spellings of a path lead to.
//!
//! Compares the results of `route` with simulated servers: each applies some of the [`STEPS`] that
//! real servers apply to a path, and then looks up its route.

use std::collections::BTreeSet;

use crate::request::escapes;
use crate::request::route::tests::Dice;
use crate::request::route::*;

/// Path, limits, and accepted spellings: s for a slash at the end, e for escapes, / for `%2F`.
pub(super) type Row = (&'static str, &'static [Index], &'static str);

/// The numbers are each route's limits; a tenant in a path is a check too.
pub(super) const CONTROL: &[Row] = &[
    ("/healthz", &[], ""),
    ("/v1/workspaces/{workspace}/tenants:batch", &[9], ""),
    ("/v1/workspaces/{workspace}/webhooks/{*rest}", &[1, 2], ""),
    ("/v1/workspaces/{workspace}/files/{*rest}", &[1, 2], "se/"),
    ("/v1/workspaces/{workspace}/{*rest}", &[1, 2], "e"),
    ("/v1/organisations/{organisation}/{*rest}", &[2], ""),
    ("/v1/{*rest}", &[3], "s"),
    ("/api/projects/{project}/{*rest}", &[3], "se/"),
    ("/api/projects/{project}/admin/{*rest}", &[3, 4], ""),
    ("/api/projects/{project}/export", &[3, 4], ""),
    ("/api/{thing}", &[3], "se"),
    ("/of/{who}/{workspace}/{*rest}", &[1], "se/"),
    ("/{*rest}", &[], "se/"),
];

fn spellings(text: &str) -> Spellings {
    Spellings {
        trailing_slash: text.contains('s'),
        escapes: text.contains('e'),
        escaped_slash: text.contains('/'),
    }
}

fn is_stricter(rows: &[Row], one: Index, other: Index) -> bool {
    let at = |row: Index, name: &str| rows[row].0.split('/').position(|part| part == name);
    let tenant = |name| at(one, name).is_some() && at(one, name) != at(other, name);
    let limit = rows[one].1.iter().any(|limit| !rows[other].1.contains(limit));
    limit || tenant("{workspace}") || tenant("{organisation}")
}

pub(super) fn paths(rows: &[Row]) -> Paths {
    let patterns: Vec<Pattern> = rows.iter().map(|row| Pattern::read(row.0).unwrap()).collect();
    let entry = |(route, pattern)| RouteEntry {
        route,
        pattern,
        methods: &[],
        spellings: spellings(rows[route].2),
    };
    let entries: Vec<RouteEntry<'_>> = patterns.iter().enumerate().map(entry).collect();
    let (paths, undecided) = Paths::new(&entries, |one, other| is_stricter(rows, one, other));
    assert_eq!(undecided, []);
    paths
}

/// The pattern of the route that a path leads to, or why it is refused.
pub(super) fn leads(paths: &Paths, rows: &[Row], path: &str) -> Result<&'static str, Malformed> {
    let target = target::read(path.as_bytes(), Some(b"h.test"))?;
    match paths.find(&Method::GET, &target)? {
        PathMatch::Route(route) => Ok(rows[route].0),
        other => panic!("{path}: {other:?}"),
    }
}

#[test]
fn targets_of_real_clients_pass_where_the_route_accepts_them() {
    let paths = paths(CONTROL);
    for (path, route) in [
        ("/v1/workspaces/ws_a/files/a%2Fb.txt", 3),
        ("/v1/workspaces/ws_a/files/", 3),
        ("/v1/workspaces/ws_a/files/a%3Ab%7Ec/", 3),
        ("/v1/workspaces/ws_a/files/https%3A%2F%2Fa.test%2Fb%3Fc%3Dd", 3),
        ("/v1/workspaces/ws_a/users/a%3Ab", 4),
        ("/v1/me/", 6),
        ("/api/projects/group%2Fproject/issues", 7),
        ("/api/projects/group%2Fsub%2Fproject/issues/7/", 7),
        ("/api/a%3Ab", 10),
        ("/api/7/", 10),
        ("/static/a%2Fb", 12),
    ] {
        assert_eq!(leads(&paths, CONTROL, path), Ok(CONTROL[route].0), "{path}");
    }
}

#[test]
fn what_a_route_does_not_accept_is_refused_as_everywhere() {
    let paths = paths(CONTROL);
    for (path, why) in [
        ("/v1/workspaces/ws_a/users/", Malformed::EmptySegment),
        ("/v1/workspaces/ws_a/users/a%2Fb", Malformed::NeedlessEscape),
        ("/v1/workspaces/ws_a/webhooks/a%3Ab", Malformed::NeedlessEscape),
        ("/v1/workspaces/ws_a/tenants:batch/", Malformed::EmptySegment),
        ("/v1/me%3A", Malformed::NeedlessEscape),
        ("/healthz/", Malformed::EmptySegment),
        ("/api/a%2Fb", Malformed::NeedlessEscape),
        ("/api/projects/a/..%2f..%2Fhealthz", Malformed::DotSegment),
        ("/v1/workspaces/ws_a/files/..%2F", Malformed::DotSegment),
        ("/static//a", Malformed::EmptySegment),
    ] {
        assert_eq!(leads(&paths, CONTROL, path), Err(why), "{path}");
    }
}

#[test]
fn a_spelling_that_decodes_to_another_route_is_refused_on_every_route() {
    let paths = paths(CONTROL);
    for path in [
        "/v1/workspaces/ws_a/tenants%3Abatch",
        "/v1/workspaces/ws_a/%74enants%3ABATCH",
        "/v1/workspaces/ws_a/%77ebhooks",
        "/v1/workspaces/ws_a/files%2Fa",
        "/v1/%77orkspaces/ws_b/",
        "/api/projects/a%2Fadmin/x",
        "/api/projects/a%2F%2Fadmin/x",
        "/api/projects/a/admin%2Fx",
        "/api/projects%2Fa/b",
        "/v1%2Fworkspaces%2Fws_a%2Fusers",
        "/%76%31/workspaces/ws_a/users",
        "/static%2F..%2Fv1",
        "/healthz%2F",
        // Another tenant, once the escaped slash is decoded.
        "/of/me%2Fws_b/ws_a/x",
        "/of/%2F/ws_b/ws_a/x",
        // Decoded twice.
        "/v1/workspaces/ws_a/%25%32%65%25%32%65/ws_b/y",
        "/v1/workspaces/ws_a/tenants%25%33%41batch",
        // Up to the first `;`.
        "/v1/workspaces/ws_a/tenants:batch;/x",
        "/v1/workspaces/ws_a/tenants:batch;a=b/c",
        "/v1/workspaces/ws_a/tenants:batch%3Bx/y",
        // Up to the first `?` or `#`, with `;` before it.
        "/api/projects/a;x/export%3Fy/z",
        "/api/projects/a%3Bx/export%3F/z",
        "/api/projects/a%3Bx/export%23/z",
        "/api/projects/a%3Fx/export;/z",
        "/api/projects/a%3Bx/export;/z",
    ] {
        assert!(leads(&paths, CONTROL, path).is_err(), "{path}");
    }
}

#[test]
fn what_only_resembles_a_stricter_route_is_refused() {
    let paths = paths(CONTROL);
    for path in [
        "/v1/workspaces/ws_a/tenants:Batch",
        "/v1/workspaces/ws_a/tenants:batch.json",
        "/v1/workspaces/ws_a/tenants:batch.",
        "/v1/workspaces/ws_a/tenants:batch%20",
        "/v1/workspaces/ws_a/%20tenants:batch",
        "/v1/workspaces/ws_a/tenants:batch%3Fx",
        "/v1/workspaces/ws_a/tenants:batch%3F/x",
        "/v1/workspaces/ws_a/tenants:batch%3f/x",
        "/v1/workspaces/ws_a/tenants:batch%23/x",
        "/v1/workspaces/ws_a/tenants:batch/%3Fx",
        "/v1/workspaces/ws_a/tenants:batch/%23/x",
        "/v1/workspaces/ws_a/tenants:batch+",
        "/v1/workspaces/ws_a/TENANTS:BATCH.tar.gz",
        "/v1/workspaces/ws_a/tenant\u{17f}:batch",
        "/v1/workspaces/ws_a/tenants\u{ff1a}batch",
        "/v1/workspaces/ws_a/tenants%EF%BC%9Abatch",
        "/v1/Workspaces/ws_a/tenants:batch",
        "/V1/workspaces/ws_a/x",
        "/v1/workspaces.json/ws_a",
        "/v1/Organisations/org_a",
        "/v1/organ\u{130}sations/org_a",
        "/v1/organ%C4%B0sations/org_a",
        "/v1/organ%C4%B1sations/org_a",
        "/v1/organi%CC%87sations/org_a",
        "/v1/wor\u{212a}spaces/ws_a",
        "/v1/%20/workspaces/ws_a",
        "/.../v1/workspaces/ws_a",
        "/API/projects/a/admin",
        "/of/%20/ws_b/ws_a",
        "/api/projects/a%23x/export%3F/z",
    ] {
        assert_eq!(leads(&paths, CONTROL, path), Err(Malformed::OtherRoute), "{path}");
    }
    for (path, route) in [
        ("/v1/workspaces/ws_a/tenants:batches", 4),
        ("/v1/workspaces/ws_a/tenants:batch-x", 4),
        ("/v1/workspaces/ws_a/x/tenants:Batch", 4),
        ("/v1/workspaces/ws_a/Webhooks", 4),
        ("/v1/workspaces/ws_a/webhooks.json", 4),
        ("/v1/workspaces/ws_a/...", 4),
        ("/v1/workspaces/ws_a/a%20b", 4),
        ("/v1/workspaces/ws_a/what%3F/x", 4),
        ("/v1/workspaces/ws_a/a;v=1/x", 4),
        ("/Healthz", 12),
        ("/healthz.json", 12),
    ] {
        assert_eq!(leads(&paths, CONTROL, path), Ok(CONTROL[route].0), "{path}");
    }
}

/// One change that servers make to a path.
type Step = fn(&str) -> String;

fn each(path: &str, change: impl Fn(&str) -> String) -> String {
    path.split('/').map(change).collect::<Vec<_>>().join("/")
}

fn decode(path: &str) -> String {
    String::from_utf8_lossy(&escapes::decoded(path)).into_owned()
}

/// Removes a file extension, which starts after a name: `.x` and `..x` are names.
fn without_ending(part: &str) -> String {
    let name = part.trim_start_matches('.');
    let dots = &part[..part.len() - name.len()];
    format!("{dots}{}", name.split('.').next().unwrap_or_default())
}

/// The changes that servers make, in the order that most use.
const STEPS: [Step; 11] = [
    |path| path.split(';').next().unwrap_or_default().to_owned(),
    |path| each(path, |part| part.split(';').next().unwrap_or_default().to_owned()),
    decode,
    // Again, as behind a proxy that decodes.
    decode,
    // Drops what was escaped and now looks like a query, a fragment or parameters.
    |path| path.split('?').next().unwrap_or_default().to_owned(),
    |path| path.split('#').next().unwrap_or_default().to_owned(),
    |path| path.split(';').next().unwrap_or_default().to_owned(),
    |path| each(path, |part| part.trim_matches([' ', '+']).to_owned()),
    |path| each(path, without_ending),
    str::to_lowercase,
    // Empty segments are dropped, dots resolved.
    |path| {
        let mut kept = Vec::new();
        for part in path.split('/') {
            match part {
                "" | "." => {}
                ".." => drop(kept.pop()),
                part => kept.push(part),
            }
        }
        format!("/{}", kept.join("/"))
    },
];

/// The readings of a path by servers that apply any subset of the steps.
fn read_by_servers(path: &str) -> BTreeSet<String> {
    STEPS.iter().fold(BTreeSet::from([path.to_owned()]), |mut readings, step| {
        let further: Vec<String> = readings.iter().map(|path| step(path)).collect();
        readings.extend(further);
        readings
    })
}

impl Dice {
    /// A random path that resembles those of the routes.
    fn path(&mut self) -> String {
        const PARTS: [&str; 18] = [
            "v1",
            "export",
            "workspaces",
            "ws_a",
            "ws_b",
            "tenants:batch",
            "webhooks",
            "files",
            "api",
            "projects",
            "admin",
            "of",
            "x",
            "organisations",
            "org_a",
            "healthz",
            "y",
            "me",
        ];
        const ROUTES: [&str; 5] = [
            "/v1/workspaces/ws_a",
            "/api/projects/x",
            "/of/x/ws_a",
            "",
            "/v1/workspaces/ws_a/files",
        ];
        let mut path = ROUTES[self.roll(ROUTES.len())].to_owned();
        for _ in 0..=self.roll(3) {
            path = format!("{path}/{}", PARTS[self.roll(PARTS.len())]);
        }
        for _ in 0..self.roll(3) {
            self.change(&mut path);
        }
        path
    }

    fn change(&mut self, path: &mut String) {
        const PUT: [&str; 18] = [
            "%2F",
            "%2f",
            "%20",
            ".",
            ".json",
            ";x",
            "%3A",
            "+",
            "/",
            "%2E%2E",
            "%3Bx",
            "/%20",
            "%25%32%46",
            "%25%32%65",
            "%3F/x",
            "/%23",
            ";/x",
            "%3f",
        ];
        let at = 1 + self.roll(path.len());
        let at = if self.roll(2) == 0 {
            path[at..].find('/').map_or(path.len(), |slash| at + slash)
        } else {
            at
        };
        let byte = path.as_bytes().get(at).copied();
        match (self.roll(3), byte) {
            (0, Some(byte)) if byte != b'%' => {
                path.replace_range(at..=at, &format!("%{byte:02X}"));
            }
            (1, Some(byte)) => {
                let upper = char::from(byte).to_ascii_uppercase().to_string();
                path.replace_range(at..=at, &upper);
            }
            _ => path.insert_str(at, PUT[self.roll(PUT.len())]),
        }
    }
}

#[test]
fn no_server_reads_a_stricter_route_or_another_tenant_in_what_is_admitted() {
    let paths = paths(CONTROL);
    // Case is ignored: in another case it is another tenant, which the token does not reach.
    fn own(name: Option<&str>) -> Option<String> {
        name.map(str::to_lowercase)
    }
    let names = |route: usize, path: &str| paths.routes[route].pattern.names(path).map(own);
    let (mut odd, mut refused) = (0, 0);
    for seed in 1..=6_000_u64 {
        let path = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)).path();
        let Ok(target) = target::read(path.as_bytes(), Some(b"h.test")) else { continue };
        let Ok(PathMatch::Route(route)) = paths.find(&Method::GET, &target) else {
            refused += 1;
            continue;
        };
        // `rules` refuses a tenant's name that is not an identifier.
        let is_name = |name: &Option<&str>| name.is_none_or(weir_common::identifier::is_identifier);
        if !paths.routes[route].pattern.names(&path).iter().all(is_name) {
            refused += 1;
            continue;
        }
        let is_odd = target.spellings != Spellings::NONE || target::has_parameters(&path);
        odd += usize::from(is_odd);
        for reading in read_by_servers(&path) {
            // A server looks up its reading in the same table.
            let Some(other) = paths.tree.find(&Method::GET, &reading) else { continue };
            let story = format!("seed {seed}: {path} leads to {}, {reading}", CONTROL[route].0);
            if is_odd {
                assert_eq!(CONTROL[other].0, CONTROL[route].0, "{story}");
                assert_eq!(names(other, &reading), names(route, &path), "{story}");
            } else {
                assert!(!is_stricter(CONTROL, other, route), "{story}: {}", CONTROL[other].0);
                let pairs = names(other, &reading).into_iter().zip(names(route, &path));
                let foreign = |(other, own): (Option<String>, _)| other.is_some() && other != own;
                assert!(!pairs.into_iter().any(foreign), "{story}: another tenant");
            }
        }
    }
    assert!(odd > 200 && refused > 200, "{odd} odd, {refused} refused");
}

#[test]
fn a_plain_path_is_never_refused() {
    let paths = paths(CONTROL);
    let mut dice = Dice(88_172_645_463_325_252);
    for _ in 0..2_000 {
        const PARTS: [&str; 6] = ["x", "users", "tenants:batches", "webhooks", "a-b", "files_2"];
        let parts: Vec<&str> = (0..1 + dice.roll(5)).map(|_| PARTS[dice.roll(6)]).collect();
        let path = format!("/v1/workspaces/ws_a/{}", parts.join("/"));
        assert!(leads(&paths, CONTROL, &path).is_ok(), "{path}");
    }
}
