//! The operators' screen of the gateway: who is refused by what, and are the upstreams well?
//!
//! Invariant: names of tenants, keys and limits are shown as text, whatever they are.
//!
//! Not here: one key and what is changed there (`admin::key_page`), what is sampled
//! (`operations::watch`), who may see it (`weir_common::admin`).

use weir_common::pages::form::query;
use weir_common::pages::history::{History, HistorySlot};
use weir_common::pages::plot::sparkline;
use weir_common::pages::screen::{
    Chart, Figure, Grid, GridCell, Hour, Input, InputForm, InputKind, Notice, Screen, Section,
    SectionBody, Series, uptime,
};
use weir_common::pages::show::{grouped, mark, ms, rate, utc, whole};
use weir_common::time::Moment;

use crate::config::active::ActiveConfig;
use crate::limit::heavy_hitters::Seen;
use crate::operations::admin::{GatewayAdmin, readiness};
use crate::operations::explain::values;
use crate::operations::watch::{ANSWERS, DECISIONS, FAILURES};
use crate::upstream::Upstream;

/// Rows of the tables of keys.
const PLACES: usize = 10;

/// Tenants with values of their own that are listed, and boosts: more are looked up by key.
const LISTED_MAX: usize = 50;

impl GatewayAdmin {
    /// The screen.
    pub(super) fn screen(&self) -> Screen {
        let now = self.shared.clock.now();
        let active = self.shared.active.load_full();
        let mut screen = Screen::new("Overview");
        screen.refreshes = true;
        match readiness::readiness(&self.shared) {
            Ok(text) => screen.notices.extend(degraded(&text)),
            Err(text) => {
                screen.notices.push(Notice { mark: mark("■", "Not ready", "bad"), text });
            }
        }
        let [busiest, refused] = self.shared.top.most(PLACES);
        {
            let hour = self.watch.hour();
            screen.figures = self.figures(&hour, &active, now);
            screen.charts = charts(&hour, now);
            screen.sections = vec![
                limits_of_the_hour(&hour, &active, now),
                keys("Most refused keys", "Not refused lately.", refused),
                keys("Busiest keys", "No key is busy.", busiest),
            ];
        }
        screen.sections.push(upstreams(&active.upstreams));
        screen.sections.push(explain_form());
        screen.sections.push(key_form(&active, "", ""));
        screen.sections.push(self.values(&active, now));
        screen
    }

    fn figures(&self, hour: &History, active: &ActiveConfig, now: Moment) -> Vec<Figure> {
        let figure = |name, value: String| Figure { name, value, mark: None };
        let slots = hour.slots(now);
        let last = slots.iter().rev().find_map(|(_, slot)| slot.filter(|s| s.rate("").is_some()));
        let dash = || "–".to_owned();
        let per_second = |names: &[&str]| {
            let sum = |slot: &HistorySlot| names.iter().filter_map(|name| slot.rate(name)).sum();
            last.map(sum).map_or_else(dash, rate)
        };
        let response = last.and_then(|slot| slot.quantile_ms("response", 0.95));
        let level = |value: i64| grouped(u64::try_from(value).unwrap_or(0));
        let servers = || active.upstreams.iter().flat_map(|upstream| &upstream.servers);
        let all: usize = servers().map(|server| server.addresses().len().max(1)).sum();
        let healthy: usize = servers().map(|server| server.healthy()).sum();
        let boosts = self.shared.limiter.boosts.all();
        let boosts = boosts.iter().filter(|(_, boost)| now.tick < boost.until).count();
        vec![
            figure("Requests per second", per_second(&ANSWERS)),
            figure("Refused per second", per_second(&["refused"])),
            figure("In flight", level(self.shared.metrics.in_flight.get())),
            figure("Connections", level(self.shared.metrics.connections.get())),
            figure("95 % answered in", response.map_or_else(dash, ms)),
            Figure {
                mark: (healthy < all).then(|| mark("▲", "Some are down", "warn")),
                ..figure("Servers healthy", format!("{healthy} of {all}"))
            },
            figure("Boosts", grouped(boosts as u64)),
            uptime(env!("CARGO_PKG_VERSION"), now.tick.since(self.watch.started)),
        ]
    }

    /// Every value of every limit, and where it comes from.
    fn values(&self, active: &ActiveConfig, now: Moment) -> Section {
        let rules = &active.rules;
        let mut rows = Vec::new();
        let mut row = |limit: &str, value: String, from: String| {
            rows.push(vec![
                GridCell::Text(limit.to_owned()),
                GridCell::Text(value),
                GridCell::Text(from),
            ]);
        };
        for (index, limit) in rules.limits.iter().enumerate() {
            row(&limit.name, values(limit.quota), "file".to_owned());
            for (plan, quota) in rules.values_of_plans(index) {
                row(&limit.name, values(quota), format!("plan {plan}"));
            }
        }
        let (overrides, more) = rules.tenants.overrides(LISTED_MAX);
        for (kind, tenant, index, quota) in overrides {
            let limit = rules.limits.get(index).map_or("", |limit| &*limit.name);
            row(limit, values(quota), format!("override of {kind} {tenant}"));
        }
        let boosts = self.shared.limiter.boosts.all();
        let active_boosts = boosts.iter().filter(|(_, boost)| now.tick < boost.until);
        for (key, boost) in active_boosts.take(LISTED_MAX) {
            let raised = boost.raised.to_json();
            let raised: Vec<String> = raised
                .iter()
                .map(|(name, value)| format!("{name} {}", value.to_string().trim_matches('"')))
                .collect();
            let until = utc(now.unix_of(boost.until).rfc3339());
            match self.watch.boosted(*key, &self.shared) {
                Some((limit, name)) => {
                    row(&limit, raised.join(", "), format!("boost of {name} until {until}"));
                }
                None => row(
                    "–",
                    raised.join(", "),
                    format!("boost of a key that was named elsewhere, until {until}"),
                ),
            }
        }
        let mut text =
            "A tenant's own value (override) precedes its plan's, and that the file's; a \
            boost raises whichever applies."
                .to_owned();
        if active.remote_directory.is_some() {
            text.push_str(" The directory is remote: overrides are on the page of each key.");
        } else if more > 0 {
            text.push_str(&format!(" {} more overrides are not listed.", grouped(more as u64)));
        }
        let grid = Grid { columns: vec!["Limit", "Value", "From"], rows, empty: "No limits." };
        section("Values of limits", &text, SectionBody::Grid(grid))
    }
}

pub(super) fn section(title: &str, text: &str, body: SectionBody) -> Section {
    Section { title: title.to_owned(), text: text.to_owned(), body }
}

/// What does not work outside, a notice each.
fn degraded(readiness: &str) -> impl Iterator<Item = Notice> {
    let failing = readiness.lines().filter_map(|line| line.strip_prefix("failing: "));
    failing.map(|text| Notice { mark: mark("▲", "Degraded", "warn"), text: text.to_owned() })
}

/// The path of the page of a key.
pub(super) fn key_path(limit: &str, key: &str) -> String {
    format!("/dashboard/key?{}", query([("limit", limit), ("key", key)]))
}

fn keys(title: &str, empty: &'static str, seen: Vec<Seen>) -> Section {
    let row = |seen: Seen| {
        vec![
            GridCell::Text(seen.limit.to_string()),
            GridCell::Link(key_path(&seen.limit, &seen.name), seen.name.to_string()),
            GridCell::Number(grouped(seen.count)),
        ]
    };
    let grid = Grid {
        columns: vec!["Limit", "Key", "Requests lately, about"],
        rows: seen.into_iter().map(row).collect(),
        empty,
    };
    section(title, "", SectionBody::Grid(grid))
}

fn limits_of_the_hour(hour: &History, active: &ActiveConfig, now: Moment) -> Section {
    let slots = hour.slots(now);
    let rows = active.rules.limits.iter().map(|limit| {
        let [admitted, would_refuse, refused] =
            DECISIONS.map(|decision| format!("{decision} by {}", limit.name));
        let counted = |slot: &HistorySlot, name: &str| slot.counted(name).unwrap_or(0);
        let bar = |slot: Option<&HistorySlot>| {
            slot.map_or((0, 0), |slot| (counted(slot, &admitted), counted(slot, &refused)))
        };
        let bars: Vec<_> = slots.iter().map(|(_, slot)| bar(*slot)).collect();
        let total = |name: &str| grouped(hour.total(name, now));
        let label = format!("{} admitted, {} refused", total(&admitted), total(&refused));
        let mode = if limit.enforced {
            mark("●", "Enforced", "ok")
        } else {
            mark("◌", "Observes", "info")
        };
        vec![
            GridCell::Text(limit.name.to_string()),
            GridCell::Text(limit.key.to_string()),
            GridCell::Mark(mode),
            GridCell::Chart(sparkline(&label, &bars)),
            GridCell::Number(total(&admitted)),
            GridCell::Number(total(&would_refuse)),
            GridCell::Number(total(&refused)),
        ]
    });
    let grid = Grid {
        columns: vec!["Limit", "Counts by", "Mode", "Hour", "Admitted", "Would refuse", "Refused"],
        rows: rows.collect(),
        empty: "No limit is configured.",
    };
    section("Limits, the last hour", "", SectionBody::Grid(grid))
}

fn upstreams(all: &[std::sync::Arc<Upstream>]) -> Section {
    let mut rows = Vec::new();
    for upstream in all {
        for server in &upstream.servers {
            let (all, healthy) = (server.addresses().len(), server.healthy());
            let ejected = server.ejected();
            let state = match (all, healthy) {
                (0, _) => mark("■", "Does not resolve", "bad"),
                (_, 0) => mark("■", "Not healthy", "bad"),
                _ if ejected >= healthy => mark("■", "Ejected", "bad"),
                _ if healthy < all || ejected > 0 => mark("▲", "Some are down", "warn"),
                _ => mark("●", "Healthy", "ok"),
            };
            rows.push(vec![
                GridCell::Text(upstream.name.clone()),
                GridCell::Code(server.name.clone()),
                GridCell::Mark(state),
                GridCell::Number(format!("{healthy} of {all}")),
                GridCell::Number(ejected.to_string()),
            ]);
        }
    }
    let columns = vec!["Upstream", "Server", "State", "Addresses healthy", "Ejected"];
    let grid = Grid { columns, rows, empty: "No upstream is configured." };
    section("Upstreams", "", SectionBody::Grid(grid))
}

/// The box "what would this request meet?".
pub(super) fn explain_form() -> Section {
    let methods = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"];
    let choice = InputKind::Choice(methods.map(str::to_owned).into());
    let headers = InputKind::Lines("Authorization: Bearer …\nX-Forwarded-For: 192.0.2.1");
    let form = InputForm {
        action: "/dashboard/explain".to_owned(),
        reads: false,
        inputs: vec![
            Input { kind: choice, ..Input::text("method", "Method", "") },
            Input::text("url", "URL, as a client calls it", "https://api.example.com/v1/x"),
            Input::text("from", "Address of the client", "127.0.0.1"),
            Input { kind: headers, ..Input::text("headers", "Headers, one a line", "") },
        ],
        button: "Explain",
        back: None,
    };
    let text = "Route, tenants and every limit with what is left of it. Nothing is sent, and \
        nothing is charged.";
    section("What would this request meet?", text, SectionBody::Form(form))
}

/// The form that leads to the page of a key.
pub(super) fn key_form(active: &ActiveConfig, limit: &str, key: &str) -> Section {
    let limits = active.rules.limits.iter().map(|limit| limit.name.to_string());
    let kind = InputKind::Choice(limits.collect());
    let form = InputForm {
        action: "/dashboard/key".to_owned(),
        reads: true,
        inputs: vec![
            Input { kind, ..Input::text("limit", "Limit", "").with(limit) },
            Input::text("key", "Key, as logs show it", "ws_acme").with(key),
        ],
        button: "Look",
        back: None,
    };
    section("Look at a key", "What it has used; boost it, or forget it.", SectionBody::Form(form))
}

fn charts(hour: &History, now: Moment) -> Vec<Chart> {
    let hour = Hour::new(hour, now);
    let of = |name, class| Series { name, class };
    let time = |slot: &HistorySlot, name: &str| {
        slot.quantile_ms("response", if name == "half within" { 0.5 } else { 0.95 })
    };
    let [fine, refused, limited, failed] = ANSWERS;
    let [admitted, would_refuse, refused_by_limit] = DECISIONS;
    let [connect, answer] = FAILURES;
    let failures = |slot: &HistorySlot, name: &str| slot.rate(&format!("upstream {name}"));
    vec![
        hour.stacked(
            "Requests per second, by response",
            &[of(fine, "ok"), of(refused, "warn"), of(limited, "late"), of(failed, "bad")],
            rate,
            HistorySlot::rate,
        ),
        hour.stacked(
            "Decisions of limits per second",
            &[of(admitted, "ok"), of(would_refuse, "warn"), of(refused_by_limit, "bad")],
            rate,
            HistorySlot::rate,
        ),
        hour.lines(
            "Time of responses",
            &[of("95 % within", "p95"), of("half within", "p50")],
            (ms, None),
            time,
        ),
        hour.lines(
            "Requests in flight and connections",
            &[of("connections", "p95"), of("in flight", "p50")],
            (whole, None),
            HistorySlot::level,
        ),
        hour.stacked(
            "Failures at upstreams per second",
            &[of(connect, "gone"), of(answer, "bad")],
            rate,
            failures,
        ),
        hour.lines(
            "Addresses of upstreams",
            &[of("healthy", "p50"), of("not healthy", "p95"), of("ejected", "pown")],
            (whole, None),
            HistorySlot::level,
        ),
    ]
}
