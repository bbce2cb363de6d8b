//! What the dashboard adds: links into it, and the numbers of its charts.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::dto::Time;
use crate::api::dto::redelivery::MatchCount;
use crate::domain::activity::{Activity, ActivityClass, start_of};
use crate::domain::session::Role;

/// A link to make.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "NewDashboardLink")]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct NewLink {
    /// What it permits. Default: as much as the token does.
    pub(in crate::api) role: Option<Role>,
}

/// A link into the dashboard.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "DashboardLink")]
pub(in crate::api) struct LinkView {
    /// It opens one session, for its bearer.
    pub(in crate::api) url: String,
    /// What it permits.
    pub(in crate::api) role: Role,
    /// When it expires.
    pub(in crate::api) expires_at: Time,
}

/// How the attempts of a webhook went lately.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Activity")]
pub(in crate::api) struct ActivityView {
    /// The webhook's identifier.
    pub(in crate::api) webhook_id: String,
    /// How many deliveries wait.
    pub(in crate::api) waiting: MatchCount,
    /// The last 2xx; null before the first.
    pub(in crate::api) last_success_at: Option<Time>,
    /// The first failure since then; null after a 2xx.
    pub(in crate::api) down_since: Option<Time>,
    /// All of `hours`.
    pub(in crate::api) total: Counts,
    /// The last 24 hours, in order, the current one included.
    pub(in crate::api) hours: Vec<HourView>,
}

/// An hour.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ActivityHour")]
pub(in crate::api) struct HourView {
    /// When it began.
    pub(in crate::api) start: Time,
    #[serde(flatten)]
    pub(in crate::api) counts: Counts,
}

/// Attempts by what became of them; faults of the platform are not among them.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ActivityCounts")]
pub(in crate::api) struct Counts {
    /// Attempts that ended.
    attempts: u64,
    /// Answered with 2xx.
    delivered: u64,
    /// Answered with neither 2xx nor 5xx.
    client_errors: u64,
    /// Answered with 5xx.
    server_errors: u64,
    /// Not answered in time.
    timeouts: u64,
    /// Without a connection: the name, the network, TLS.
    unreachable: u64,
    /// Not sent: the URL, or its address, is not allowed.
    blocked: u64,
    /// The time that half of the answers did not exceed, up to a fifth too high; null without
    /// answers.
    p50_ms: Option<f64>,
    /// The time that 95 % of them did not exceed.
    p95_ms: Option<f64>,
}

impl Counts {
    pub(in crate::api) fn of(activity: &Activity) -> Self {
        let percentile = |percent| {
            let found = activity.times.percentile(percent)?;
            Some((found.as_secs_f64() * 10_000.0).round() / 10.0)
        };
        Self {
            attempts: activity.attempts(),
            delivered: activity.of(ActivityClass::Delivered),
            client_errors: activity.of(ActivityClass::ClientError),
            server_errors: activity.of(ActivityClass::ServerError),
            timeouts: activity.of(ActivityClass::Timeout),
            unreachable: activity.of(ActivityClass::Unreachable),
            blocked: activity.of(ActivityClass::Blocked),
            p50_ms: percentile(50),
            p95_ms: percentile(95),
        }
    }
}

impl HourView {
    pub(in crate::api) fn of(hour: u64, activity: &Activity) -> Self {
        Self { start: Time(start_of(hour)), counts: Counts::of(activity) }
    }
}
