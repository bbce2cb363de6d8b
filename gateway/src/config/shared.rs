//! What all requests share: the clock, the active configuration, the counters of limits, metrics
//! and the access log.
//!
//! `app` creates one; `proxy` and `operations::admin` use it. Nothing here waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use prometheus::IntCounter;
use serde_json::json;
use tokio::sync::Notify;
use weir_common::config::reload::{Reload, Reloads};
use weir_common::log::events;
use weir_common::log::json_lines::LineLog;
use weir_common::time::Clock;

use crate::config::active::ActiveConfig;
use crate::config::checked::{CheckedConfig, Config};
use crate::identity::auth::Verifier;
use crate::identity::auth::address_turns::QueriesInFlight;
use crate::limit::heavy_hitters::HeavyHitters;
use crate::limit::key::{Scope, Seed};
use crate::limit::limiter::Limiter;
use crate::limit::shared::SharedStore;
use crate::limit::shared::sync_state::SyncedKeys;
use crate::limit::warnings::Warnings;
use crate::request::body_budget::BodyBudget;
use crate::response::refusal::{RATE_LIMITED, REASONS, Refusal};
use crate::rules::retention::Retention;
use crate::telemetry::metrics::Metrics;
use crate::upstream::names::ResolvedNames;

/// What all requests share.
pub struct Shared {
    /// The clock.
    pub clock: Clock,
    /// Where the settings come from.
    pub config: Config,
    /// The active configuration.
    pub active: ArcSwap<ActiveConfig>,
    /// The counters of all limits.
    pub limiter: Arc<Limiter>,
    /// The busiest keys, and those refused most.
    pub top: HeavyHitters,
    /// Warnings of limits, on their way to the operator.
    pub warnings: Warnings,
    /// The metrics.
    pub metrics: Arc<Metrics>,
    /// Counts refusals by a limit: looked up once, for a flood gets no other.
    rate_limited: IntCounter,
    /// The access log, where `log.access` is on.
    pub access_log: Option<Arc<LineLog>>,
    /// The queries of an identity server.
    pub identity_queries: QueriesInFlight,
    /// The memory that buffered bodies share.
    pub body_budget: Arc<BodyBudget>,
    /// The secret that the keys of limits are derived from.
    pub seed: Seed,
    /// Connections of clients at one time: as configured, or as RLIMIT_NOFILE allows.
    pub connections_max: u64,
    /// Whether all listeners accept, and no shutdown has started.
    pub ready: AtomicBool,
    /// Notified after each applied reload: the URL of the JWKS may have changed.
    pub applied: Notify,
    /// Runs reloads one after another.
    pub reloads: Reloads,
    /// The secret that request IDs are derived from. It differs in each process, so that IDs do not
    /// repeat; `seed` may come from an earlier process.
    request_id_seed: Seed,
    /// How many requests there have been: the next request ID is derived from it.
    requests: AtomicU64,
}

/// The secrets of a process.
#[derive(Clone, Copy, Debug)]
pub struct Seeds {
    /// The secret of the keys of limits: an earlier process's, where its counters are restored.
    pub keys: Seed,
    /// The secret of request IDs.
    pub request_ids: Seed,
}

impl Shared {
    /// Builds the shared state with a first configuration, which is active at once.
    #[must_use]
    pub fn new(
        clock: Clock,
        config: Config,
        checked: CheckedConfig,
        seeds: Seeds,
        connections_max: u64,
    ) -> Self {
        let metrics = Arc::new(Metrics::from_zero());
        for reason in REASONS {
            drop(metrics.refusals.with_label_values(&[reason]));
        }
        let active = ActiveConfig::new(checked, None, &metrics, &clock);
        let settings = &active.settings;
        let unknown_keys_max = usize::try_from(settings.store.max_keys).unwrap_or(usize::MAX);
        let access_log = settings.log.access.then(|| LineLog::new(&metrics.log_dropped));
        metrics.unknown_keys_max.set(i64::try_from(unknown_keys_max).unwrap_or(i64::MAX));
        let reloads = Reloads::new(&metrics.reloads, &metrics.config_ok, &metrics.config_applied);
        metrics.build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        Self {
            limiter: Arc::new(Limiter::new(clock.clone(), unknown_keys_max)),
            clock,
            config,
            active: ArcSwap::from_pointee(active),
            top: HeavyHitters::default(),
            warnings: Warnings::default(),
            rate_limited: metrics.refusals.with_label_values(&[RATE_LIMITED]),
            metrics,
            access_log,
            identity_queries: QueriesInFlight::default(),
            body_budget: Arc::default(),
            connections_max,
            seed: seeds.keys,
            applied: Notify::new(),
            reloads,
            request_id_seed: seeds.request_ids,
            ready: AtomicBool::new(false),
            requests: AtomicU64::new(0),
        }
    }

    /// The same state, with limits that are counted in a store that gateways share.
    #[must_use]
    pub fn sharing(mut self, store: Option<SharedStore>) -> Self {
        if let Some(limiter) = Arc::get_mut(&mut self.limiter) {
            limiter.shared = store.map(Arc::new);
        }
        self
    }

    /// Lets heartbeats tell a shared store of the keys of an earlier process. Where a limit now has
    /// another window or algorithm, the store counts by that one.
    pub fn restore_synced(&self, mut synced: SyncedKeys) {
        let (active, now) = (self.active.load(), self.limiter.moment(self.clock.now()));
        synced.keys.iter_mut().for_each(|own| active.rules.adapt(&mut own.check, now));
        self.limiter.restore_synced(&synced);
    }

    /// An ID for the next request, which cannot be guessed, and the request's number.
    pub fn next_request(&self) -> (u128, u64) {
        let nth = self.requests.fetch_add(1, Ordering::Relaxed);
        (self.request_id_seed.owner(Scope::Request, &nth.to_be_bytes()).bits(), nth)
    }

    /// Counts a refusal.
    pub fn count_refusal(&self, refusal: &Refusal) {
        match refusal {
            Refusal::RateLimited { .. } => self.rate_limited.inc(),
            other => {
                debug_assert!(REASONS.contains(&other.reason()), "{}", other.reason());
                self.metrics.refusals.with_label_values(&[other.reason()]).inc();
            }
        }
    }

    /// Why this process is not ready: it does not accept, or an upstream has no address.
    #[must_use]
    pub fn unready(&self) -> Option<String> {
        if !self.ready.load(Ordering::Acquire) {
            return Some("not ready".to_owned());
        }
        let unreachable = self.active.load().unreachable().join(", ");
        let why = || format!("not ready: no server resolves of upstream {unreachable}");
        (!unreachable.is_empty()).then(why)
    }

    /// Reads the configuration again. The error is the outcome of the reload where there is no new
    /// configuration to apply.
    pub fn read_anew(&self) -> Result<CheckedConfig, Reload> {
        let earlier = self.active.load();
        let checked = self.config.load(self.seed).map_err(Reload::Refused)?;
        if checked.origin == earlier.origin {
            return Err(Reload::Unchanged);
        }
        let name = self.config.file.name();
        let needed = checked.origin.restart_needed(&name, &earlier.origin.effective);
        if !needed.is_empty() {
            return Err(Reload::Refused(needed));
        }
        Ok(checked)
    }

    /// The verifier of tokens for a new configuration.
    #[must_use]
    pub fn verifier(&self, checked: &CheckedConfig) -> Option<Arc<Verifier>> {
        checked.verifier(Some(&self.active.load()), &self.metrics, &self.clock)
    }

    /// Activates a new configuration, whose servers have the addresses in `resolved`; refused where
    /// a new server does not resolve.
    pub fn apply(
        &self,
        checked: CheckedConfig,
        verifier: Option<Arc<Verifier>>,
        resolved: &ResolvedNames,
    ) -> Reload {
        let earlier = self.active.load_full();
        let diagnostics = checked.unresolved(&self.config.file.name(), &earlier, resolved);
        if !diagnostics.is_empty() {
            return Reload::Refused(diagnostics);
        }
        let now = self.limiter.moment(self.clock.now());
        Retention::of(&earlier.rules).retain_in(&self.limiter.store, &checked.rules, now.tick);
        log::set_max_level(checked.settings.log.level);
        let (metrics, clock) = (&self.metrics, &self.clock);
        let active = ActiveConfig::with_verifier(checked, verifier, Some(&earlier), metrics, clock);
        active.set_addresses(resolved);
        active.copy_addresses(&earlier);
        self.active.store(Arc::new(active));
        self.applied.notify_one();
        self.mark_applied();
        Reload::Applied
    }

    /// Records the time of the activation; logs the configuration's warnings and expired
    /// certificates.
    pub fn mark_applied(&self) {
        let now = self.clock.now().unix;
        let active = self.active.load();
        for warning in active.settings.warnings() {
            let fields = [("detail", json!(warning))];
            events::event(log::Level::Warn, "configuration warning", &fields);
        }
        active.origin.certificates().for_each(|certificate| certificate.log_expired(now));
        self.reloads.applied(now);
    }
}
