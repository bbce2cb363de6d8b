//! What one run is: the gateways, their limits, what fails, and what is promised then.
//!
//! The promises are the rows of "What is promised" in docs/scaling.md.
//!
//! Not here: the model that checks them (`weir_tests::admissions`), when something fails
//! (`faults`).

use std::time::Duration;

use weir_common::limit::concurrency::ConcurrencyQuota;
use weir_common::limit::rolling::RollingQuota;
use weir_common::limit::token_bucket::{BucketQuota, Rate};
use weir_common::time::micros;
use weir_gateway::limit::{Quota, StoreFailure};
use weir_tests::admissions::Admissions;
use weir_tests::rng::SeededRng;

/// What fails in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Situation {
    /// The store answers in time; gateways are killed, and end.
    InTime,
    /// Replies are late or lost, connections break, the server stands still; limits refuse then.
    Unreachable,
    /// Calls arrive late, or are executed and not answered, again and again; limits refuse then.
    Unanswered,
    /// The server's clock is set back.
    ClockBack,
    /// The server's clock jumps ahead.
    ClockAhead,
    /// The server forgets all.
    Flushed,
    /// The server is killed, and starts without its data.
    Restarted,
    /// A replica that lags takes over.
    FailedOver,
    /// The same, but a replica has acknowledged each charge.
    Acknowledged,
    /// A replica takes over while some gateways still reach the primary.
    TwoPrimaries,
    /// The server stands still, and each gateway admits its share.
    Shares,
}

/// All of them.
pub(crate) const SITUATIONS: [Situation; 11] = [
    Situation::InTime,
    Situation::Unreachable,
    Situation::Unanswered,
    Situation::ClockBack,
    Situation::ClockAhead,
    Situation::Flushed,
    Situation::Restarted,
    Situation::FailedOver,
    Situation::Acknowledged,
    Situation::TwoPrimaries,
    Situation::Shares,
];

/// Which limits a request has: those of its tenant, and those of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    /// A window of each tenant, and one of both.
    Windows,
    /// A bucket of each tenant.
    Buckets,
    /// A window of each tenant, and a bucket of both.
    Mixed,
    /// Requests in flight of each tenant, and a bucket of both.
    InFlight,
}

/// One run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) situation: Situation,
    pub(crate) gateways: usize,
    /// Clients of each gateway.
    pub(crate) clients: usize,
    /// The limits of both tenants, and the one of all.
    pub(crate) limits: Vec<Quota>,
    layout: Layout,
    pub(crate) on_failure: StoreFailure,
    /// How long a request waits for the store.
    pub(crate) timeout: Duration,
    /// The shortest and the longest delay of each way, in milliseconds.
    pub(crate) delay: (u64, u64),
    /// The longest pause of a client between two requests of a burst, in milliseconds.
    pub(crate) pause: u64,
    /// How long the run lasts.
    pub(crate) lasts: Duration,
}

impl Plan {
    pub(crate) fn new(situation: Situation, rng: &mut SeededRng) -> Self {
        let has_windows_only =
            !matches!(situation, Situation::InTime | Situation::Unreachable | Situation::ClockBack);
        let layout = match rng.below(if has_windows_only { 1 } else { 5 }) {
            0 | 1 => Layout::Windows,
            2 => Layout::Buckets,
            3 => Layout::Mixed,
            _ => Layout::InFlight,
        };
        let mut rolling = || {
            let requests = 4 + rng.below(26) as u32;
            Quota::Rolling(RollingQuota { requests, window: rng.millis(400, 5_000) })
        };
        let (own, all) = (rolling(), rolling());
        let burst = 4 + rng.below(40) as u32;
        let rate = Rate::per_second(rng.millis(2, 200).as_millis() as u32);
        let bucket = Quota::Bucket(BucketQuota { rate, burst });
        let in_flight = Quota::Concurrency(ConcurrencyQuota { requests: 1 + rng.below(8) as u32 });
        let limits = match layout {
            Layout::Windows => vec![own, own, all],
            Layout::Buckets => vec![bucket, bucket],
            Layout::Mixed => vec![own, own, bucket],
            Layout::InFlight => vec![in_flight, in_flight, bucket],
        };
        let slowest = match situation {
            // Many calls are under way.
            Situation::Unanswered => 12,
            _ => rng.below(13),
        };
        Self {
            situation,
            gateways: 1 + rng.below(4) as usize,
            // Leases need a demand.
            clients: 1 + rng.below(if layout == Layout::Buckets { 6 } else { 3 }) as usize,
            limits,
            layout,
            on_failure: match situation {
                Situation::Shares => StoreFailure::LocalShare,
                _ => StoreFailure::Refuse,
            },
            timeout: Duration::from_millis(40 + rng.below(100)),
            delay: (rng.below(slowest + 1), slowest),
            pause: match (layout, situation) {
                (Layout::Buckets, _) | (_, Situation::Unanswered) => 2 + rng.below(6),
                _ => 2 + rng.below(60),
            },
            lasts: Duration::from_millis(7_000 + rng.below(5_000)),
        }
    }

    /// The limits of a tenant's request.
    pub(crate) fn limits_of(&self, tenant: usize) -> Vec<usize> {
        match self.layout {
            Layout::Buckets => vec![tenant],
            _ => vec![tenant, 2],
        }
    }

    pub(crate) fn counts_in_flight(&self) -> bool {
        self.layout == Layout::InFlight
    }

    pub(crate) fn has_sentinel(&self) -> bool {
        use Situation::{Acknowledged, FailedOver, TwoPrimaries};
        matches!(self.situation, FailedOver | Acknowledged | TwoPrimaries)
    }

    pub(crate) fn acknowledge(&self) -> u32 {
        (self.situation == Situation::Acknowledged).into()
    }

    /// For how long a gateway may not have told what it was given, in microseconds: until a
    /// heartbeat has made its calls.
    pub(crate) fn untold(&self) -> u64 {
        1_000 * (250 + 20 + 48 * self.delay.1)
    }

    /// Checks what is promised in this situation.
    pub(crate) fn check(&self, history: &Admissions) -> Result<(), String> {
        match self.situation {
            // The store counts by its own clock.
            Situation::ClockAhead => self.check_all(&history.by_server()),
            _ => self.check_all(history),
        }
    }

    fn check_all(&self, history: &Admissions) -> Result<(), String> {
        for (limit, quota) in self.limits.iter().enumerate() {
            use Situation::*;
            let most = u64::from(quota.limit());
            match quota {
                Quota::Bucket(quota) => {
                    let rate = quota.rate;
                    let per_second = f64::from(rate.tokens()) / rate.period().as_secs_f64();
                    history.check_bucket(limit, (quota.burst, per_second))?;
                }
                Quota::Concurrency(_) if self.situation == InTime => {
                    history.check_in_flight(limit, most)?;
                }
                _ => {}
            }
            let Quota::Rolling(RollingQuota { window, .. }) = quota else { continue };
            let window = micros(*window);
            match self.situation {
                InTime | Unreachable | Unanswered | ClockBack | ClockAhead | Acknowledged => {
                    history.check_windows(limit, window, most)?;
                }
                Flushed | Restarted | FailedOver => history.check_told(limit, window, most)?,
                TwoPrimaries => history.check_windows(limit, window, 2 * most)?,
                Shares => {
                    let others = most - most / self.gateways as u64;
                    history.check_windows(limit, window, most + 2 * others)?;
                }
            }
            if !matches!(
                self.situation,
                ClockBack | ClockAhead | Acknowledged | TwoPrimaries | Shares
            ) {
                history.check_refused(limit, window, (most, 1))?;
            }
        }
        Ok(())
    }
}
