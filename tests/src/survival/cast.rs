//! Who takes part: workspaces, their webhooks, the endpoints these lead to, and how each of those
//! behaves until it is told to be well.

use std::time::Duration;

use crate::rng::SeededRng;

/// The deadline of an attempt.
pub const DEADLINE: Duration = Duration::from_secs(1);
/// Attempts that may start at an endpoint within [`WINDOW`]: few enough that bursts are held back,
/// so many that a crash, which uses up a twentieth, leaves half of them once in two seconds.
pub const REQUESTS: u32 = 500;
/// The window of the pace.
pub const WINDOW: Duration = Duration::from_secs(20);
/// The first of the delays after a failure.
pub const FIRST_DELAY: Duration = Duration::from_millis(500);
/// From the first attempt to the last, pauses apart.
pub const GIVE_UP_AFTER: Duration = Duration::from_secs(60);
/// No 2xx for so long pauses deliveries.
pub const PAUSE_AFTER: Duration = Duration::from_secs(20);

/// Of how many events a choosy receiver never takes one.
const CHOOSY: u64 = 41;

/// How an endpoint behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Temper {
    /// Takes everything at once.
    Well,
    /// Takes everything within 400 ms.
    Slow,
    /// Says yes after the deadline now and then.
    Late,
    /// Fails now and then, in various ways.
    Flaky,
    /// Fails for ten seconds of each 25.
    Waves,
    /// Never takes certain events.
    Choosy,
    /// Fails for 45 seconds of each 90, so that its webhook is paused.
    Down,
}

/// The endpoints: `/e0` and so on.
pub const ENDPOINTS: [Temper; 12] = [
    Temper::Well,
    Temper::Slow,
    Temper::Flaky,
    Temper::Waves,
    Temper::Well,
    Temper::Late,
    Temper::Choosy,
    Temper::Down,
    Temper::Flaky,
    Temper::Well,
    Temper::Slow,
    Temper::Waves,
];

/// The workspaces.
pub const WORKSPACES: [&str; 5] = ["ws_a", "ws_b", "ws_c", "ws_d", "ws_e"];

/// The types of events.
pub const KINDS: [&str; 4] = ["plan.changed", "session.started", "tenant.created", "user.deleted"];

/// Webhooks: the workspace, the endpoint, and the types that it is told of, by their places. A type
/// goes to one endpoint, to three, or to none; one endpoint has webhooks of two workspaces.
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

/// What a receiver does with a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conduct {
    /// How long it takes.
    pub after: Duration,
    /// The status that it answers with; none where it closes the connection instead.
    pub status: Option<u16>,
}

impl Conduct {
    /// Well, at once.
    pub const WELL: Self = Self { after: Duration::ZERO, status: Some(200) };

    fn at_once(status: u16) -> Self {
        Self { status: Some(status), ..Self::WELL }
    }
}

impl Temper {
    /// Whether it takes nothing, so long after the beginning.
    pub fn is_out(self, since: Duration) -> bool {
        match self {
            Self::Waves => since.as_secs() % 25 >= 15,
            Self::Down => since.as_secs() % 90 >= 45,
            _ => false,
        }
    }

    /// What it does with one delivery; `number` is the event's.
    pub fn conduct(self, since: Duration, number: u64, rng: &mut SeededRng) -> Conduct {
        match self {
            Self::Slow => Conduct { after: rng.millis(20, 400), status: Some(204) },
            Self::Late if rng.chance(4) => {
                Conduct { after: rng.millis(1_300, 1_800), status: Some(200) }
            }
            Self::Flaky => match rng.below(100) {
                0..8 => Conduct::at_once(*rng.pick(&[500, 503, 404, 302]).unwrap()),
                8..11 => Conduct { status: None, ..Conduct::WELL },
                11 => Conduct { after: Duration::from_secs(2), status: None },
                _ => Conduct::WELL,
            },
            Self::Waves | Self::Down if self.is_out(since) => Conduct::at_once(503),
            Self::Choosy if number.is_multiple_of(CHOOSY) => Conduct::at_once(422),
            _ => Conduct::WELL,
        }
    }
}
