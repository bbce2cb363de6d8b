//! The fixtures of a run: workspaces, their webhooks and endpoints, and how each endpoint behaves
//! until the run makes all of them healthy.

use std::time::Duration;

use crate::rng::SeededRng;

/// The deadline of an attempt.
pub const DEADLINE: Duration = Duration::from_secs(1);
/// Attempts that may start at an endpoint within [`WINDOW`]: so few that bursts have to wait, and
/// so many that crashes every two seconds, each of which uses up a twentieth, leave half of them.
pub const REQUESTS: u32 = 500;
/// The window of the rate limit.
pub const WINDOW: Duration = Duration::from_secs(20);
/// The first retry delay.
pub const FIRST_DELAY: Duration = Duration::from_millis(500);
/// From the first attempt to the last, without pauses of the webhook.
pub const GIVE_UP_AFTER: Duration = Duration::from_secs(60);
/// A webhook without a 2xx for this long is paused.
pub const PAUSE_AFTER: Duration = Duration::from_secs(20);

/// A [`Temper::Choosy`] receiver refuses one of this number of events, at every attempt.
const CHOOSY: u64 = 41;

/// How an endpoint behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Temper {
    /// Answers 2xx at once.
    Healthy,
    /// Answers 2xx within 400 ms.
    Slow,
    /// Sometimes answers 2xx after the deadline.
    Late,
    /// Sometimes fails, in various ways.
    Flaky,
    /// Fails for ten seconds of each 25.
    Waves,
    /// Refuses certain events at every attempt.
    Choosy,
    /// Fails for 45 seconds of each 90, so that its webhook is paused.
    Down,
}

/// The endpoints: `/e0` and so on.
pub const ENDPOINTS: [Temper; 12] = [
    Temper::Healthy,
    Temper::Slow,
    Temper::Flaky,
    Temper::Waves,
    Temper::Healthy,
    Temper::Late,
    Temper::Choosy,
    Temper::Down,
    Temper::Flaky,
    Temper::Healthy,
    Temper::Slow,
    Temper::Waves,
];

/// The workspaces.
pub const WORKSPACES: [&str; 5] = ["ws_a", "ws_b", "ws_c", "ws_d", "ws_e"];

/// The types of events.
pub const KINDS: [&str; 4] = ["plan.changed", "session.started", "tenant.created", "user.deleted"];

/// Webhooks: the indexes of the workspace, the endpoint, and the event types that it subscribes to.
/// An event goes to as many as three endpoints, or to none; one endpoint has webhooks of two
/// workspaces.
pub const HOOKS: [(usize, usize, &[usize]); 13] = [
    (0, 0, &[0, 1]),
    (0, 1, &[0]),
    (0, 2, &[0, 2]),
    (1, 3, &[0, 1]),
    (1, 4, &[1, 2, 3]),
    (2, 4, &[0, 1]),
    (2, 5, &[1]),
    (3, 6, &[0, 1, 2]),
    (3, 7, &[2, 3]),
    (4, 8, &[0, 1]),
    (4, 9, &[1, 2]),
    (4, 10, &[2]),
    (4, 11, &[3]),
];

/// The endpoints that an event of this type and workspace must reach.
pub fn reached(workspace: usize, kind: usize) -> impl Iterator<Item = usize> {
    let told = HOOKS.iter().filter(move |hook| hook.0 == workspace && hook.2.contains(&kind));
    told.map(|hook| hook.1)
}

/// How a receiver responds to a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conduct {
    /// The delay before the response.
    pub after: Duration,
    /// The status of the response; `None` closes the connection instead.
    pub status: Option<u16>,
}

impl Conduct {
    /// 200 at once.
    pub const OK: Self = Self { after: Duration::ZERO, status: Some(200) };

    fn at_once(status: u16) -> Self {
        Self { status: Some(status), ..Self::OK }
    }
}

impl Temper {
    /// Whether it refuses everything at this time after the start of the run.
    pub fn is_out(self, since: Duration) -> bool {
        match self {
            Self::Waves => since.as_secs() % 25 >= 15,
            Self::Down => since.as_secs() % 90 >= 45,
            _ => false,
        }
    }

    /// How it responds to one delivery; `number` is the event's.
    pub fn conduct(self, since: Duration, number: u64, rng: &mut SeededRng) -> Conduct {
        match self {
            Self::Slow => Conduct { after: rng.millis(20, 400), status: Some(204) },
            Self::Late if rng.chance(4) => {
                Conduct { after: rng.millis(1_300, 1_800), status: Some(200) }
            }
            Self::Flaky => match rng.below(100) {
                0..8 => Conduct::at_once(*rng.pick(&[500, 503, 404, 302]).unwrap()),
                8..11 => Conduct { status: None, ..Conduct::OK },
                11 => Conduct { after: Duration::from_secs(2), status: None },
                _ => Conduct::OK,
            },
            Self::Waves | Self::Down if self.is_out(since) => Conduct::at_once(503),
            Self::Choosy if number.is_multiple_of(CHOOSY) => Conduct::at_once(422),
            _ => Conduct::OK,
        }
    }
}
