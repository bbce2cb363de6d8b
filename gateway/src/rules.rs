//! The rules that a request meets, made of settings and directory.
//!
//! Everything that names something else is looked up here, once: a request follows places, not
//! names. A reload makes new rules beside the old ones; a request keeps those it began with.
//!
//! # Invariants
//!
//! 1. A limit that could never find its key is an error, never a limit that is skipped.
//! 2. A tenant's own value comes before its plan's, and that before the limit's own.
//! 3. An instance has values of its own only where its workspace's plan allows it.
//!
//! # Not here
//!
//! Which errors there can be (`rules::compile`), what is asked about a limit by its name
//! (`rules::by_name`), what has been used (`limit`).

pub mod retention;
pub mod tenant;

pub mod by_name;
pub mod compile;
pub mod quota;

use std::net::IpAddr;
use std::sync::Arc;

use arrayvec::ArrayVec;
use http::Method;
use weir_common::identifier::{IdForm, is_identifier};

use crate::limit::key::{Key, LimitTag, Seed};
use crate::limit::{CHECKS_MAX, LimitCheck, Quota};
use crate::request::cors::Cors;
use crate::request::route::{Hosts, Index, PathMatch, Paths, Pattern};
use crate::request::target::{Malformed, Target};
use crate::rules::tenant::{Identity, Subject, TenantEntries, TenantRefs, Tenants};
use crate::settings::LimitKey;
use crate::settings::spellings::Spellings;

/// What is active.
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
    /// The tenants of the directory's file.
    pub tenants: Tenants,
    /// What identifiers of workspaces look like.
    pub workspaces: IdForm,
    /// Whether the directory is a file, which lists all tenants.
    is_file: bool,
    /// Whether tenants that the directory does not know are charged to the client's address.
    by_address: bool,
    hosts: Hosts,
    /// By plane.
    paths: Vec<Paths>,
    /// By address, for requests that no tenant can be charged with.
    unknown_limits: Vec<Index>,
    seed: Seed,
}

/// A plane.
#[derive(Clone)]
pub struct Plane {
    /// Its name.
    pub name: String,
    /// Which origins browsers let read its responses.
    pub cors: Option<Cors>,
}

/// A route, with what it names looked up.
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
    /// Where requests go.
    pub upstream: Index,
    /// What is asked of the body, where this is a batch route.
    pub batch: Option<Batch>,
    /// Whether a token is asked for.
    pub needs_token: bool,
    /// The spellings of a path that it takes beyond those that every route takes.
    pub spellings: Spellings,
}

/// What a batch may be.
#[derive(Clone, Copy, Debug)]
pub struct Batch {
    /// Items of the array.
    pub items_max: u64,
    /// Bytes of the body.
    pub bytes_max: u64,
}

/// A limit, by which states are found.
#[derive(Clone, Debug)]
pub struct Limit {
    /// Its name.
    pub name: Arc<str>,
    /// What its states are found by: its name alone, so that they outlive a change of values.
    pub tag: LimitTag,
    /// Whose allowance it is.
    pub key: LimitKey,
    /// Its own values.
    pub quota: Quota,
    /// Whether it refuses.
    pub enforced: bool,
}

/// A plan.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Its name.
    pub name: String,
    /// Whether instances may have values of their own.
    pub per_instance_limits: bool,
    /// Its values, by limit.
    pub quotas: Vec<(Index, Quota)>,
}

/// Where a request leads, and whom it names.
#[derive(Clone)]
pub struct RouteMatch<'r> {
    /// The route.
    pub route: &'r Route,
    /// Its place.
    pub index: Index,
    /// Whom its target names.
    pub names: TenantRefs<'r>,
}

/// Why a request leads nowhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteError {
    /// No plane has the host.
    UnknownHost,
    /// No route of the plane has the path.
    UnknownPath(Index),
    /// The routes that have the path take other methods.
    OtherMethods(Index, Vec<Method>),
    /// Something in it has two readings.
    Malformed(Malformed),
}

impl RouteError {
    /// The plane of its host, where one has it.
    #[must_use]
    pub fn plane(&self) -> Option<Index> {
        match self {
            Self::UnknownPath(plane) | Self::OtherMethods(plane, _) => Some(*plane),
            Self::UnknownHost | Self::Malformed(_) => None,
        }
    }
}

/// One limit's question, and about whom.
#[derive(Clone)]
pub struct Charge {
    /// Which limit.
    pub limit: Index,
    /// Whose allowance, as logs and the admin listener have it.
    pub name: Arc<str>,
}

/// The questions of one request, and about whom each is.
#[derive(Clone, Default)]
pub struct Charges {
    /// What the store is asked.
    pub checks: ArrayVec<LimitCheck, CHECKS_MAX>,
    /// About whom, in the same order.
    pub charges: ArrayVec<Charge, CHECKS_MAX>,
}

impl Rules {
    /// Leads a request to its route and the tenants that it names.
    pub fn match_route<'r>(
        &'r self,
        target: &'r Target<'_>,
        method: &Method,
    ) -> Result<RouteMatch<'r>, RouteError> {
        let found = self.hosts.find(&target.host);
        // Where there are no routes there are none that take an odd spelling.
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

    /// The plane of a path, and the methods that it takes: those that its routes list, or the one
    /// that is asked about where one of them takes all.
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

    /// What browsers are told on a plane, or on that of `host` where nothing more is known.
    #[must_use]
    pub fn cors(&self, plane: Option<Index>, host: Option<&str>) -> Option<&Cors> {
        let of_host = || self.hosts.find(host?).map(|(plane, _)| plane);
        self.planes.get(plane.or_else(of_host)?)?.cors.as_ref()
    }

    /// Whom a request could be charged to, by the entries that were asked for, or else by those
    /// of the file.
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

    /// What tenants and addresses are found by.
    #[must_use]
    pub fn seed(&self) -> &Seed {
        &self.seed
    }

    /// Makes all keys with another seed: that of an earlier process whose counters are restored.
    pub fn rekey(&mut self, seed: Seed) {
        self.seed = seed;
        for limit in &mut self.limits {
            limit.tag = seed.limit(&limit.name);
        }
        self.tenants.rekey(&seed);
    }

    /// Whether one of a route's limits is kept for this kind of key.
    #[must_use]
    pub fn is_limited_by(&self, route: &Route, key: LimitKey) -> bool {
        let mut limits = route.limits.iter().filter_map(|index| self.limits.get(*index));
        limits.any(|limit| limit.key == key)
    }

    /// What a request on this way asks of which limits. Nothing, where the route is exempt.
    #[must_use]
    pub fn charges(&self, route: &Route, identity: &Identity<'_>, address: IpAddr) -> Charges {
        let mut charges = Charges::default();
        let mut by_address = false;
        for index in &route.limits {
            let Some(limit) = self.limits.get(*index) else { continue };
            if limit.key == LimitKey::Address {
                self.charge_address(*index, limit, address, &mut charges);
                continue;
            }
            match self.subject(limit.key, identity) {
                Some(subject) => {
                    let quota = self.quota(*index, limit, identity);
                    charges.push(*index, limit, subject, quota);
                }
                None => by_address = true,
            }
        }
        if by_address {
            self.charge_by_address(address, &mut charges);
        }
        charges
    }

    /// Charges a request that has no tenant to its address.
    pub fn charge_by_address(&self, address: IpAddr, charges: &mut Charges) {
        for index in &self.unknown_limits {
            let Some(limit) = self.limits.get(*index) else { continue };
            self.charge_address(*index, limit, address, charges);
        }
    }

    fn charge_address(&self, index: Index, limit: &Limit, address: IpAddr, to: &mut Charges) {
        if !to.charges.iter().any(|charge| charge.limit == index) {
            to.push(index, limit, &Subject::address(&self.seed, address), limit.quota);
        }
    }

    /// The subject that a limit charges: none where the request names none, or where the directory
    /// does not know it and the address is charged.
    fn subject<'i>(&self, key: LimitKey, identity: &'i Identity<'i>) -> Option<&'i Subject<'i>> {
        let subject = match key {
            LimitKey::Workspace => identity.workspace.as_ref(),
            LimitKey::Organisation => identity.organisation.as_ref(),
            LimitKey::Instance => identity.instance.as_ref(),
            LimitKey::Address => None,
        };
        subject.filter(|subject| subject.tenant.is_some() || !self.by_address)
    }
}

impl Charges {
    fn push(&mut self, index: Index, limit: &Limit, subject: &Subject<'_>, quota: Quota) {
        // The settings allow no more than there is room for.
        if !self.checks.is_full() {
            self.checks.push(limit_check(limit, subject, quota));
            self.charges.push(Charge { limit: index, name: subject.name.clone() });
        }
    }
}

fn limit_check(limit: &Limit, subject: &Subject<'_>, quota: Quota) -> LimitCheck {
    LimitCheck {
        key: Key::new(subject.owner, limit.tag),
        limit: limit.tag,
        quota,
        lasting: quota,
        enforced: limit.enforced,
        known: subject.tenant.is_some(),
    }
}
