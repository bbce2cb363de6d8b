//! Reports routes whose limits cannot be decided by one server of a Redis Cluster.
//!
//! A Cluster has a key on one of its servers, and one call decides all limits of a request: their
//! keys must be on the same server. Keys with a workspace or an organisation are where their
//! organisation is, others where the value of their first part is.

use crate::limit::shared::servers::address::Topology;
use crate::request::route::{Index, Pattern};
use crate::rules::Limit;
use crate::rules::compile::Checker;
use crate::settings::RawRoute;
use crate::settings::limit_key::{KeyPart, LimitKey};

impl Checker<'_> {
    /// Whether limits are counted in a Cluster.
    pub(super) fn is_cluster(&self) -> bool {
        let store = self.raw.settings.store.redis.as_ref();
        store.is_some_and(|store| store.address.topology == Topology::Cluster)
    }

    /// Reports the limits of a route, where their keys may be on different servers.
    pub(super) fn check_slots(
        &self,
        route: &RawRoute,
        pattern: &Pattern,
        own: &[Index],
        limits: &[Limit],
    ) {
        if !self.is_cluster() {
            return;
        }
        let limits: Vec<&Limit> = own.iter().filter_map(|index| limits.get(*index)).collect();
        let Some((first, others)) = limits.split_first() else { return };
        let at = route.limits.first().map_or(0, |name| name.at);
        for other in others {
            if !share_a_slot(&first.key, &other.key) {
                let text = format!(
                    "limits `{}` and `{}` cannot be decided together: in a Cluster their keys are \
                     on different servers. Limits of one route need keys with the same first part, \
                     or with a workspace or an organisation",
                    first.name, other.name
                );
                self.document.fault(at, text);
            }
        }
        let lacks_a_part = |limit: &&&Limit| {
            let parts = limit.key.parts();
            let is_elsewhere = parts.len() > 1 && parts.first() != Some(&KeyPart::Address);
            is_elsewhere && self.may_be_by_address(&limit.key, pattern)
        };
        if let Some(limit) = limits.iter().find(lacks_a_part).filter(|_| !others.is_empty()) {
            let text = format!(
                "limit `{}` may be charged to the client's address, whose key is on another server \
                 of the Cluster than those of the other limits: set missing = \"shared\"",
                limit.name
            );
            self.document.fault(at, text);
        }
    }
}

fn share_a_slot(one: &LimitKey, other: &LimitKey) -> bool {
    let by_organisation = |key: &LimitKey| {
        let part = |part: &KeyPart| matches!(part, KeyPart::Workspace | KeyPart::Organisation);
        key.parts().iter().any(part)
    };
    match (by_organisation(one), by_organisation(other)) {
        (true, true) => true,
        (false, false) => one.parts().first() == other.parts().first(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use weir_common::config::document::Document;
    use weir_common::directory::Directory;

    use crate::limit::key::Seed;

    const SHIPPED: &str = include_str!("../../../../config/gateway.toml");
    const CLUSTER: &str = "[store]\nkind = \"redis\"\nurl = \"redis://127.0.0.1\"\n\
        secret_file = \"/secret\"\ncluster = true\n";
    const OWN: &str = "algorithm = \"rolling_window\"\nrequests = 1\nwindow = \"1s\"\n";

    /// The problems of the shipped settings with this store, where the route of workspaces also has
    /// a limit with this key.
    fn problems(store: &str, key: &str) -> Vec<String> {
        let shipped = SHIPPED.replacen("[store]\nkind = \"memory\"", store, 1);
        let path = "path = \"/v1/workspaces/{workspace}/{*rest}\"";
        let (before, route) = shipped.split_once(path).unwrap();
        let route = route.replacen("limits = [", "limits = [\"own\", ", 1);
        let text = format!("{before}{path}{route}\n[limits.own]\n{key}\n{OWN}");
        let (document, of_directory) = (Document::new("g", &text), Document::new("d", ""));
        let raw = crate::settings::read::read(&document).made;
        let directory = Directory::read(&of_directory, &raw.settings.workspaces);
        let seed = Seed::new([1; 16]);
        let _ = crate::rules::compile::check((&raw, &document), (&directory, &of_directory), seed);
        document.diagnostics().into_iter().map(|diagnostic| diagnostic.message).collect()
    }

    #[test]
    fn limits_of_a_route_are_on_one_server_of_a_cluster() {
        for key in ["key = \"organisation\"", "key = [\"workspace\", \"address\"]"] {
            assert_eq!(problems(CLUSTER, key), [""; 0], "{key}");
        }
        let found = problems(CLUSTER, "key = \"address\"");
        assert!(found.iter().any(|why| why.contains("cannot be decided together")), "{found:?}");
        assert_eq!(
            problems("[store]\nkind = \"memory\"", "key = \"address\""),
            [""; 0],
            "in memory"
        );
        let single = CLUSTER.replace("cluster = true\n", "");
        assert_eq!(problems(&single, "key = \"address\""), [""; 0], "one server has all keys");
    }
}
