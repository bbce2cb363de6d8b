//! What is done to the dispatcher, and when: faults from a seed.

use std::time::Duration;

use super::victim::Victim;
use super::wall_clock::WallClock;
use crate::rng::SeededRng;
use crate::wait::{self, Deadline};

/// A full disk is looked at so often: files that become shorter make room.
const TOP_UP_EVERY: Duration = Duration::from_millis(50);

/// What a run is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// `kill -9` at random instants, on the disk that there is.
    Kill,
    /// The process stands still, and goes on or is killed.
    Stop,
    /// The disk is full.
    Full,
    /// The disk refuses every write.
    Refuse,
    /// The wall clock is set.
    Clock,
}

impl Part {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Kill, Self::Stop, Self::Full, Self::Refuse, Self::Clock];

    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Stop => "stop",
            Self::Full => "full",
            Self::Refuse => "refuse",
            Self::Clock => "clock",
        }
    }

    /// How long nothing is done between two faults, at least and at most, in milliseconds.
    fn rest_ms(self) -> (u64, u64) {
        match self {
            Self::Kill => (100, 12_000),
            _ => (300, 8_000),
        }
    }
}

/// How much there is of everything, at most.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// How long a process stands still, in milliseconds.
    pub stop_ms: u64,
    /// How long a disk is full, in milliseconds.
    pub full_ms: u64,
    /// From one fault to the next, in milliseconds.
    pub rest_ms: u64,
    /// Events of the largest calls: more than an endpoint's pace, or none that takes long.
    pub burst: u64,
}

impl Scale {
    /// For a run of minutes and more.
    pub const HOURS: Self =
        Self { stop_ms: 15_000, full_ms: 10_000, rest_ms: u64::MAX, burst: 1_000 };
    /// For a run of seconds.
    pub const SECONDS: Self = Self { stop_ms: 2_500, full_ms: 1_500, rest_ms: 700, burst: 200 };
}

/// Injects faults.
pub struct FaultInjector<'a> {
    /// What it is about.
    pub part: Part,
    /// How long faults take.
    pub scale: Scale,
    /// What decides which.
    pub rng: SeededRng,
    /// The process that has them.
    pub victim: &'a mut Victim,
    /// The clock that is set.
    pub clock: Option<&'a WallClock>,
}

impl FaultInjector<'_> {
    /// Waits, and injects one fault. The victim is up again afterwards, or coming up.
    pub fn inject(&mut self) {
        let (least, most) = self.part.rest_ms();
        wait::pass(self.rng.millis(least, most.min(self.scale.rest_ms)));
        self.victim.expect_alive();
        let luck = self.rng.below(100);
        match self.part {
            Part::Kill => match luck {
                0..30 => self.kill(),
                30..60 => self.kill_at_answer(),
                60..75 => self.kill_twice(),
                75..90 => self.kill_at_start(),
                _ => self.orderly(),
            },
            Part::Stop => match luck {
                0..55 => self.freeze(),
                55..75 => self.kill_frozen(),
                75..90 => self.kill(),
                _ => self.orderly(),
            },
            Part::Full | Part::Refuse => match luck {
                0..45 => self.full(),
                45..75 => self.kill_full(),
                75..90 => self.kill(),
                _ => self.orderly(),
            },
            Part::Clock => match luck {
                0..60 => self.set_clock(),
                60..75 => self.kill(),
                75..90 => self.orderly(),
                _ => self.freeze(),
            },
        }
    }

    fn rise(&mut self) {
        wait::pass(self.rng.millis(1, 300));
        self.victim.launch();
    }

    fn kill(&mut self) {
        self.victim.kill();
        self.rise();
        self.victim.wait_ready();
    }

    /// What is acknowledged must be on disk by then.
    fn kill_at_answer(&mut self) {
        self.victim.kill_at_answer();
        self.rise();
        self.victim.wait_ready();
    }

    fn kill_twice(&mut self) {
        self.victim.kill();
        self.rise();
        self.victim.wait_ready();
        wait::pass(self.rng.millis(1, 200));
        self.kill();
    }

    /// Killed before it is up, once or more often.
    fn kill_at_start(&mut self) {
        self.victim.kill();
        for _ in 0..=self.rng.below(3) {
            self.victim.launch();
            wait::pass(self.rng.millis(1, 60));
            self.victim.kill();
        }
        self.rise();
        self.victim.wait_ready();
    }

    fn orderly(&mut self) {
        self.victim.stop_in_order();
        self.rise();
        self.victim.wait_ready();
    }

    fn freeze(&mut self) {
        self.victim.freeze();
        wait::pass(self.rng.millis(100, self.scale.stop_ms));
        self.victim.thaw();
    }

    fn kill_frozen(&mut self) {
        self.victim.freeze();
        wait::pass(self.rng.millis(100, self.scale.stop_ms));
        self.victim.kill();
        self.victim.thawed();
        self.rise();
        self.victim.wait_ready();
    }

    fn full(&mut self) {
        self.victim.fill();
        self.pass_full();
        self.victim.expect_alive();
        self.victim.make_room();
    }

    /// Killed while its disk is full, and started before there is room: it need not come up then.
    fn kill_full(&mut self) {
        self.victim.fill();
        self.pass_full();
        self.victim.expect_alive();
        self.victim.kill();
        self.victim.launch();
        self.pass_full();
        self.victim.make_room();
        self.victim.wait_ready();
    }

    fn pass_full(&mut self) {
        let deadline = Deadline::after(self.rng.millis(200, self.scale.full_ms));
        while let Some(left) = deadline.left() {
            wait::pass(left.min(TOP_UP_EVERY));
            self.victim.disk.top_up();
        }
    }

    /// Minutes to days, either way, or back to the time that it is.
    fn set_clock(&mut self) {
        let Some(clock) = self.clock else { return };
        let far = self.rng.millis(1_000, 2 * 86_400 * 1_000).as_secs() as i64;
        let offset = match self.rng.below(5) {
            0 => 0,
            1 | 2 => far,
            _ => -far,
        };
        clock.set(offset);
        self.victim.clock_was_set(offset);
    }
}
