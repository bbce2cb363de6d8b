//! Checks all limits but an endpoint's: an owner's for its webhook, and a workspace's at one
//! host.
//!
//! A start that left no record does not count: after a crash there may be any number at a host, and
//! of an attempt that a fault of ours ended no later process knows the webhook.

use std::time::Duration;

use weir_common::time::Tick;
use weir_dispatcher::config::settings::Settings;
use weir_dispatcher::domain::id::DeliveryId;
use weir_dispatcher::domain::pace::{counted, longest_window};
use weir_dispatcher::domain::webhook::options::per_minute;

use crate::model::starts::Start;
use crate::model::{Hook, Model, violated};

/// Of an owner's limit.
const MINUTE: Duration = Duration::from_secs(60);

impl Model {
    /// Counts a start, and checks that both limits admit it.
    pub(crate) fn started_in_pace(&mut self, id: DeliveryId, url: usize, now: Tick) {
        let hook = &self.hooks[&self.deliveries[&id].hook];
        let (hook, ws, own) = (hook.id, hook.ws.clone(), hook.options.requests_per_minute);
        let host = self.host(url);
        let start = Start { at: now, url, ended: None, delivery: id, hook, ws, host, counts: true };
        self.lately.add(start.clone());
        if self.clock_set {
            return;
        }
        let same = |one: &&Start| one.counts && one.hook == hook;
        let count = self.lately.within(MINUTE, now).filter(same).count();
        if let Some(most) = own.filter(|most| count > most.get() as usize) {
            violated("owner's pace", format!("{count} starts of {hook:?} in a minute, of {most}"));
        }
        let same = |one: &&Start| one.counts && one.ws == start.ws && one.host == start.host;
        let count = self.lately.within(self.settings.egress.window, now).filter(same).count();
        let most = self.decided_by().map(per_host).max().unwrap();
        if count > most {
            let Start { ws, host, .. } = start;
            violated("host's pace", format!("{count} starts of {ws} at {host}, of {most}"));
        }
    }

    /// Whether one of the limits may hold a webhook back.
    pub(crate) fn is_paced(&self, hook: &Hook, now: Tick) -> bool {
        let window = self.counted_window();
        let minute = counted(per_minute(1)).window;
        // Starts that are counted late count for longer.
        let doubts = self.doubts.iter().filter(|(at, _)| now.since(*at) < 2 * minute);
        let unseen = doubts.map(|(_, count)| count).sum::<usize>();
        let own = self.lately.counted(minute, now).filter(|one| one.hook == hook.id).count();
        let host = self.host(hook.url);
        let here = |one: &&Start| one.ws == hook.ws && one.host == host;
        let here = self.lately.counted(window, now).filter(here).count();
        let owners = hook.options.requests_per_minute;
        owners.is_some_and(|most| own + unseen >= most.get() as usize)
            || self.decided_by().any(|settings| here >= per_host(settings))
    }

    /// For how long a request counts in its endpoint's limit.
    pub(crate) fn counted_window(&self) -> Duration {
        counted(self.settings.egress.per_endpoint()).window
    }

    /// For how long a request counts at most, in any limit.
    pub(crate) fn longest_counted_window(&self) -> Duration {
        longest_window(counted(self.settings.egress.per_endpoint()))
    }

    fn host(&self, url: usize) -> String {
        self.urls[url].split('/').nth(2).unwrap().to_owned()
    }
}

fn per_host(settings: &Settings) -> usize {
    settings.egress.per_host().requests as usize
}
