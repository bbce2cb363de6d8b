//! The rules that apply to requests, compiled from settings and directory.
//!
//! References by name are resolved to indexes once, at compile time. A reload compiles new rules
//! beside the old ones; a request keeps the rules that it started with.
//!
//! # Invariants
//!
//! 1. A limit whose key no request of a route can have is an error; it is never skipped.
//! 2. A tenant's own value precedes its plan's value, which precedes the limit's default.
//! 3. An instance has values of its own only if its workspace's plan allows it.
//!
//! # Not here
//!
//! Errors in the settings (`rules::compile`), the key that a limit charges (`rules::subject`),
//! look-ups of a limit by name (`rules::by_name`), what has been used (`limit`).

pub mod charges;
pub mod retention;
pub mod tenant;

pub mod by_name;
pub mod compile;
pub mod quota;
pub mod subject;

use std::collections::BTreeSet;
use std::sync::Arc;

use http::Method;
use serde_json::Value;
use weir_common::directory::values::Values;
use weir_common::identifier::{IdForm, is_identifier};

use crate::limit::key::{LimitTag, Seed};
use crate::limit::{Horizon, Quota, StoreFailure};
use crate::request::cors::Cors;
use crate::request::route::{Hosts, Index, PathMatch, Paths, Pattern};
use crate::request::target::{Malformed, Target};
use crate::rules::tenant::{Identity, TenantEntries, TenantRefs, Tenants};
use crate::settings::RouteCost;
use crate::settings::limit_key::{KeyPart, LimitKey};
use crate::settings::spellings::Spellings;

/// The rules of one configuration.
#[derive(Clone)]
pub struct Rules {
    /// The routes, in the order of the file.
    pub routes: Vec<Route>,
    /// The limits, in the order of their names.
    pub limits: Vec<Limit>,
    /// The plans, in the order of their names.
    pub plans: Vec<Plan>,
    /// The planes, in the order of their names.
    pub planes: Vec<Plane>,
    /// The tenants in the directory file.
    pub tenants: Arc<Tenants>,
    /// What identifiers of workspaces look like.
    pub workspaces: IdForm,
    /// Whether the directory is a file, which lists all tenants.
    is_file: bool,
    /// Whether tenants that the directory does not know are charged to the client's address.
    by_address: bool,
    /// Whether the keys of a workspace must be beside those of its organisation: in a Cluster.
    is_cluster: bool,
    hosts: Arc<Hosts>,
    /// The paths of the routes of each plane.
    paths: Vec<Paths>,
    /// Limits by address, for requests that cannot be charged to a tenant.
    unknown_limits: Vec<Index>,
    /// The limit by address that the gateway's own refusals charge.
    refused: Option<Index>,
    seed: Seed,
}

/// A plane.
#[derive(Clone)]
pub struct Plane {
    /// Its name.
    pub name: String,
    /// Which origins may read its responses in a browser.
    pub cors: Option<Cors>,
}

/// A route, with its references as indexes.
#[derive(Clone, Debug)]
pub struct Route {
    /// Its path.
    pub pattern: Pattern,
    /// Its plane.
    pub plane: Index,
    /// Its methods; all where empty.
    pub methods: Vec<Method>,
    /// Whether no limit applies.
    pub exempt: bool,
    /// The limits that apply.
    pub limits: Vec<Index>,
    /// Its upstream.
    pub upstream: Index,
    /// What a request costs in each of its limits.
    pub cost: RouteCost,
    /// The largest body, in bytes.
    pub body_bytes_max: Option<u64>,
    /// Whether the gateway itself answers, with the limits of the request's tenants.
    pub answers_limits: bool,
    /// The bounds of the body, where this is a batch route.
    pub batch: Option<Batch>,
    /// Whether a token is required.
    pub needs_token: bool,
    /// The spellings of a path that it accepts beyond those that every route accepts.
    pub spellings: Spellings,
}

/// The bounds of a batch.
#[derive(Clone, Copy, Debug)]
pub struct Batch {
    /// The most items of the array.
    pub items_max: u64,
    /// The largest body, in bytes.
    pub bytes_max: u64,
}

/// A limit.
#[derive(Clone, Debug)]
pub struct Limit {
    /// Its name.
    pub name: Arc<str>,
    /// Its part of the keys of its states: from its name alone, so that states outlive a change of
    /// values.
    pub tag: LimitTag,
    /// The same of its states that count requests in flight.
    pub in_flight: LimitTag,
    /// What it counts by.
    pub key: LimitKey,
    /// Its own values.
    pub quota: Quota,
    /// How long a charge can matter, under its own values and all others that the files have.
    pub horizon: Horizon,
    /// Whether it refuses, or only observes.
    pub enforced: bool,
    /// One quota of each algorithm, window and calendar that the files have for it.
    pub shapes: Vec<Quota>,
    /// Whether the headers of responses may show it.
    pub shown: bool,
    /// What decides while a shared store is away.
    pub on_failure: StoreFailure,
    /// At which share of the allowance to warn, in millionths; 0: never.
    pub warn_at: u32,
}

/// A plan.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Its name.
    pub name: String,
    /// Whether instances may have values of their own.
    pub per_instance_limits: bool,
    /// The values of limits that it overrides.
    pub quotas: Vec<(Index, Quota)>,
}

/// The route of a request, and the tenants that it names.
#[derive(Clone)]
pub struct RouteMatch<'r> {
    /// The route.
    pub route: &'r Route,
    /// The index of the route.
    pub index: Index,
    /// The tenants that the target names.
    pub names: TenantRefs<'r>,
}

/// Why a request has no route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteError {
    /// The host belongs to no plane.
    UnknownHost,
    /// No route of the plane matches the path.
    UnknownPath(Index),
    /// The routes that match the path accept only these methods.
    OtherMethods(Index, Vec<Method>),
    /// The request is malformed or ambiguous.
    Malformed(Malformed),
}

impl RouteError {
    /// The plane of the host, where it is known.
    #[must_use]
    pub fn plane(&self) -> Option<Index> {
        match self {
            Self::UnknownPath(plane) | Self::OtherMethods(plane, _) => Some(*plane),
            Self::UnknownHost | Self::Malformed(_) => None,
        }
    }
}

impl Rules {
    /// Finds the route of a request, and the tenants that its target names.
    pub fn match_route<'r>(
        &'r self,
        target: &'r Target<'_>,
        method: &Method,
    ) -> Result<RouteMatch<'r>, RouteError> {
        let found = self.hosts.find(&target.host);
        // Without a plane no route can accept a non-default spelling.
        let spelled = found.map_or(target.spellings, |_| Spellings::NONE);
        spelled.within(Spellings::NONE).map_err(RouteError::Malformed)?;
        let (plane, instance) = found.ok_or(RouteError::UnknownHost)?;
        let identifier = |name: Option<&str>| {
            name.is_none_or(is_identifier)
                .then_some(())
                .ok_or(RouteError::Malformed(Malformed::Identifier))
        };
        identifier(instance)?;
        let paths = self.paths.get(plane).ok_or(RouteError::UnknownHost)?;
        let index = match paths.find(method, target).map_err(RouteError::Malformed)? {
            PathMatch::Route(index) => index,
            PathMatch::OtherMethods(methods) => {
                return Err(RouteError::OtherMethods(plane, methods));
            }
            PathMatch::Nothing => return Err(RouteError::UnknownPath(plane)),
        };
        let route = self.routes.get(index).ok_or(RouteError::UnknownPath(plane))?;
        let [workspace, organisation] = route.pattern.names(target.path);
        if workspace.is_some_and(|name| !self.workspaces.allows(name)) {
            return Err(RouteError::Malformed(Malformed::Identifier));
        }
        identifier(organisation)?;
        let names = TenantRefs { workspace, organisation, instance, ..TenantRefs::default() };
        Ok(RouteMatch { route, index, names })
    }

    /// The plane of a path, and the methods that its routes accept: those that they list, or
    /// `requested` where a route accepts all.
    pub fn methods(
        &self,
        target: &Target<'_>,
        requested: &Method,
    ) -> Result<(Index, Vec<Method>), RouteError> {
        let plane = match self.match_route(target, requested) {
            Ok(route_match) => route_match.route.plane,
            Err(RouteError::OtherMethods(plane, methods)) => return Ok((plane, methods)),
            Err(route_error) => return Err(route_error),
        };
        let listing = self.paths.get(plane).filter(|paths| !paths.accepts_all(target.path));
        let methods = listing.map(|paths| paths.methods(target.path));
        Ok((plane, methods.unwrap_or_else(|| vec![requested.clone()])))
    }

    /// The plane of a host name (in lower case).
    #[must_use]
    pub fn plane_of(&self, host: &str) -> Option<Index> {
        self.hosts.find(host).map(|(plane, _)| plane)
    }

    /// The CORS settings of a plane.
    #[must_use]
    pub fn cors(&self, plane: Index) -> Option<&Cors> {
        self.planes.get(plane)?.cors.as_ref()
    }

    /// The tenants that a request may be charged to, from fetched entries if there are any, or else
    /// from the directory file.
    #[must_use]
    pub fn identify<'r>(
        &'r self,
        names: &TenantRefs<'_>,
        known: Option<&'r TenantEntries>,
    ) -> Identity<'r> {
        match known {
            Some(known) => known.identify(&self.seed, names),
            None => self.tenants.identify(&self.seed, names),
        }
    }

    /// The seed of the keys of tenants and addresses.
    #[must_use]
    pub fn seed(&self) -> &Seed {
        &self.seed
    }

    /// The same without the tenants of the directory file and the hosts, their domains among them:
    /// these need nearly all of the memory. It matches no route.
    #[must_use]
    pub fn without_tenants(&self) -> Self {
        Self { tenants: Arc::default(), hosts: Arc::default(), ..self.clone() }
    }

    /// Derives all keys from another seed: that of an earlier process whose counters are restored.
    pub fn rekey(&mut self, seed: Seed) {
        self.seed = seed;
        for limit in &mut self.limits {
            [limit.tag, limit.in_flight] = Limit::tags(&seed, &limit.name);
        }
        Arc::make_mut(&mut self.tenants).rekey(&seed);
    }

    /// The tag of a limit's states of a quota. Requests in flight have keys of their own: a limit
    /// that changes between them and another algorithm forgets and confuses nothing. So has a
    /// quota of another algorithm, window or calendar, where it `varies` from request to request:
    /// a state that is converted there and back each time would forget what it counted.
    fn tag_of(&self, limit: &Limit, quota: Quota, varies: bool) -> LimitTag {
        let shape = |quota| Values { requests: None, rate: None, burst: None, ..Values::of(quota) };
        match quota {
            Quota::Concurrency(_) => limit.in_flight,
            _ if varies && !quota.is_alike(&limit.quota) => {
                let shape = Value::from(shape(quota).to_json());
                self.seed.limit(&format!("{} by {shape}", limit.name))
            }
            _ => limit.tag,
        }
    }

    /// Whether one of a route's limits counts by this part.
    #[must_use]
    pub fn is_limited_by(&self, route: &Route, part: &KeyPart) -> bool {
        let mut limits = route.limits.iter().filter_map(|index| self.limits.get(*index));
        limits.any(|limit| limit.key.parts().contains(part))
    }

    /// The claims that limits count by, in order, each once.
    #[must_use]
    pub fn key_claims(&self) -> Vec<Arc<str>> {
        let all = self.limits.iter().flat_map(|limit| limit.key.claims()).cloned();
        all.collect::<BTreeSet<_>>().into_iter().collect()
    }
}

impl Limit {
    /// Derives its tags from `seed`.
    fn tags(seed: &Seed, name: &str) -> [LimitTag; 2] {
        [seed.limit(name), seed.limit(&[name, " in flight"].concat())]
    }
}
