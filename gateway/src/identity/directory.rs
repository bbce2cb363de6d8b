//! Asks a directory over HTTP whom a request names, and remembers what it says.
//!
//! `GET {url}/instances/{id}`, then its workspace, then the organisation of that: each is asked
//! about once for all who wait for it, and then known for a while. Whoever a known entry names is
//! known too: a 404 for it says that it has no values of its own.
//!
//! # Invariants
//!
//! 1. Nobody waits without a deadline, and no more than [`QUESTIONS_MAX`] questions are on their
//!    way at one time; of one name, one.
//! 2. An address that invents names is bounded by its [`UnknownBudget`] and waits in a line of
//!    its own; a name that is remembered costs no question.
//! 3. What cannot be asked about is judged by its last good entry until that is too old, and then
//!    not at all: it is refused, never guessed.
//!
//! # Not here
//!
//! What an answer says (`lookups::answer`), how long it holds (`lookups::memory`), who is asked
//! when nobody answers (`lookups::breaker`), what a request may use (`rules`).

// core
pub mod breaker;
pub mod cache;
pub mod client;
mod error_log;
pub mod response;
pub mod single_flight;
pub mod unknown_budget;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::timeout;
use weir_common::time::{Clock, Tick};

use crate::identity::directory::breaker::{Breaker, PAUSE};
use crate::identity::directory::cache::{Absent, Entry, Memory, Remembered};
use crate::identity::directory::client::Directory;
use crate::identity::directory::error_log::Report;
use crate::identity::directory::response::{Kind, Raw};
use crate::identity::directory::single_flight::Lines;
use crate::identity::directory::unknown_budget::UnknownBudget;
use crate::identity::http_client::{self, RequestError};
use crate::limit::key::{Key, Owner};
use crate::rules::tenant::{Known, Names, Tenant};
use crate::rules::{Rules, own_values_refused};
use crate::settings;
use crate::telemetry::metrics::Metrics;

/// Questions on their way at one time: what a directory answers in a millisecond each is then
/// sixty thousand a second.
pub const QUESTIONS_MAX: usize = 64;

/// Of those, for names of which nothing is remembered, from one address: seven others get through
/// beside whoever invents names.
const QUESTIONS_PER_ADDRESS_MAX: usize = 8;

/// The directory cannot say whom a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsure;

/// A directory that is asked, and what it said.
pub struct Lookups {
    directory: Directory,
    shared: Arc<Shared>,
    /// Of the rules that entries are looked up in.
    version: u64,
}

/// What a reload leaves as it is.
struct Shared {
    settings: settings::Lookups,
    clock: Clock,
    metrics: Arc<Metrics>,
    memory: Memory,
    breaker: Breaker,
    report: Report,
    /// One question for each name at one time.
    flights: Lines<Owner>,
    /// So many for each address.
    addresses: Lines<Key>,
    questions: Semaphore,
}

/// One of those whom a request names.
#[derive(Clone, Copy)]
struct Sought<'n> {
    kind: Kind,
    name: &'n str,
    owner: Owner,
    /// Whether an entry that is known says that it is there.
    vouched: bool,
}

type Found = Result<Option<Arc<Tenant>>, Unsure>;

impl Lookups {
    /// A directory to ask. What an earlier one remembers stays where the settings are the same.
    #[must_use]
    pub fn new(
        directory: Directory,
        earlier: Option<&Self>,
        metrics: &Arc<Metrics>,
        clock: &Clock,
    ) -> Self {
        let settings = directory.settings();
        let kept = earlier.filter(|earlier| earlier.shared.settings == *settings);
        let shared = kept.map(|earlier| earlier.shared.clone()).unwrap_or_else(|| {
            Arc::new(Shared {
                settings: settings.clone(),
                clock: clock.clone(),
                metrics: metrics.clone(),
                memory: Memory::new(settings.entries_max),
                breaker: Breaker::default(),
                report: Report::default(),
                flights: Lines::new(1),
                addresses: Lines::new(QUESTIONS_PER_ADDRESS_MAX),
                questions: Semaphore::new(QUESTIONS_MAX),
            })
        });
        let version = earlier.map_or(0, |earlier| earlier.version + 1);
        Self { directory, shared, version }
    }

    /// The entries of those whom a request names; the organisation's only where it is asked for.
    pub async fn find(
        &self,
        rules: &Rules,
        names: &Names<'_>,
        with_organisation: bool,
        budget: &UnknownBudget<'_>,
    ) -> Result<Known, Unsure> {
        let mut known = Known::default();
        if let Some(name) = names.instance {
            known.instance = self.one(rules, Kind::Instance, name, false, budget).await?;
        }
        let of_instance = known.instance.as_ref().and_then(|instance| instance.parent.as_deref());
        if let Some(name) = names.workspace.or(of_instance) {
            let vouched = names.workspace.is_none();
            known.workspace = self.one(rules, Kind::Workspace, name, vouched, budget).await?;
        }
        let of_workspace = known.workspace.as_ref().and_then(|tenant| tenant.parent.as_deref());
        let organisation = names.organisation.or(of_workspace).or(names.claimed_organisation);
        let organisation = organisation.filter(|_| with_organisation);
        if let Some(name) = organisation {
            let vouched = names.organisation.is_none() && of_workspace.is_some();
            known.organisation = self.one(rules, Kind::Organisation, name, vouched, budget).await?;
        }
        self.check(rules, &known, budget.now)?;
        Ok(known)
    }

    /// Holds an instance's own values against its workspace's plan.
    fn check(&self, rules: &Rules, known: &Known, now: Tick) -> Result<(), Unsure> {
        let own = |instance: &&Arc<Tenant>| !instance.quotas.is_empty();
        let Some(instance) = known.instance.as_ref().filter(own) else { return Ok(()) };
        let is_parent = |tenant: &&Arc<Tenant>| Some(&*tenant.name) == instance.parent.as_deref();
        let workspace = known.workspace.as_ref().filter(is_parent);
        let plan = workspace.and_then(|workspace| workspace.plan);
        let plan = plan.and_then(|plan| rules.plans.get(plan));
        let Some(why) = own_values_refused(&instance.name, plan) else { return Ok(()) };
        let (name, owner) = (&*instance.name, instance.owner);
        let sought = Sought { kind: Kind::Instance, name, owner, vouched: false };
        Err(self.unusable(sought, &why, now))
    }

    /// One entry: from memory where that is good, or else from the directory.
    async fn one(
        &self,
        rules: &Rules,
        kind: Kind,
        name: &str,
        vouched: bool,
        budget: &UnknownBudget<'_>,
    ) -> Found {
        let owner = rules.seed().owner(kind.scope(), name.as_bytes());
        let sought = Sought { kind, name, owner, vouched };
        match self.remembered(rules, sought, budget.now).await {
            Ok(found) => found,
            // In a box: this is rare, and would make every request's state larger.
            Err(stale) => Box::pin(self.wait(rules, sought, budget, stale)).await,
        }
    }

    /// What is remembered, where that is enough; or else what is there to fall back on.
    async fn remembered(
        &self,
        rules: &Rules,
        sought: Sought<'_>,
        now: Tick,
    ) -> Result<Found, Option<Arc<Entry>>> {
        match self.shared.memory.of(sought.owner, now).await {
            Remembered::Entry(entry) => Ok(self.made(rules, sought, &entry, now)),
            Remembered::Absent(absent) if !absent.is_certain => Ok(Err(Unsure)),
            Remembered::Absent(absent) if sought.vouched => {
                Ok(self.vouched(rules, sought, absent.until).await)
            }
            Remembered::Absent(_) => Ok(Ok(None)),
            Remembered::Stale(entry) => Err(entry),
        }
    }

    /// Waits for a turn to ask, and asks, where nobody did meanwhile.
    async fn wait(
        &self,
        rules: &Rules,
        sought: Sought<'_>,
        budget: &UnknownBudget<'_>,
        stale: Option<Arc<Entry>>,
    ) -> Found {
        let shared = &*self.shared;
        let spared = |entry: &Arc<Entry>| {
            entry.has_just_failed(budget.now) || shared.breaker.is_resting(budget.now)
        };
        if stale.as_ref().is_some_and(spared) {
            return self.fall_back(rules, sought, stale, budget.now);
        }
        let turn = async {
            let address = match budget.key() {
                Some(key) if stale.is_none() => Some(shared.addresses.turn(key).await),
                _ => None,
            };
            (address, shared.flights.turn(sought.owner).await)
        };
        let Ok(_turn) = timeout(shared.settings.timeout, turn).await else {
            return self.fall_back(rules, sought, stale, budget.now);
        };
        let stale = match self.remembered(rules, sought, budget.now).await {
            Ok(found) => return found,
            Err(stale) => stale,
        };
        // What is or was known was not invented, nor what an entry names.
        let may_ask = stale.is_some() || sought.vouched || budget.allows();
        if stale.as_ref().is_some_and(spared) || !may_ask || !shared.breaker.may_ask(budget.now) {
            return self.fall_back(rules, sought, stale, budget.now);
        }
        match timeout(shared.settings.timeout, shared.questions.acquire()).await {
            Ok(Ok(_permit)) => self.ask(rules, sought, budget, stale).await,
            _ => self.fall_back(rules, sought, stale, budget.now),
        }
    }

    /// Asks, and remembers the answer.
    async fn ask(
        &self,
        rules: &Rules,
        sought: Sought<'_>,
        budget: &UnknownBudget<'_>,
        stale: Option<Arc<Entry>>,
    ) -> Found {
        let shared = &*self.shared;
        let mark = shared.memory.mark();
        let timer = shared.metrics.directory_seconds.start_timer();
        let answer = http_client::send(self.directory.question(sought.kind, sought.name)).await;
        timer.observe_duration();
        // What failed rests from now on, however long it took to fail.
        let after = shared.clock.now().tick;
        self.heard(&answer, after);
        let failed = match answer {
            Ok(answer) if answer.status == 200 => {
                let raw = response::read(sought.kind, &answer.body, &rules.settings.workspaces);
                match raw.and_then(|raw| self.entry(rules, sought, raw, budget.now)) {
                    Ok(entry) => {
                        self.count("known");
                        let entry = Arc::new(entry);
                        shared.memory.keep(sought.owner, entry.clone(), mark).await;
                        shared.report.good(sought.owner);
                        return self.made(rules, sought, &entry, budget.now);
                    }
                    Err(why) => ("invalid", why),
                }
            }
            Ok(answer) if answer.status == 404 => {
                self.count("unknown");
                return self.unknown(rules, sought, budget, mark).await;
            }
            Ok(answer) => ("failed", format!("the directory answered {}", answer.status)),
            Err(why) => ("unanswered", format!("the directory did not answer: {why}")),
        };
        let (outcome, why) = failed;
        self.count(outcome);
        // Who does not answer at all is reported once for all names.
        if outcome != "unanswered" {
            self.unusable(sought, &why, after);
        }
        match &stale {
            Some(entry) => entry.failed(after),
            None => {
                let absent = Absent { until: after.plus(PAUSE), is_certain: false };
                shared.memory.keep_absent(sought.owner, absent, mark).await;
            }
        }
        self.fall_back(rules, sought, stale, budget.now)
    }

    fn entry(
        &self,
        rules: &Rules,
        sought: Sought<'_>,
        raw: Raw,
        asked: Tick,
    ) -> Result<Entry, String> {
        let settings = &self.shared.settings;
        let spans = [settings.ttl, settings.stale_for];
        Entry::new((rules, self.version), sought.name, raw, asked, spans)
    }

    /// The directory does not know somebody.
    async fn unknown(
        &self,
        rules: &Rules,
        sought: Sought<'_>,
        budget: &UnknownBudget<'_>,
        mark: u64,
    ) -> Found {
        let until = budget.now.plus(self.shared.settings.negative_ttl);
        let absent = Absent { until, is_certain: true };
        self.shared.memory.keep_absent(sought.owner, absent, mark).await;
        if sought.vouched {
            return self.vouched(rules, sought, until).await;
        }
        budget.charge();
        Ok(None)
    }

    /// Somebody whom a known entry names, and who has no entry.
    async fn vouched(&self, rules: &Rules, sought: Sought<'_>, until: Tick) -> Found {
        let spans = [Duration::ZERO, Duration::ZERO];
        let bare = sought.kind.bare();
        let entry = Entry::new((rules, self.version), sought.name, bare, until, spans);
        let entry = Arc::new(entry.map_err(|_| Unsure)?);
        self.shared.memory.keep(sought.owner, entry.clone(), self.shared.memory.mark()).await;
        self.made(rules, sought, &entry, until)
    }

    /// The last good entry, where there is one that is not too old.
    fn fall_back(
        &self,
        rules: &Rules,
        sought: Sought<'_>,
        stale: Option<Arc<Entry>>,
        now: Tick,
    ) -> Found {
        let entry = stale.ok_or(Unsure)?;
        self.shared.metrics.directory_stale.inc();
        self.made(rules, sought, &entry, now)
    }

    fn made(&self, rules: &Rules, sought: Sought<'_>, entry: &Entry, now: Tick) -> Found {
        match entry.tenant(rules, self.version) {
            Ok(tenant) => Ok(Some(tenant)),
            Err(why) => Err(self.unusable(sought, &why, now)),
        }
    }

    fn count(&self, outcome: &str) {
        self.shared.metrics.directory_questions.with_label_values(&[outcome]).inc();
    }

    /// Takes note of an entry that cannot be used.
    fn unusable(&self, sought: Sought<'_>, why: &str, now: Tick) -> Unsure {
        self.shared.metrics.directory_unusable.inc();
        self.shared.report.unusable(sought.kind, sought.name, sought.owner, why, now);
        Unsure
    }

    /// Takes note of whether there was an answer.
    fn heard(&self, answer: &Result<http_client::Response, RequestError>, now: Tick) {
        match answer {
            Ok(_) if self.shared.breaker.answered() => Report::outage_over(),
            Ok(_) => {}
            Err(why) if self.shared.breaker.unanswered(now) => {
                Report::outage(self.directory.url(), &why.to_string());
            }
            Err(_) => {}
        }
    }

    /// Whether the directory has not answered lately.
    pub fn is_out(&self) -> bool {
        self.shared.breaker.is_open()
    }

    /// A question whose answer says no more than that there is one.
    pub fn any_question(&self) -> reqwest::RequestBuilder {
        self.directory.question(Kind::Workspace, "weir-gateway-check")
    }

    /// Forgets what is remembered of somebody.
    pub async fn forget(&self, rules: &Rules, kind: Kind, name: &str) {
        self.shared.memory.forget(rules.seed().owner(kind.scope(), name.as_bytes())).await;
    }

    /// How many are remembered who are known, and who are not.
    pub async fn fill(&self) -> [u64; 2] {
        self.shared.memory.fill().await
    }
}
