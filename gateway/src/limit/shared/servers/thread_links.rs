//! A link of each thread's own to a server, beside the first one.
//!
//! The first link is read by the thread that sends heartbeats. A call over it wakes that thread,
//! and its reply the one that called: twice the switches of a call over a link of one's own.
//!
//! # Invariants
//!
//! 1. Every link leads to the process that the first one leads to, and has the number of its
//!    connection: what was told over one of them counts for all.
//! 2. No call waits for a link to be opened: until its thread has one, it travels over the first.
//!
//! # Not here
//!
//! What a link does (`servers::link`), when the first one is replaced (`shared::connecting`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use log::Level;
use serde_json::json;
use tokio::runtime::{Handle, Id};
use tokio::task::JoinSet;
use weir_common::log::events;
use weir_common::time::{Clock, Tick};

use super::address::{ServerAddress, StoreLogin};
use super::errors::{CONNECT_TIMEOUT, ConnectError};
use super::link::Link;
use super::login::Dial;

/// After how long without a reply a link is opened anew: servers close those that are idle.
const IDLE_MAX: Duration = Duration::from_secs(10);

/// How long a link has replied to nothing that is given up with a call that waits too long: a
/// server may stand still for a moment.
const SILENCE_MAX: Duration = Duration::from_millis(250);

/// How long a thread does without a link of its own after one was lost, or could not be opened.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Where links lead.
pub(in super::super) struct Destination {
    pub dial: Arc<dyn Dial>,
    pub login: StoreLogin,
    pub server: ServerAddress,
    /// How many replicas must have a charge, and how long that may take.
    pub acknowledge: (u32, Duration),
    pub clock: Clock,
}

impl Destination {
    pub(in super::super) async fn open(&self) -> Result<Link, ConnectError> {
        let inner = self.dial.dial(&self.login, &self.server).await?;
        Ok(Link::new(inner, self.acknowledge, self.clock.clone()))
    }
}

/// The links of one connection to a server.
pub(super) struct ThreadLinks {
    first: Arc<Link>,
    /// The runtime that reads the first.
    home: Option<Id>,
    to: Arc<Destination>,
    /// Names the process that the first leads to; none where the server does not say.
    process: Option<String>,
    own: RwLock<Vec<(Id, Own)>>,
    opening: Mutex<JoinSet<()>>,
    /// Whether it was logged that one could not be opened, since one was.
    reported: AtomicBool,
}

/// What a runtime has, which is a worker's thread.
enum Own {
    Open(Arc<Link>),
    None { until: Tick },
}

/// The runtime of the present task.
fn runtime() -> Option<Id> {
    Handle::try_current().ok().map(|handle| handle.id())
}

/// What a server's section `server` says of its process; it has another name after each start.
pub(super) fn process(info: &str) -> Option<String> {
    let of = info.lines().find_map(|line| line.strip_prefix("run_id:"));
    of.map(|id| id.trim().to_owned())
}

async fn open(to: &Destination, own: Option<String>) -> Result<Link, ConnectError> {
    let link = to.open().await?;
    if process(&link.info("server").await?) == own {
        return Ok(link);
    }
    Err(ConnectError::Unfit("its address leads to several servers".to_owned()))
}

impl ThreadLinks {
    /// The present thread has opened the first one, to a process of this name.
    pub(in super::super) fn new(
        first: Link,
        to: Destination,
        process: Option<String>,
    ) -> Arc<Self> {
        Arc::new(Self {
            first: Arc::new(first),
            home: runtime(),
            to: Arc::new(to),
            process,
            own: RwLock::default(),
            opening: Mutex::default(),
            reported: AtomicBool::new(false),
        })
    }

    pub(super) fn first(&self) -> &Link {
        &self.first
    }

    /// The link over which the present task calls.
    pub(super) fn of_this_thread(self: &Arc<Self>) -> Arc<Link> {
        if self.process.is_none() {
            return self.first.clone();
        }
        let Some(runtime) = runtime().filter(|own| Some(*own) != self.home) else {
            return self.first.clone();
        };
        match self.of(runtime) {
            Some(Ok(link)) => link,
            Some(Err(())) => self.first.clone(),
            None => {
                self.begin(runtime);
                self.first.clone()
            }
        }
    }

    /// The link of a runtime that is in use, or an error where it has to do without; none where one
    /// should be opened.
    fn of(&self, runtime: Id) -> Option<Result<Arc<Link>, ()>> {
        let now = self.to.clock.now().tick;
        let all = self.own.read().unwrap_or_else(PoisonError::into_inner);
        let (_, own) = all.iter().find(|(of, _)| *of == runtime)?;
        match own {
            Own::None { until } => (now < *until).then_some(Err(())),
            Own::Open(link) => (now < link.replied().plus(IDLE_MAX)).then(|| Ok(link.clone())),
        }
    }

    fn set(&self, runtime: Id, to: Own) {
        let mut all = self.own.write().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(of, _)| *of != runtime);
        all.push((runtime, to));
    }

    fn begin(self: &Arc<Self>, runtime: Id) {
        let (all, to, process) = (Arc::downgrade(self), self.to.clone(), self.process.clone());
        let mut opening = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        while opening.try_join_next().is_some() {}
        if !opening.is_empty() {
            // One after the other: after a failover all gateways connect to the same server.
            return;
        }
        self.set(runtime, self.none_for(CONNECT_TIMEOUT + RETRY_AFTER));
        opening.spawn(async move {
            let opened = tokio::time::timeout(CONNECT_TIMEOUT, open(&to, process)).await;
            if let Some(all) = all.upgrade() {
                all.opened(runtime, opened.unwrap_or(Err(ConnectError::Silent)));
            }
        });
    }

    fn opened(&self, runtime: Id, link: Result<Link, ConnectError>) {
        let own = match link {
            Ok(link) => {
                self.reported.store(false, Ordering::Relaxed);
                Own::Open(Arc::new(link))
            }
            Err(why) => {
                self.report(&why);
                self.none_for(RETRY_AFTER)
            }
        };
        self.set(runtime, own);
    }

    fn none_for(&self, time: Duration) -> Own {
        Own::None { until: self.to.clock.now().tick.plus(time) }
    }

    fn report(&self, why: &ConnectError) {
        if !self.reported.swap(true, Ordering::Relaxed) {
            let store = self.to.server.to_string();
            let fields = [("store", json!(store)), ("error", json!(why.to_string()))];
            events::event(Level::Warn, "worker without a connection to the shared store", &fields);
        }
    }

    /// Takes a link out of use that is lost. False where it is the first.
    pub(super) fn give_up(&self, lost: &Arc<Link>) -> bool {
        let is_lost = |own: &Own| matches!(own, Own::Open(link) if Arc::ptr_eq(link, lost));
        let mut all = self.own.write().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, own)) = all.iter_mut().find(|(_, own)| is_lost(own)) {
            *own = self.none_for(RETRY_AFTER);
        }
        !Arc::ptr_eq(lost, &self.first)
    }

    /// Takes the present thread's link out of use where it has been silent since before a call was
    /// sent that has waited too long.
    pub(super) fn give_up_silent(&self, sent: Tick) {
        let Some(Ok(link)) = runtime().and_then(|own| self.of(own)) else { return };
        let (since, now) = (link.replied(), self.to.clock.now().tick);
        if since < sent && now >= since.plus(SILENCE_MAX) {
            self.give_up(&link);
        }
    }
}

#[path = "thread_links/tests.rs"]
#[cfg(test)]
mod tests;
