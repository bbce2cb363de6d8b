//! The rate limits of a webhook's deliveries, and how they are explained.
//!
//! Not here: the limits at work (`scheduler`).

use url::Url;
use weir_common::config::document::shown;
use weir_common::limit::rolling::RollingQuota;

use crate::config::settings::Egress;
use crate::domain::estimate::{LimitScope, StartLimit};
use crate::domain::webhook::Webhook;
use crate::domain::webhook::options::per_minute;

/// The limits of a webhook's starts, its endpoint's first.
pub(super) fn start_limits(egress: &Egress, webhook: &Webhook) -> Vec<StartLimit> {
    let endpoint = LimitScope::Endpoint(webhook.endpoint);
    let mut limits = vec![StartLimit { scope: endpoint, quota: egress.per_endpoint() }];
    if let Some(most) = webhook.options.requests_per_minute {
        let scope = LimitScope::Webhook(webhook.id);
        limits.push(StartLimit { scope, quota: per_minute(most.get()) });
    }
    let url = Url::parse(&webhook.url).ok();
    if let Some(host) = url.as_ref().and_then(Url::host_str) {
        let scope = LimitScope::Host(host.to_owned());
        limits.push(StartLimit { scope, quota: egress.per_host() });
    }
    limits
}

/// What a limit allows, as a clause.
pub(super) fn pace_in_words(limit: &StartLimit) -> String {
    let RollingQuota { requests, window } = limit.quota;
    let most = format!("called at most {requests} times in {}", shown(window));
    match &limit.scope {
        LimitScope::Endpoint(_) => format!("an endpoint is {most}"),
        LimitScope::Webhook(_) => format!("the webhook is {most}, as its owner set"),
        LimitScope::Host(host) => format!("a workspace's webhooks at {host} are {most}, together"),
    }
}

/// What all of them allow.
pub(super) fn paces_in_words(limits: &[StartLimit]) -> String {
    limits.iter().map(pace_in_words).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::domain::id::{EndpointId, WebhookId};

    #[test]
    fn each_limit_has_its_words() {
        let limit = |scope, requests| {
            let quota = RollingQuota { requests, window: Duration::from_secs(60) };
            StartLimit { scope, quota }
        };
        let limits = [
            limit(LimitScope::Endpoint(EndpointId(1)), 100),
            limit(LimitScope::Webhook(WebhookId(1)), 5),
            limit(LimitScope::Host("hooks.example".into()), 1_000),
        ];
        assert_eq!(
            paces_in_words(&limits),
            "an endpoint is called at most 100 times in 1m; the webhook is called at most 5 times \
             in 1m, as its owner set; a workspace's webhooks at hooks.example are called at most \
             1000 times in 1m, together"
        );
    }
}
