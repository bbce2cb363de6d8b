//! Rate limits in addition to an endpoint's: an owner's for its webhook, and a workspace's at one
//! host. (core)
//!
//! Without the second one, a workspace could register many URLs of one host, each with the rate of
//! an endpoint.
//!
//! Invariant: a start is asked of both limits, and of the endpoint's, before it is counted in any.
//!
//! Not here: who asks and counts (`pick`), the endpoint's own limit (`rate_limit`), for how long a
//! start counts (`starts`).

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};

use url::Url;
use weir_common::limit::rolling::RollingQuota;
use weir_common::time::Tick;

use crate::domain::attempt::EarlierStart;
use crate::domain::id::{EndpointId, WebhookId};
use crate::domain::pace::counted;
use crate::domain::webhook::options::per_minute;
use crate::scheduler::rate_limit::{Limits, Unrecorded};
use crate::scheduler::starts::{SentAttempt, Starts};

/// A workspace and a host, hashed with a random key: few bytes for each of many webhooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct HostKey(u64);

/// A URL, hashed in the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct UrlKey(u64);

/// The limits of a webhook's starts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    pub(super) webhook: WebhookId,
    /// Its owner's limit.
    pub(super) own: Option<RollingQuota>,
    pub(super) host: HostKey,
}

/// The starts that count in these limits.
#[derive(Debug, Default)]
pub(super) struct Paces {
    webhooks: HashMap<WebhookId, Starts>,
    hosts: HashMap<HostKey, Starts>,
    /// What was sent to URLs that were no endpoints yet.
    urls: HashMap<UrlKey, StartsAtUrl>,
    /// Hosts that admitted no start until an attempt was taken back.
    freed: HashSet<HostKey>,
    keys: RandomState,
}

/// What was sent to a URL that was no endpoint's.
#[derive(Debug)]
pub(super) struct StartsAtUrl {
    pub(super) starts: Starts,
    /// The endpoints that the URL became: they count these starts as well.
    pub(super) became: Vec<EndpointId>,
}

impl Paces {
    pub(super) fn key(&self, workspace: &str, url: &Url) -> HostKey {
        HostKey(self.keys.hash_one((workspace, url.host_str().unwrap_or_default())))
    }

    /// When both limits admit a start of the webhook; `now` if they do now.
    pub(super) fn free_at(
        &self,
        pace: Pace,
        limits: &Limits,
        unrecorded: &Unrecorded,
        now: Tick,
    ) -> Tick {
        let own = pace.own.map_or(now, |quota| match self.webhooks.get(&pace.webhook) {
            Some(starts) => starts.free_at(quota, now),
            None => unrecorded.starts(quota).free_at(quota, now),
        });
        own.max(self.host_free_at(pace.host, limits, now))
    }

    /// When a workspace's limit at a host admits a start; `now` if it does now.
    pub(super) fn host_free_at(&self, host: HostKey, limits: &Limits, now: Tick) -> Tick {
        self.hosts.get(&host).map_or(now, |starts| starts.free_at(limits.per_host, now))
    }

    /// Counts a start in both.
    pub(super) fn begin(
        &mut self,
        pace: Pace,
        limits: &Limits,
        unrecorded: &Unrecorded,
        now: Tick,
    ) {
        if let Some(quota) = pace.own {
            let new = || unrecorded.starts(quota);
            self.webhooks.entry(pace.webhook).or_insert_with(new).begin(quota, now);
        }
        self.begin_at_host(pace.host, limits, now);
    }

    /// Counts a start at a host.
    pub(super) fn begin_at_host(&mut self, host: HostKey, limits: &Limits, now: Tick) {
        self.hosts.entry(host).or_default().begin(limits.per_host, now);
    }

    /// Counts an attempt of a webhook in its owner's limit at the time of its request.
    pub(super) fn sent(&mut self, webhook: WebhookId, attempt: SentAttempt, now: Tick) {
        if let Some(starts) = self.webhooks.get_mut(&webhook) {
            starts.sent(counted(per_minute(u32::MAX)), attempt, now);
        }
    }

    /// Counts an attempt at a host at the time of its request.
    pub(super) fn sent_to_host(
        &mut self,
        host: HostKey,
        limits: &Limits,
        attempt: SentAttempt,
        now: Tick,
    ) {
        if let Some(starts) = self.hosts.get_mut(&host) {
            starts.sent(limits.per_host, attempt, now);
        }
    }

    /// Counts an attempt of a webhook no longer: it sent no request.
    pub(super) fn take_back(
        &mut self,
        (webhook, host): (WebhookId, HostKey),
        limits: &Limits,
        started: Tick,
        now: Tick,
    ) {
        if let Some(starts) = self.webhooks.get_mut(&webhook) {
            starts.take_back(started);
        }
        let was_full = self.host_free_at(host, limits, now) > now;
        if let Some(starts) = self.hosts.get_mut(&host) {
            starts.take_back(started);
        }
        if was_full {
            self.freed.insert(host);
        }
    }

    /// Removes and returns the hosts that admitted no start until an attempt was taken back.
    pub(super) fn take_freed(&mut self) -> HashSet<HostKey> {
        std::mem::take(&mut self.freed)
    }

    /// What was sent to a URL that was no endpoint's.
    pub(super) fn at_url(&mut self, url: &Url, new: impl FnOnce() -> Starts) -> &mut StartsAtUrl {
        let key = UrlKey(self.keys.hash_one(url.as_str()));
        let new = || StartsAtUrl { starts: new(), became: Vec::new() };
        self.urls.entry(key).or_insert_with(new)
    }

    /// What was sent to a URL that becomes this endpoint's, unless it is known to be.
    pub(super) fn becomes(&mut self, endpoint: EndpointId, url: &Url) -> Option<Starts> {
        if self.urls.is_empty() {
            return None;
        }
        let at = self.urls.get_mut(&UrlKey(self.keys.hash_one(url.as_str())))?;
        if at.became.contains(&endpoint) {
            return None;
        }
        at.became.push(endpoint);
        Some(at.starts.clone())
    }

    /// Counts a start before this process did.
    pub(super) fn seed(
        &mut self,
        start: &EarlierStart,
        limits: &Limits,
        unrecorded: &Unrecorded,
        sent: Tick,
    ) {
        if let Some(webhook) = start.webhook {
            let quota = counted(per_minute(u32::MAX));
            let new = || unrecorded.starts(quota);
            self.webhooks.entry(webhook).or_insert_with(new).count(quota, sent);
        }
        let url = start.url.as_deref().and_then(|url| Url::parse(url).ok());
        if let (Some(workspace), Some(url)) = (&start.workspace, url) {
            let host = self.key(workspace, &url);
            self.hosts.entry(host).or_default().count(limits.per_host, sent);
        }
    }

    /// Counts the starts that an earlier process may have made without a record, of webhooks: at a
    /// host there may be any number.
    pub(super) fn seed_unrecorded(&mut self, count: usize, at: Tick) {
        let quota = counted(per_minute(u32::MAX));
        for starts in self.webhooks.values_mut() {
            (0..count).for_each(|_| starts.count(quota, at));
        }
    }

    /// Applies a changed window.
    pub(super) fn fit(&mut self, limits: &Limits, now: Tick) {
        self.hosts.values_mut().for_each(|starts| starts.fit(limits.per_host, now));
        self.urls.values_mut().for_each(|at| at.starts.fit(limits.quota, now));
    }

    /// Evicts what no longer counts.
    pub(super) fn forget_idle(&mut self, limits: &Limits, now: Tick) {
        let own = counted(per_minute(1));
        self.webhooks.retain(|_, starts| starts.count_any(own, now));
        self.hosts.retain(|_, starts| starts.count_any(limits.per_host, now));
        self.urls.retain(|_, at| at.starts.count_any(limits.quota, now));
    }
}
