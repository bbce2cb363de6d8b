//! Rate limits in addition to an endpoint's: an owner's for its webhook, and a workspace's at one
//! host. (core)
//!
//! Without the second one, a workspace could register many URLs of one host, each with the rate of
//! an endpoint.
//!
//! Invariant: a start is asked of both limits, and of the endpoint's, before it is counted in any.
//!
//! Not here: who asks and counts (`pick`), the endpoint's own limit (`rate_limit`).

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use url::Url;
use weir_common::limit::decision::Decision;
use weir_common::limit::rolling::{Log, RollingQuota};
use weir_common::time::Tick;

use crate::domain::attempt::EarlierStart;
use crate::domain::id::WebhookId;
use crate::domain::webhook::options::per_minute;
use crate::scheduler::rate_limit::{Limits, Unrecorded};

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
    webhooks: HashMap<WebhookId, Log>,
    hosts: HashMap<HostKey, Log>,
    /// What was sent to URLs that are no endpoints yet.
    urls: HashMap<UrlKey, Log>,
    keys: RandomState,
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
            Some(log) => free_at(log, quota, now),
            None => free_at(&unrecorded.log(quota), quota, now),
        });
        own.max(self.host_free_at(pace.host, limits, now))
    }

    /// When a workspace's limit at a host admits a start; `now` if it does now.
    pub(super) fn host_free_at(&self, host: HostKey, limits: &Limits, now: Tick) -> Tick {
        self.hosts.get(&host).map_or(now, |log| free_at(log, limits.per_host, now))
    }

    /// Counts a start in both.
    pub(super) fn charge(
        &mut self,
        pace: Pace,
        limits: &Limits,
        unrecorded: &Unrecorded,
        now: Tick,
    ) {
        if let Some(quota) = pace.own {
            let log = self.webhooks.entry(pace.webhook).or_insert_with(|| unrecorded.log(quota));
            let _ = log.charge(quota, 1, now);
        }
        self.charge_host(pace.host, limits, now);
    }

    /// Counts a start at a host.
    pub(super) fn charge_host(&mut self, host: HostKey, limits: &Limits, now: Tick) {
        let _ = self.hosts.entry(host).or_default().charge(limits.per_host, 1, now);
    }

    /// What was sent to a URL that is no endpoint's.
    pub(super) fn starts_at(&mut self, url: &Url, new: impl FnOnce() -> Log) -> &mut Log {
        let key = UrlKey(self.keys.hash_one(url.as_str()));
        self.urls.entry(key).or_insert_with(new)
    }

    /// Removes what was sent to a URL.
    pub(super) fn take_starts_at(&mut self, url: &Url) -> Option<Log> {
        if self.urls.is_empty() {
            return None;
        }
        self.urls.remove(&UrlKey(self.keys.hash_one(url.as_str())))
    }

    /// Counts a start before this process did.
    pub(super) fn seed(&mut self, start: &EarlierStart, limits: &Limits, started: Tick) {
        if let Some(webhook) = start.webhook {
            let quota = per_minute(u32::MAX);
            let _ = self.webhooks.entry(webhook).or_default().charge(quota, 1, started);
        }
        let url = start.url.as_deref().and_then(|url| Url::parse(url).ok());
        if let (Some(workspace), Some(url)) = (&start.workspace, url) {
            self.charge_host(self.key(workspace, &url), limits, started);
        }
    }

    /// Counts the starts that an earlier process may have made without a record, of webhooks: at a
    /// host there may be any number.
    pub(super) fn seed_unrecorded(&mut self, count: usize, at: Tick) {
        let quota = per_minute(u32::MAX);
        for log in self.webhooks.values_mut() {
            for _ in 0..count {
                let _ = log.charge(quota, 1, at);
            }
        }
    }

    /// Applies a changed window.
    pub(super) fn fit(&mut self, limits: &Limits, now: Tick) {
        self.hosts.values_mut().for_each(|log| log.fit(limits.per_host, now));
        self.urls.values_mut().for_each(|log| log.fit(limits.quota, now));
    }

    /// Evicts what no longer counts.
    pub(super) fn forget_idle(&mut self, limits: &Limits, now: Tick) {
        let own = per_minute(1);
        self.webhooks.retain(|_, log| log.full_at(own) > now);
        self.hosts.retain(|_, log| log.full_at(limits.per_host) > now);
        self.urls.retain(|_, log| log.full_at(limits.quota) > now);
    }
}

/// When the quota admits a start; `now` if it does now.
pub(super) fn free_at(log: &Log, quota: RollingQuota, now: Tick) -> Tick {
    match log.decide(quota, 1, now) {
        Decision::Admit | Decision::TooLarge => now,
        Decision::Refuse { retry_at } => retry_at,
    }
}
