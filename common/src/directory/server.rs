//! Fetches entries from a directory over HTTP, unless it is down.
//!
//! # Invariants
//!
//! 1. A request has the deadline of its client, and a response of bounded size.
//! 2. During an outage at most one request is sent in each pause of the `breaker`; its start and
//!    its end are logged once.
//!
//! # Not here
//!
//! For which tenants, and how many requests at a time: each program has its own bounds. How long an
//! entry is valid (`cache`).

use prometheus::{Histogram, IntCounterVec};

use crate::directory::breaker::Breaker;
use crate::directory::client::DirectoryClient;
use crate::directory::error_log;
use crate::directory::response::TenantKind;
use crate::http_client::{self, RequestError, Response};
use crate::time::{Clock, Tick};

/// The outcomes of requests to a directory, in metrics.
pub const OUTCOMES: [&str; 5] = ["known", "unknown", "invalid", "failed", "unanswered"];

/// The state of a directory over HTTP, as its responses show it.
pub struct DirectoryServer {
    clock: Clock,
    requests: IntCounterVec,
    seconds: Histogram,
    breaker: Breaker,
}

/// A tenant whose entry is requested, and by which caller, as a number, if that may have invented
/// its name.
pub type EntryRequest<'r> = ((TenantKind, &'r str), Option<u128>);

/// What the directory answers about a tenant.
#[derive(Debug)]
pub enum FetchedEntry<T> {
    /// Its entry.
    Known(T),
    /// It has none.
    Unknown,
    /// Neither: its entry is invalid, or the directory failed.
    Unusable(String),
    /// There was no response; an outage, [`DirectoryServer::is_out`], is logged for all tenants.
    Unanswered(String),
}

impl DirectoryServer {
    /// A directory of which nothing is known. Its requests count in `requests` by outcome, one of
    /// [`OUTCOMES`], and their durations in `seconds`.
    #[must_use]
    pub fn new(requests: &IntCounterVec, seconds: &Histogram, clock: &Clock) -> Self {
        let (requests, seconds) = (requests.clone(), seconds.clone());
        Self { clock: clock.clone(), requests, seconds, breaker: Breaker::default() }
    }

    /// The present time.
    #[must_use]
    pub fn now(&self) -> Tick {
        self.clock.now().tick
    }

    /// Whether the last requests had no response.
    #[must_use]
    pub fn is_out(&self) -> bool {
        self.breaker.is_open()
    }

    /// Whether no request may be sent at `now`.
    #[must_use]
    pub fn is_paused(&self, now: Tick) -> bool {
        self.breaker.is_paused(now)
    }

    /// Whether this request may be sent at `now`. If true, the caller must send it.
    #[must_use]
    pub fn may_send(&self, ((kind, name), caller): EntryRequest<'_>, now: Tick) -> bool {
        self.breaker.may_send(&kind.path(name), caller, now)
    }

    /// Fetches the entry of a tenant, which `read` parses; also returns the time of the response.
    pub async fn fetch<T>(
        &self,
        client: &DirectoryClient,
        ((kind, name), caller): EntryRequest<'_>,
        read: impl FnOnce(&[u8]) -> Result<T, String>,
    ) -> (FetchedEntry<T>, Tick) {
        let started = self.now();
        let response = http_client::send(client.request(kind, name)).await;
        // The pause starts now, however long the request took to fail.
        let now = self.now();
        self.seconds.observe(now.since(started).as_secs_f64());
        self.note_outage(client, (&kind.path(name), caller), &response, now);
        let (outcome, fetched) = match response {
            Ok(response) if response.status == 200 => match read(&response.body) {
                Ok(entry) => ("known", FetchedEntry::Known(entry)),
                Err(why) => ("invalid", FetchedEntry::Unusable(why)),
            },
            Ok(response) if response.status == 404 => ("unknown", FetchedEntry::Unknown),
            Ok(Response { status, .. }) => {
                let why = format!("the directory answered {status}");
                ("failed", FetchedEntry::Unusable(why))
            }
            Err(why) if why.is_answer() => {
                ("failed", FetchedEntry::Unusable(format!("the directory gave {why}")))
            }
            Err(why) => {
                let why = format!("the directory did not answer: {why}");
                ("unanswered", FetchedEntry::Unanswered(why))
            }
        };
        self.requests.with_label_values(&[outcome]).inc();
        (fetched, now)
    }

    /// Records whether there was a response, and logs when an outage starts or ends.
    fn note_outage(
        &self,
        client: &DirectoryClient,
        (entry, caller): (&str, Option<u128>),
        response: &Result<Response, RequestError>,
        now: Tick,
    ) {
        let unanswered = response.as_ref().err().filter(|why| !why.is_answer());
        match unanswered {
            Some(why) if self.breaker.unanswered(entry, caller, now) => {
                error_log::outage(client.url(), &why.to_string());
            }
            None if self.breaker.answered(entry, caller) => error_log::outage_over(),
            _ => {}
        }
    }
}
