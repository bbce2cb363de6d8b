//! What pages read of the API's answers. (core)
//!
//! Invariant: each field is one of the API's, by its name there; a page shows nothing that the API
//! does not.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use weir_common::pages::show::{grouped, ms};
use weir_common::time::UnixTime;

use crate::dashboard::show::When;
use crate::dashboard::times_in_text::TextWithTimes;
use crate::domain::event::EventType;

/// A page of a list.
#[derive(Deserialize)]
pub(super) struct List<T> {
    pub(super) data: Vec<T>,
    pub(super) next_cursor: Option<String>,
}

/// A list that has no pages.
#[derive(Deserialize)]
pub(super) struct Whole<T> {
    pub(super) data: Vec<T>,
}

/// A webhook, in a list or alone.
#[derive(Deserialize)]
pub(super) struct WebhookData {
    pub(super) id: String,
    pub(super) url: String,
    pub(super) events: Vec<String>,
    pub(super) created_at: When,
    pub(super) state: String,
    pub(super) description: Option<String>,
    pub(super) metadata: BTreeMap<String, String>,
    pub(super) headers: BTreeMap<String, String>,
    pub(super) answers: String,
    pub(super) requests_per_minute: Option<u32>,
    pub(super) public_key: Option<String>,
}

/// A webhook with its health and its forecast.
#[derive(Deserialize)]
pub(super) struct WebhookDetailData {
    #[serde(flatten)]
    pub(super) webhook: WebhookData,
    pub(super) health: HealthData,
    pub(super) waiting: CountData,
    pub(super) forecast: ForecastData,
}

#[derive(Deserialize)]
pub(super) struct HealthData {
    pub(super) failing_since: Option<When>,
    pub(super) down_since: Option<When>,
    pub(super) paused_since: Option<When>,
    pub(super) disabled_since: Option<When>,
    pub(super) secret_lost_since: Option<When>,
    pub(super) last_success_at: Option<When>,
    pub(super) last_outcome: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct ForecastData {
    pub(super) if_down: IfDownData,
    pub(super) if_up: Option<EstimateData>,
}

#[derive(Deserialize)]
pub(super) struct IfDownData {
    pub(super) text: TextWithTimes,
}

#[derive(Deserialize)]
pub(super) struct EstimateData {
    pub(super) text: TextWithTimes,
}

/// A number, exact up to a bound.
#[derive(Clone, Copy, Deserialize)]
pub(super) struct CountData {
    pub(super) count: u64,
    pub(super) at_least: bool,
}

impl CountData {
    pub(super) fn is_one(self) -> bool {
        self.count == 1 && !self.at_least
    }
}

impl fmt::Display for CountData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", grouped(self.count), if self.at_least { "+" } else { "" })
    }
}

#[derive(Deserialize)]
pub(super) struct ActivityData {
    pub(super) waiting: CountData,
    pub(super) last_success_at: Option<When>,
    pub(super) down_since: Option<When>,
    pub(super) total: CountsData,
    pub(super) hours: Vec<HourData>,
}

#[derive(Deserialize)]
pub(super) struct HourData {
    pub(super) start: When,
    #[serde(flatten)]
    pub(super) counts: CountsData,
}

#[derive(Deserialize)]
pub(super) struct CountsData {
    pub(super) attempts: u64,
    pub(super) delivered: u64,
    pub(super) client_errors: u64,
    pub(super) server_errors: u64,
    pub(super) timeouts: u64,
    pub(super) unreachable: u64,
    pub(super) blocked: u64,
    pub(super) p50_ms: Option<f64>,
    pub(super) p95_ms: Option<f64>,
}

impl CountsData {
    /// By class, in the order of [`crate::dashboard::show::CLASSES`].
    pub(super) fn by_class(&self) -> [u64; 6] {
        [
            self.delivered,
            self.client_errors,
            self.server_errors,
            self.timeouts,
            self.unreachable,
            self.blocked,
        ]
    }

    /// Attempts that failed.
    pub(super) fn failed(&self) -> u64 {
        self.attempts.saturating_sub(self.delivered)
    }
}

/// What a URL answered to a signed ping.
#[derive(Deserialize)]
pub(super) struct CheckData {
    pub(super) ok: bool,
    pub(super) status: Option<u16>,
    pub(super) error: Option<String>,
    pub(super) duration_ms: Option<u64>,
    pub(super) timings: Option<TimingsData>,
}

impl CheckData {
    pub(super) fn duration(&self) -> String {
        self.duration_ms.map(|time| ms(time as f64)).unwrap_or_default()
    }
}

#[derive(Deserialize)]
pub(super) struct CreatedData {
    pub(super) id: String,
    pub(super) url: String,
    pub(super) secret: String,
    pub(super) public_key: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct RotatedData {
    pub(super) secret: String,
    pub(super) previous_valid_until: Option<When>,
}

/// A delivery, in a list or alone.
#[derive(Deserialize)]
pub(super) struct DeliveryData {
    pub(super) id: String,
    pub(super) event_id: String,
    pub(super) webhook_id: String,
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) state: String,
    pub(super) attempts: u32,
    pub(super) last_outcome: Option<String>,
    pub(super) created_at: When,
    pub(super) first_attempt_at: Option<When>,
    pub(super) next_attempt_at: Option<When>,
    pub(super) deadline_at: Option<When>,
    pub(super) ended_at: Option<When>,
    pub(super) waiting_for: Option<WaitData>,
}

impl DeliveryData {
    /// When the next attempt is, if that is ahead.
    pub(super) fn next_at(&self, now: UnixTime) -> Option<&When> {
        self.next_attempt_at.as_ref().filter(|at| at.unix() > now)
    }

    /// Whether it is a test, which is never sent again.
    pub(super) fn is_test(&self) -> bool {
        self.kind == EventType::PING.name()
    }
}

#[derive(Deserialize)]
pub(super) struct WaitData {
    pub(super) reason: String,
    pub(super) text: TextWithTimes,
}

#[derive(Deserialize)]
pub(super) struct DeliveryDetailData {
    #[serde(flatten)]
    pub(super) delivery: DeliveryData,
    pub(super) stops: Vec<StopData>,
    pub(super) attempt_log: Vec<AttemptData>,
    pub(super) attempt_log_truncated: bool,
}

#[derive(Deserialize)]
pub(super) struct StopData {
    pub(super) from: When,
    pub(super) until: Option<When>,
}

#[derive(Deserialize)]
pub(super) struct AttemptData {
    pub(super) number: u32,
    pub(super) started_at: When,
    pub(super) duration_ms: u64,
    pub(super) outcome: String,
    pub(super) error: Option<String>,
    pub(super) url: Option<String>,
    pub(super) address: Option<String>,
    pub(super) timings: TimingsData,
    pub(super) request: Option<RequestData>,
    pub(super) response: Option<ResponseData>,
}

impl AttemptData {
    /// Whole milliseconds, as they are kept.
    pub(super) fn duration(&self) -> String {
        match self.duration_ms {
            0..10_000 => format!("{}\u{202f}ms", self.duration_ms),
            longer => ms(longer as f64),
        }
    }
}

#[derive(Deserialize)]
pub(super) struct TimingsData {
    pub(super) reused_connection: bool,
    pub(super) dns_ms: Option<f64>,
    pub(super) connect_ms: Option<f64>,
    pub(super) tls_ms: Option<f64>,
    pub(super) first_byte_ms: Option<f64>,
}

impl TimingsData {
    /// What is known of it, with its name, in the order of the attempt.
    pub(super) fn steps(&self) -> Vec<(&'static str, String)> {
        let steps = [
            ("DNS", self.dns_ms),
            ("connect", self.connect_ms),
            ("TLS", self.tls_ms),
            ("first byte", self.first_byte_ms),
        ];
        let known = steps.into_iter().filter_map(|(name, time)| Some((name, ms(time?))));
        let reused = self.reused_connection.then(|| ("connection", "reused".to_owned()));
        reused.into_iter().chain(known).collect()
    }
}

#[derive(Deserialize)]
pub(super) struct RequestData {
    pub(super) headers: Vec<HeaderData>,
    pub(super) headers_truncated: bool,
}

#[derive(Deserialize)]
pub(super) struct ResponseData {
    pub(super) headers: Vec<HeaderData>,
    pub(super) headers_truncated: bool,
    pub(super) body: String,
    pub(super) body_encoding: String,
    pub(super) body_truncated: bool,
}

#[derive(Deserialize)]
pub(super) struct HeaderData {
    pub(super) name: String,
    pub(super) value: String,
}

#[derive(Deserialize)]
pub(super) struct JobData {
    pub(super) id: String,
    pub(super) state: String,
    pub(super) total: Option<CountData>,
    pub(super) redelivered: u64,
    pub(super) waiting: u64,
    pub(super) delivered: u64,
    pub(super) failed_permanent: u64,
    pub(super) created_at: When,
    pub(super) ended_at: Option<When>,
    pub(super) estimate: Option<EstimateData>,
}

#[derive(Deserialize)]
pub(super) struct PreviewData {
    pub(super) total: CountData,
    pub(super) estimate: Option<EstimateData>,
}

#[derive(Deserialize)]
pub(super) struct EventTypeData {
    pub(super) name: String,
    pub(super) retired: bool,
    pub(super) description: Option<String>,
}
