//! Counts the requests to receivers that are no deliveries: checks of a URL, and challenges. (core)
//!
//! Such a request starts at once or not at all: a person waits for its result.
//!
//! # Invariants
//!
//! 1. It counts in the rate limit of its endpoint and in its workspace's at the host, or in none.
//! 2. One to a URL that is no endpoint's yet counts in each endpoint that this URL becomes, also
//!    where it is in flight when that happens.
//!
//! Not here: how many a workspace may send (`api::test_limit`), sending them (`api::url_checks`).

use std::sync::Arc;

use url::Url;
use weir_common::time::Tick;

use crate::domain::id::EndpointId;
use crate::scheduler::Scheduler;
use crate::scheduler::starts::{SentAttempt, Starts};

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
        let mut free_at = self.paces.host_free_at(host, &limits, now);
        self.counting(check, |starts| free_at = free_at.max(starts.free_at(limits.quota, now)));
        if free_at > now {
            return Err(free_at);
        }
        self.counting(check, |starts| starts.begin(limits.quota, now));
        self.paces.begin_at_host(host, &limits, now);
        Ok(())
    }

    /// Counts a request that started at `started` as sent now.
    pub fn end_check(&mut self, check: &CheckedUrl, started: Tick, now: Tick) {
        let (limits, attempt) = (self.policies.limits, SentAttempt { started, sent: now });
        self.counting(check, |starts| starts.sent(limits.quota, attempt, now));
        let host = self.paces.key(&check.workspace, &check.url);
        self.paces.sent_to_host(host, &limits, attempt, now);
    }

    /// Calls `each` with all starts that count a request: its endpoint's; or its URL's and those of
    /// the endpoints that the URL became meanwhile.
    fn counting(&mut self, check: &CheckedUrl, mut each: impl FnMut(&mut Starts)) {
        let became = match check.endpoint {
            Some(endpoint) => {
                self.inherit_checks(endpoint, &check.url);
                vec![endpoint]
            }
            None => {
                let (quota, unrecorded) = (self.policies.limits.quota, &self.unrecorded);
                let at = self.paces.at_url(&check.url, || unrecorded.starts(quota));
                each(&mut at.starts);
                at.became.clone()
            }
        };
        for endpoint in became {
            each(&mut self.endpoint(endpoint).starts);
        }
    }

    /// Counts what was sent to a URL before it was this endpoint's, and what is in flight to it.
    pub(super) fn inherit_checks(&mut self, endpoint: EndpointId, url: &Url) {
        let quota = self.policies.limits.quota;
        let Some(earlier) = self.paces.becomes(endpoint, url) else { return };
        self.endpoint(endpoint).starts.inherit(&earlier, quota);
    }
}
