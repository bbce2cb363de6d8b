//! The operators' screen: is it us or them?
//!
//! Invariant: of a URL only the host is shown: its path and query may be secrets.
//!
//! Not here: what is changed there (`admin::actions`), what is sampled (`admin::watch`), who may
//! see it (`weir_common::admin`).

use http::Method;
use serde_json::Value;
use weir_common::admin::Program;
use weir_common::json::member;
use weir_common::pages::form::Form;
use weir_common::pages::history::HistorySlot;
use weir_common::pages::screen::{
    Chart, Figure, Grid, GridCell, Hour, Input, InputForm, Notice, Screen, Section, SectionBody,
    Series, THRESHOLD, uptime,
};
use weir_common::pages::show::{Mark, bytes, grouped, mark, ms, rate, span, utc, whole};
use weir_common::time::{Moment, UnixTime};

use crate::admin::DispatcherAdmin;
use crate::admin::actions::{done, reactivation};
use crate::admin::watch::{Census, GIVEN_UP, OUTCOMES, OWN_FAULTS, PROXY_FAULTS, Seen};
use crate::config::settings::ProxyAddress;
use crate::domain::id::{DeliveryId, WebhookId};
use crate::domain::webhook::{Webhook, WebhookState};
use crate::scheduler::survey::WaitsFor;

/// Beyond this age of the oldest delivery that could start, something is wrong with us.
const PAST_DUE_SECONDS: f64 = 60.0;

/// Rows of the tables of endpoints.
const PLACES: usize = 10;

/// Deliveries of a webhook that are counted, some milliseconds for all of a table.
const COUNTED_MAX: usize = 5_000;

/// The classes of stacked bars, in the order of `WaitsFor` and of the outcomes.
const CLASSES: [&str; 6] = ["ok", "warn", "bad", "late", "gone", "blocked"];

impl DispatcherAdmin {
    /// The screen.
    pub(super) async fn screen(&self, query: &Form) -> Screen {
        let now = self.state.clock.now();
        let mut screen = Screen::new("Overview");
        screen.refreshes = true;
        screen.notices.extend(done(query));
        if let Err(why) = self.readiness().await {
            screen.notices.push(Notice { mark: mark("■", "Not ready", "bad"), text: why });
        }
        let active = self.state.active.load_full();
        let waiting = self.state.store.figures().await.map(|figures| figures.waiting).ok();
        let (census, most_failed, longest) = {
            let seen = self.watch.seen();
            let proxy = active.settings.egress.proxy.as_ref();
            screen.notices.extend(notices(&seen, proxy, now));
            screen.figures = self.figures(&seen, waiting, now);
            screen.charts = charts(&seen, now);
            let most_failed = self.state.most_failed.most(PLACES);
            (seen.census.clone(), most_failed, seen.survey.longest.clone())
        };
        let mut rows = Vec::new();
        for one in most_failed {
            let mut row = self.webhook(&one.workspace, one.webhook).await;
            row.push(GridCell::Number(grouped(one.failed)));
            rows.push(row);
        }
        screen.sections.push(grid(
            "Endpoints that fail most",
            "Failed attempts lately; older ones count less.",
            Grid {
                columns: vec!["Host", "State", "Workspace", "Webhook", "Failed attempts"],
                rows,
                empty: "No attempt has failed lately.",
            },
        ));
        let mut queues = Vec::new();
        for one in longest {
            let (last, most) = (UnixTime(u64::MAX), COUNTED_MAX + 1);
            let counted =
                self.state.store.ahead_of(one.webhook, last, DeliveryId(i64::MAX), most).await;
            // Those that the store cannot count now are left out until it can.
            queues.extend(counted.ok().map(|count| (count, one)));
        }
        queues.sort_by_key(|(count, _)| std::cmp::Reverse(*count));
        let mut rows = Vec::new();
        for (count, one) in queues.into_iter().take(PLACES) {
            let mut row = self.webhook(&one.workspace, one.webhook).await;
            let more = if count > COUNTED_MAX { "+" } else { "" };
            let count = grouped(count.min(COUNTED_MAX) as u64);
            row.push(GridCell::Text(one.waits_for.name().to_owned()));
            row.push(GridCell::Number(format!("{count}{more}")));
            rows.push(row);
        }
        screen.sections.push(grid(
            "Endpoints with the longest queues",
            "Deliveries that wait, for whatever reason.",
            Grid {
                columns: vec!["Host", "State", "Workspace", "Webhook", "Wait for", "Waiting"],
                rows,
                empty: "Nothing waits.",
            },
        ));
        screen.sections.push(self.stopped(&census));
        screen.sections.push(reactivation());
        screen.sections.push(self.jobs_section().await);
        screen
    }

    /// Host, state, workspace and identifier of a webhook.
    async fn webhook(&self, workspace: &str, id: WebhookId) -> Vec<GridCell> {
        let found = self.state.store.webhook(workspace, id).await.ok().flatten();
        let (host, state) = match &found {
            Some(webhook) => (webhook.host().unwrap_or_default(), state_mark(webhook.state())),
            None => ("–".to_owned(), mark("?", "Deleted", "muted")),
        };
        let public = self.state.store.ids().webhook(id);
        vec![
            GridCell::Text(host),
            GridCell::Mark(state),
            GridCell::Code(workspace.to_owned()),
            GridCell::Code(public),
        ]
    }

    fn figures(&self, seen: &Seen, waiting: Option<u64>, now: Moment) -> Vec<Figure> {
        let figure = |name, value: String| Figure { name, value, mark: None };
        let in_hour = |name: &str| seen.hour.total(name, now);
        let mails = [in_hour("mails sent"), in_hour("mails failed") + in_hour("mails dropped")];
        let in_flight = self.state.metrics.in_flight.get();
        let census = &seen.census;
        vec![
            figure("Waiting", waiting.map_or_else(|| "–".to_owned(), grouped)),
            figure("In flight", grouped(u64::try_from(in_flight).unwrap_or(0))),
            Figure {
                mark: (census.paused > 0).then(|| state_mark(WebhookState::Paused)),
                ..figure("Webhooks paused", grouped(census.paused as u64))
            },
            Figure {
                mark: (census.failing > 0).then(|| state_mark(WebhookState::Failing)),
                ..figure("Webhooks failing", grouped(census.failing as u64))
            },
            figure("Given up, 24 h", grouped(seen.day.total(GIVEN_UP, now))),
            figure(
                "Mails sent / failed, 1 h",
                format!("{} / {}", grouped(mails[0]), grouped(mails[1])),
            ),
            figure("Events repeated, 1 h", grouped(in_hour("events repeated"))),
            uptime(env!("CARGO_PKG_VERSION"), now.tick.since(self.watch.started)),
        ]
    }

    /// Webhooks that do not deliver.
    fn stopped(&self, census: &Census) -> Section {
        let row = |webhook: &Webhook| {
            let since = webhook.state_since();
            let last = webhook.last_outcome.as_ref().map(ToString::to_string);
            vec![
                GridCell::Text(webhook.host().unwrap_or_default()),
                GridCell::Mark(state_mark(webhook.state())),
                GridCell::Code(webhook.workspace.to_string()),
                GridCell::Code(self.state.store.ids().webhook(webhook.id)),
                since.map_or_else(|| GridCell::Text(String::new()), GridCell::Time),
                GridCell::Text(last.unwrap_or_default()),
            ]
        };
        let count = |count: usize| grouped(count as u64);
        let text = format!(
            "{} paused, {} failing, {} disabled. The oldest are listed; GET /webhooks has all.",
            count(census.paused),
            count(census.failing),
            count(census.disabled)
        );
        grid(
            "Webhooks that do not deliver",
            &text,
            Grid {
                columns: vec!["Host", "State", "Workspace", "Webhook", "Since", "Last outcome"],
                rows: census.listed.iter().map(row).collect(),
                empty: "Every webhook delivers.",
            },
        )
    }

    async fn jobs_section(&self) -> Section {
        let jobs = self.call(Method::GET, "/redeliveries", "").await;
        let jobs = jobs.map(|value| member(&value, "redeliveries").clone()).unwrap_or_default();
        let text =
            |job: &Value, name: &str| member(job, name).as_str().unwrap_or_default().to_owned();
        let number = |job: &Value, name: &str| grouped(member(job, name).as_u64().unwrap_or(0));
        let row = |job: &Value| {
            vec![
                GridCell::Code(text(job, "workspace")),
                GridCell::Code(text(job, "id")),
                GridCell::Text(utc(text(job, "created_at"))),
                GridCell::Number(number(job, "redelivered")),
                GridCell::Number(number(job, "waiting")),
                GridCell::Button(InputForm {
                    action: "/dashboard/redeliveries/cancel".to_owned(),
                    reads: false,
                    inputs: vec![
                        Input::hidden("workspace", text(job, "workspace")),
                        Input::hidden("id", text(job, "id")),
                    ],
                    button: "Cancel",
                    back: None,
                }),
            ]
        };
        grid(
            "Redeliveries that run",
            "",
            Grid {
                columns: vec!["Workspace", "Job", "Created", "Queued again", "Waiting", ""],
                rows: jobs.as_array().into_iter().flatten().map(row).collect(),
                empty: "No redelivery runs.",
            },
        )
    }
}

fn grid(title: &str, text: &str, grid: Grid) -> Section {
    Section { title: title.to_owned(), text: text.to_owned(), body: SectionBody::Grid(grid) }
}

fn state_mark(state: WebhookState) -> Mark {
    match state {
        WebhookState::Delivering => mark("●", "Delivering", "ok"),
        WebhookState::Failing => mark("▲", "Failing", "warn"),
        WebhookState::Paused => mark("■", "Paused", "bad"),
        WebhookState::Disabled => mark("○", "Disabled", "muted"),
    }
}

/// What is wrong with us now.
fn notices(seen: &Seen, proxy: Option<&ProxyAddress>, now: Moment) -> Vec<Notice> {
    let slots = seen.hour.slots(now);
    let last = slots.iter().rev().find_map(|(_, slot)| *slot);
    let past_due = last.and_then(|slot| slot.level("past due")).unwrap_or(0.0);
    let mut all = Vec::new();
    if past_due >= PAST_DUE_SECONDS {
        let text = format!(
            "The oldest delivery that could start has waited for {}. It is us: see the lag, the \
             store's commit times, and attempts in flight.",
            span(std::time::Duration::from_secs_f64(past_due))
        );
        all.push(Notice { mark: mark("▲", "Past due", "warn"), text });
    }
    let faults = seen.hour.total(OWN_FAULTS, now);
    if faults > 0 {
        let text = format!(
            "{} attempts of the last hour failed through this process or its machine, and are \
             repeated: attempts_total has which fault.",
            grouped(faults)
        );
        all.push(Notice { mark: mark("▲", "Own faults", "warn"), text });
    }
    let refused = seen.hour.total(PROXY_FAULTS, now);
    if refused > 0 {
        let text = format!(
            "{} attempts of the last hour were not made, and are repeated: the proxy of \
             egress.proxy{} could not be used.",
            grouped(refused),
            proxy.map(|at| format!(", {}:{},", at.host, at.port)).unwrap_or_default()
        );
        all.push(Notice { mark: mark("▲", "Proxy", "warn"), text });
    }
    let failures = seen.hour.total("store failures", now);
    if failures > 0 {
        let text = format!("{} calls of the store failed in the last hour.", grouped(failures));
        all.push(Notice { mark: mark("■", "Store", "bad"), text });
    }
    all
}

fn charts(seen: &Seen, now: Moment) -> Vec<Chart> {
    let hour = Hour::new(&seen.hour, now);
    let classes = |names: [&'static str; 6]| {
        let mut all = names.into_iter().zip(CLASSES);
        std::array::from_fn::<Series, 6, _>(|_| {
            let (name, class) = all.next().unwrap_or_default();
            Series { name, class }
        })
    };
    let line = |name, class| Series { name, class };
    let seconds = |value: f64| format!("{value:.0}\u{202f}s");
    let time = |slot: &HistorySlot, name: &str| match name {
        "receivers, half within" => slot.quantile_ms("answer", 0.5),
        "receivers, 95 % within" => slot.quantile_ms("answer", 0.95),
        "our lag, 95 % within" => slot.quantile_ms("lag", 0.95),
        "commit, half within" => slot.quantile_ms("commit", 0.5),
        _ => slot.quantile_ms("commit", 0.95),
    };
    vec![
        hour.stacked(
            "Attempts per second",
            &classes(OUTCOMES.map(|(name, _)| name)),
            rate,
            HistorySlot::rate,
        ),
        hour.lines(
            "Oldest past due",
            &[line("past due", "p50"), line("wrong beyond 60 s", THRESHOLD)],
            (seconds, Some(PAST_DUE_SECONDS)),
            HistorySlot::level,
        ),
        hour.stacked(
            "Webhooks by what their deliveries wait for",
            &classes(WaitsFor::ALL.map(WaitsFor::name)),
            whole,
            HistorySlot::level,
        ),
        hour.lines(
            "Receivers' answer times and our lag",
            &[
                line("receivers, 95 % within", "p95"),
                line("receivers, half within", "p50"),
                line("our lag, 95 % within", "pown"),
            ],
            (ms, None),
            time,
        ),
        hour.lines(
            "Store: time of a commit",
            &[line("commit, 95 % within", "p95"), line("commit, half within", "p50")],
            (ms, None),
            time,
        ),
        hour.lines(
            "Store: size of the WAL",
            &[line("WAL", "p50")],
            (bytes, None),
            HistorySlot::level,
        ),
    ]
}
