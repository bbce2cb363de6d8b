//! Counts the requests to receivers that are no deliveries: checks of a URL, and challenges. (core)
//!
//! Such a request starts at once or not at all: a person waits for its result.
//!
//! # Invariants
//!
//! 1. It counts in the rate limit of its endpoint and in its workspace's at the host, or in none.
//! 2. One to a URL that is no endpoint's yet counts in the endpoint that this URL becomes.
//!
//! Not here: how many a workspace may send (`api::test_limit`), sending them (`api::url_checks`).

use std::sync::Arc;

use url::Url;
use weir_common::time::Tick;

use crate::domain::id::EndpointId;
use crate::scheduler::Scheduler;
use crate::scheduler::starts::SentAttempt;

/// The receiver of such a request.
#[derive(Clone, Debug)]
pub struct CheckedUrl {
    /// The endpoint, if a webhook has this URL.
    pub endpoint: Option<EndpointId>,
    /// The workspace that sends it.
    pub workspace: Arc<str>,
    /// The canonical URL.
    pub url: Url,
}

impl Scheduler {
    /// Counts a request; or returns when the limits admit it.
    pub fn charge_check(&mut self, check: &CheckedUrl, now: Tick) -> Result<(), Tick> {
        let limits = self.policies.limits;
        let host = self.paces.key(&check.workspace, &check.url);
        let at_host = self.paces.host_free_at(host, &limits, now);
        let starts = match check.endpoint {
            Some(endpoint) => &mut self.endpoint(endpoint).starts,
            None => self.paces.starts_at(&check.url, || self.unrecorded.starts(limits.quota)),
        };
        let free_at = starts.free_at(limits.quota, now).max(at_host);
        if free_at > now {
            return Err(free_at);
        }
        starts.begin(limits.quota, now);
        self.paces.begin_at_host(host, &limits, now);
        Ok(())
    }

    /// Counts a request that started at `started` as sent now. If its URL became an endpoint's
    /// meanwhile, it counts there from its start.
    pub fn end_check(&mut self, check: &CheckedUrl, started: Tick, now: Tick) {
        let (limits, attempt) = (self.policies.limits, SentAttempt { started, sent: now });
        let starts = match check.endpoint {
            Some(endpoint) => &mut self.endpoint(endpoint).starts,
            None => self.paces.starts_at(&check.url, Default::default),
        };
        starts.sent(limits.quota, attempt, now);
        let host = self.paces.key(&check.workspace, &check.url);
        self.paces.sent_to_host(host, &limits, attempt, now);
    }

    /// Counts what was sent to a URL before it was this endpoint's.
    pub(super) fn inherit_checks(&mut self, endpoint: EndpointId, url: &Url) {
        let quota = self.policies.limits.quota;
        let Some(earlier) = self.paces.take_starts_at(url) else { return };
        self.endpoint(endpoint).starts.inherit(&earlier, quota);
    }
}
