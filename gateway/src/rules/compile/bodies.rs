//! Reports contradictions in what a route does with bodies, costs and answers of its own.

use crate::limit::Quota;
use crate::rules::compile::Checker;
use crate::rules::compile::keys::NamedParts;
use crate::rules::{Batch, Rules};
use crate::settings::{RawRoute, RouteCost};

/// The largest body of a batch where the route sets none.
const BATCH_BYTES: u64 = 1 << 20;

/// The largest body of a batch that a route may set: it is buffered.
const BATCH_BYTES_MAX: u64 = 64 << 20;

impl Checker<'_> {
    /// The bounds of a batch, or the largest body of any other request.
    pub(super) fn body(&self, route: &RawRoute) -> (Option<Batch>, Option<u64>) {
        let bytes_max = route.body_bytes_max.as_ref();
        let Some(items_max) = &route.batch_items_max else {
            return (None, bytes_max.map(|bytes| bytes.value));
        };
        if let Some(bytes) = bytes_max.filter(|bytes| bytes.value > BATCH_BYTES_MAX) {
            let text = "a batch is buffered: its `body_bytes_max` must be at most 64MiB";
            self.document.fault(bytes.at, text);
        }
        let (at, bytes_max) = bytes_max.map_or((route.at, BATCH_BYTES), |one| (one.at, one.value));
        let held = self.raw.settings.server.caps.held_bytes_max;
        if bytes_max > held {
            let text = format!(
                "a batch of {bytes_max} bytes would never pass: `server.held_bytes_max` is {held}; \
                 raise it, or lower `body_bytes_max` of the route"
            );
            self.document.fault(at, text);
        }
        (Some(Batch { items_max: items_max.value, bytes_max }), None)
    }

    /// Whether a route answers with limits; reports one that shows them to anybody.
    pub(super) fn answers_limits(
        &self,
        route: &RawRoute,
        needs_token: bool,
        named: &NamedParts,
    ) -> bool {
        let fault = |text: &str| self.document.fault(route.at, text);
        if !route.answers_limits {
            if route.public {
                fault("`public` is used only with answer = \"limits\": remove it");
            }
            return false;
        }
        if !needs_token && !route.public {
            fault(
                "answer = \"limits\" shows to anybody what a tenant has used, because this route \
                 needs no token: set identity.verify, or public = true",
            );
        }
        if route.exempt {
            fault("answer = \"limits\" costs what its limits say: remove exempt");
        }
        if !named.organisation {
            fault("answer = \"limits\" needs {workspace} or {organisation} in the path");
        }
        if route.batch_items_max.is_some() || route.upstream.is_some() {
            fault("answer = \"limits\" has no batch and no upstream: remove them");
        }
        true
    }

    /// Reports costs that a limit never admits.
    pub(super) fn check_costs(&self, rules: &Rules) {
        for (raw, route) in self.raw.routes.iter().zip(&rules.routes) {
            let Some(cost) = &raw.cost else { continue };
            if route.limits.is_empty() {
                self.document.fault(cost.at, "`cost` has no effect on a route without limits");
            }
            let most = match (cost.value, &route.batch) {
                (RouteCost::Fixed(cost), _) => cost.into(),
                (RouteCost::Items, Some(batch)) => batch.items_max,
                (RouteCost::Items, None) => {
                    let text = "cost = \"items\" is used only for batches: add batch_items_max";
                    self.document.fault(cost.at, text);
                    continue;
                }
            };
            for index in &route.limits {
                let Some(limit) = rules.limits.get(*index) else { continue };
                let of_plans = rules.values_of_plans(*index).map(|(_, quota)| quota);
                let counts = |quota: &Quota| !matches!(quota, Quota::Concurrency(_));
                let quotas = of_plans.chain([limit.quota]).filter(counts);
                let least = quotas.map(|quota| quota.limit()).min().filter(|n| most > (*n).into());
                if let Some(least) = least {
                    let text = format!(
                        "a request may cost {most}, and limit `{}` has {least}: it would never \
                         pass; lower the cost or raise the limit",
                        limit.name
                    );
                    self.document.fault(cost.at, text);
                }
            }
        }
    }
}
