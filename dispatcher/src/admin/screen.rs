//! The operators' screen: is it us or them? And what an operator does there at three in the
//! morning.
//!
//! Everything that it changes is a call of the admin API in the same process: what is refused
//! there is refused here, in the same words.
//!
//! Invariant: of a URL only the host is shown: its path and query may be secrets.
//!
//! Not here: what is sampled (`admin::watch`), who may see it (`weir_common::admin`).

use http::{HeaderMap, Method};
use serde_json::Value;
use weir_common::admin::{Acted, Program};
use weir_common::http_server::Call;
use weir_common::pages::form::{Form, query};
use weir_common::pages::history::HistorySlot;
use weir_common::pages::screen::{
    Chart, Figure, Grid, GridCell, Hour, Input, InputForm, Notice, Screen, Section, SectionBody,
    Series, THRESHOLD, uptime,
};
use weir_common::pages::show::{Mark, bytes, grouped, mark, ms, rate, span, utc, whole};
use weir_common::time::{Moment, UnixTime};

use crate::admin::DispatcherAdmin;
use crate::admin::watch::{Census, GIVEN_UP, OUTCOMES, OWN_FAULTS, Seen};
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

/// What the addresses of pages say was done.
const DONE: &str = "done";

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
        let waiting = self.state.store.figures().await.map(|figures| figures.waiting).ok();
        let (census, failing, longest) = {
            let seen = self.watch.seen();
            screen.notices.extend(notices(&seen, now));
            screen.figures = self.figures(&seen, waiting, now);
            screen.charts = charts(&seen, now);
            let failing = self.state.failing.most(PLACES);
            (seen.census.clone(), failing, seen.survey.longest.clone())
        };
        let mut rows = Vec::new();
        for one in failing {
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
        let jobs = jobs.map(|value| value["redeliveries"].clone()).unwrap_or_default();
        let text = |job: &Value, name: &str| job[name].as_str().unwrap_or_default().to_owned();
        let number = |job: &Value, name: &str| grouped(job[name].as_u64().unwrap_or(0));
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

    /// What a form does.
    pub(super) async fn acted(&self, steps: &[&str], form: &Form) -> Option<Acted> {
        match steps {
            ["reactivate"] => Some(self.reactivate(form).await),
            ["redeliveries", "cancel"] => Some(self.cancel_asked(form).await),
            _ => None,
        }
    }

    async fn reactivate(&self, form: &Form) -> Acted {
        let (workspace, host) = (form.get("workspace"), form.get("host"));
        let confirmed = form.get("confirmed") == "yes";
        let dry_run = if confirmed { "" } else { "true" };
        let which = query([("workspace", workspace), ("host", host), ("dry_run", dry_run)]);
        let value = match self.call(Method::POST, "/webhooks:reactivate", &which).await {
            Ok(value) => value,
            Err(refused) => return Acted::Show(refused.0, refused.1),
        };
        if confirmed {
            let count = value["reactivated"].as_u64().unwrap_or(0);
            return Acted::Go(format!("/dashboard?{DONE}=reactivated&count={count}"));
        }
        let count = value["matching"].as_u64().unwrap_or(0);
        let of = [("of the workspace ", workspace), ("at the host ", host)];
        let of = of.into_iter().filter(|(_, value)| !value.is_empty());
        let of: String = of.map(|(what, value)| format!(" {what}{value}")).collect();
        let text = format!(
            "Paused webhooks{of}: {}. Each is sent its oldest delivery first, and all others in \
             their order and at the usual pace once that one arrives. What waits is kept either \
             way.",
            grouped(count)
        );
        let inputs = [("workspace", workspace), ("host", host), ("confirmed", "yes")];
        let form = InputForm {
            action: "/dashboard/reactivate".to_owned(),
            reads: false,
            inputs: inputs.map(|(name, value)| Input::hidden(name, value)).into(),
            button: "Reactivate",
            back: Some("/dashboard".to_owned()),
        };
        Acted::Show(200, Screen::question(format!("Reactivate {}?", grouped(count)), text, form))
    }

    async fn cancel_asked(&self, form: &Form) -> Acted {
        let (workspace, id) = (form.get("workspace"), form.get("id"));
        if form.get("confirmed") != "yes" {
            let text = format!(
                "The job {id} of {workspace} queues nothing more. What it has queued stays queued \
                 and is sent."
            );
            let inputs = [("workspace", workspace), ("id", id), ("confirmed", "yes")];
            let form = InputForm {
                action: "/dashboard/redeliveries/cancel".to_owned(),
                reads: false,
                inputs: inputs.map(|(name, value)| Input::hidden(name, value)).into(),
                button: "Cancel the job",
                back: Some("/dashboard".to_owned()),
            };
            return Acted::Show(200, Screen::question("Cancel the redelivery?", text, form));
        }
        let path = format!("/redeliveries/{workspace}/{id}:cancel");
        match self.call(Method::POST, &path, "").await {
            Ok(_) => Acted::Go(format!("/dashboard?{DONE}=cancelled")),
            Err(refused) => Acted::Show(refused.0, refused.1),
        }
    }

    /// Calls the admin API; an error is a page that says why it refused.
    async fn call(&self, method: Method, path: &str, query: &str) -> Result<Value, (u16, Screen)> {
        let call = Call {
            method,
            path: path.to_owned(),
            query: Some(query.to_owned()).filter(|query| !query.is_empty()),
            headers: HeaderMap::new(),
            body: Default::default(),
        };
        let reply = self.route(&call).await.unwrap_or_else(weir_common::admin::not_found);
        let value: Value = serde_json::from_slice(&reply.body).unwrap_or_default();
        if (200..300).contains(&reply.status) {
            return Ok(value);
        }
        let errors = value["errors"].as_array().into_iter().flatten();
        let errors = errors.filter_map(|error| {
            Some(format!(" {}: {}.", error["parameter"].as_str()?, error["detail"].as_str()?))
        });
        let title = value["title"].as_str().unwrap_or("Not done").to_owned();
        let detail = value["detail"].as_str().unwrap_or_default().to_owned();
        let text = errors.fold(detail, |text, error| text + &error);
        Err((reply.status, Screen::notice(title, mark("✕", "Not done", "bad"), text)))
    }
}

fn grid(title: &str, text: &str, grid: Grid) -> Section {
    Section { title: title.to_owned(), text: text.to_owned(), body: SectionBody::Grid(grid) }
}

fn reactivation() -> Section {
    let form = InputForm {
        action: "/dashboard/reactivate".to_owned(),
        reads: false,
        inputs: vec![
            Input::text("host", "Host; empty for all", "hooks.example.com"),
            Input::text("workspace", "Workspace; empty for all", "ws_acme"),
        ],
        button: "Reactivate those that match …",
        back: None,
    };
    let text = "After an outage on our side, or of a receiver with many webhooks. The next page \
        says how many match, and asks.";
    Section {
        title: "Reactivate paused webhooks".to_owned(),
        text: text.to_owned(),
        body: SectionBody::Form(form),
    }
}

fn state_mark(state: WebhookState) -> Mark {
    match state {
        WebhookState::Delivering => mark("●", "Delivering", "ok"),
        WebhookState::Failing => mark("▲", "Failing", "warn"),
        WebhookState::Paused => mark("■", "Paused", "bad"),
        WebhookState::Disabled => mark("○", "Disabled", "muted"),
    }
}

/// What the last form did.
fn done(query: &Form) -> Option<Notice> {
    let count: u64 = query.get("count").parse().unwrap_or(0);
    let text = match query.get(DONE) {
        "reactivated" => format!("Webhooks reactivated: {}.", grouped(count)),
        "cancelled" => "The redelivery queues nothing more.".to_owned(),
        _ => return None,
    };
    Some(Notice { mark: mark("●", "Done", "ok"), text })
}

/// What is wrong with us now.
fn notices(seen: &Seen, now: Moment) -> Vec<Notice> {
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
