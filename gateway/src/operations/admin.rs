//! The gateway's part of the admin listener: readiness, metrics, the limits of one tenant, the
//! configuration, the operators' pages.
//!
//! Invariant: a `GET` changes nothing; every change is logged.
//!
//! # Not here
//!
//! Who has access (`weir_common::admin`), what the numbers mean (`limit`, `metrics`,
//! `heavy_hitters`), the command line (`cli`).

mod key_page;
mod limits;
mod readiness;
mod screen;
mod tenants;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use http::Method;
use prometheus::IntCounter;
use serde_json::{Value, json};
use weir_common::admin::{Acted, Program, shown};
use weir_common::config::reload::Reload;
use weir_common::http_server::Call;
use weir_common::http_server::problems::{method_not_allowed, refusal};
use weir_common::http_server::reply::Reply;
use weir_common::pages::form::Form;
use weir_common::pages::screen::Screen;
use weir_common::secret::Secret;
use weir_common::time::UnixTime;

use crate::config::shared::Shared;
use crate::limit::limiter::Unreachable;
use crate::operations::background;
use crate::operations::watch::Watch;

/// How many of the busiest keys are shown where the query has no `n`.
const TOP_PLACES: usize = 20;

/// What the admin listener serves of the gateway.
pub struct GatewayAdmin {
    /// What all requests share.
    pub shared: Arc<Shared>,
    /// What the screen shows of the last hour.
    pub watch: Arc<Watch>,
    /// Held while metrics are shown.
    pub scraping: Mutex<()>,
}

#[async_trait]
impl Program for GatewayAdmin {
    const NAME: &'static str = "weir-gateway";

    fn now(&self) -> UnixTime {
        self.shared.clock.now().unix
    }

    fn token(&self) -> Option<Secret<String>> {
        self.shared.active.load().origin.admin_token.clone()
    }

    async fn readiness(&self) -> Result<String, String> {
        readiness::readiness(&self.shared)
    }

    async fn metrics(&self) -> Vec<u8> {
        let shared = &self.shared;
        let fill = shared.limiter.store.fill();
        let metrics = &shared.metrics;
        let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        metrics.keys.set(count(fill.keys));
        metrics.unknown_keys.set(count(fill.unknown_keys));
        metrics.overflowed.inc_by(fill.overflowed.saturating_sub(metrics.overflowed.get()));
        show_store(shared);
        metrics.buffered_bytes.set(i64::try_from(shared.body_budget.used()).unwrap_or(i64::MAX));
        let active = shared.active.load_full();
        let remembered = active.verifier.as_ref().map_or(0, |verifier| verifier.cached());
        metrics.token_cache_entries.set(i64::try_from(remembered).unwrap_or(i64::MAX));
        if let Some(remote_directory) = &active.remote_directory {
            let fill = remote_directory.fill().await;
            for (kind, entries) in ["known", "unknown", "failed"].into_iter().zip(fill) {
                let entries = i64::try_from(entries).unwrap_or(i64::MAX);
                metrics.directory_entries.with_label_values(&[kind]).set(entries);
            }
        }
        // One at a time: between a reset and what follows no other sees half of them.
        let _alone = self.scraping.lock().unwrap_or_else(PoisonError::into_inner);
        metrics.upstream_healthy.reset();
        metrics.upstream_ejected.reset();
        active.upstreams.iter().for_each(|upstream| upstream.show(metrics));
        metrics.text()
    }

    fn config(&self) -> Value {
        let active = self.shared.active.load();
        let tenants = &active.rules.tenants;
        // The settings contain no secrets: a token is in a file, and the setting has its path.
        json!({
            "source": self.shared.config.file.name(),
            "settings": active.origin.effective,
            "directory": {
                "organisations": tenants.organisations.len(),
                "workspaces": tenants.workspaces.len(),
                "instances": tenants.instances.len(),
            },
        })
    }

    async fn reload(&self) -> Reload {
        background::reload(&self.shared).await
    }

    async fn route(&self, call: &Call) -> Option<Reply> {
        let reads = call.method == Method::GET;
        let parts: Vec<&str> = call.path.strip_prefix('/')?.splitn(3, '/').collect();
        let query = call.query.as_deref().unwrap_or_default();
        Some(match parts.as_slice() {
            ["top" | "limits"] if !reads => method_not_allowed("GET, HEAD"),
            ["directory", "forget", _] if call.method != Method::POST => method_not_allowed("POST"),
            ["top"] if reads => self.top(query),
            ["limits"] | ["limits", _, _] | ["directory", "forget", _] if !query.is_empty() => {
                bad_query(query, "no parameter")
            }
            ["limits"] if reads => self.limits(),
            ["directory", "forget", which] if call.method == Method::POST => {
                self.forget(which).await
            }
            ["limits", limit, key] => {
                let answer = self.of_key(&decoded(limit), key, call).await;
                answer.unwrap_or_else(|reply| reply)
            }
            _ => return None,
        })
    }

    async fn page(&self, steps: &[&str], query: &Form) -> Option<Screen> {
        match steps {
            [] => Some(self.screen()),
            ["key"] => Some(self.key_page(query).await),
            _ => None,
        }
    }

    async fn act(&self, steps: &[&str], form: &Form) -> Option<Acted> {
        self.acted(steps, form).await
    }
}

impl GatewayAdmin {
    async fn of_key(&self, limit: &str, rest: &str, call: &Call) -> Result<Reply, Reply> {
        let boosted = rest.strip_suffix("/boost");
        let key = decoded(boosted.unwrap_or(rest));
        match (boosted, call.method.as_str()) {
            (Some(_), "POST") => self.boost(limit, &key, &call.body).await,
            (Some(_), "DELETE") => self.unboost(limit, &key).await,
            (None, "GET") => self.usage(limit, &key).await,
            (None, "DELETE") => self.reset(limit, &key).await,
            (Some(_), _) => Err(method_not_allowed("POST, DELETE")),
            (None, _) => Err(method_not_allowed("GET, HEAD, DELETE")),
        }
    }

    fn top(&self, query: &str) -> Reply {
        let places = match query {
            "" => Ok(TOP_PLACES),
            query => query.strip_prefix("n=").unwrap_or_default().parse(),
        };
        let Ok(places) = places else { return bad_query(query, "`n`, a whole number") };
        let [busiest, refused] = self.shared.top.most(places).map(|seen| {
            let shown = seen.iter().map(
                |seen| json!({"limit": &*seen.limit, "key": &*seen.name, "count": seen.count}),
            );
            shown.collect::<Value>()
        });
        shown(&json!({"busiest": busiest, "refused": refused}))
    }
}

/// The refusal of a query that a call does not take as it is.
fn bad_query(query: &str, takes: &str) -> Reply {
    let detail = format!("The query is `{query}`; this call takes {takes}.");
    refusal(400, "invalid-query", "Invalid query", detail)
}

/// Shows what the shared store's calls have counted since the last time.
fn show_store(shared: &Shared) {
    let metrics = &shared.metrics;
    let Some(store) = &shared.limiter.shared else { return metrics.store_up.set(1) };
    let [servers, available, unserved] = store.servers();
    metrics.store_up.set((servers > 0 && available == servers && unserved == 0).into());
    let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
    metrics.store_servers.set(count(servers));
    metrics.store_servers_up.set(count(available));
    metrics.store_gateways.set(store.gateways_heard.load(Ordering::Relaxed).into());
    metrics.store_leased.set(store.leased_tokens().try_into().unwrap_or(i64::MAX));
    let raise = |counter: &IntCounter, to: &AtomicU64| {
        counter.inc_by(to.load(Ordering::Relaxed).saturating_sub(counter.get()));
    };
    let counts = &store.counts;
    let calls = [
        ("answered", &counts.answered),
        ("failed", &counts.failed),
        ("forgotten", &counts.forgotten),
        ("moving", &counts.moving),
    ];
    for (outcome, count) in calls {
        raise(&metrics.store_calls.with_label_values(&[outcome]), count);
    }
    let decisions = [
        ("call", &counts.called),
        ("together", &counts.together),
        ("leased", &counts.leased),
        ("remembered", &counts.remembered),
        ("alone", &counts.alone),
    ];
    for (by, count) in decisions {
        raise(&metrics.store_decisions.with_label_values(&[by]), count);
    }
    raise(&metrics.store_clock_jumps, &counts.jumps);
}

impl From<Unreachable> for Reply {
    fn from(_: Unreachable) -> Self {
        let detail = "Another process serves now, or the shared store is away: connect again.";
        refusal(503, "counters-unreachable", "Counters cannot be reached now", detail)
    }
}

fn decoded(part: &str) -> String {
    percent_encoding::percent_decode_str(part).decode_utf8_lossy().into_owned()
}
