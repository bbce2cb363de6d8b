//! Injects faults into the dispatcher, chosen by a seed.

use std::time::Duration;

use super::victim::Victim;
use super::wall_clock::WallClock;
use crate::rng::SeededRng;
use crate::wait::{self, Deadline};

/// How often a full disk is filled up: files that become shorter free space.
const TOP_UP_EVERY: Duration = Duration::from_millis(50);

/// The kind of faults of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// `kill -9` at random instants.
    Kill,
    /// The process is suspended, and continued or killed.
    Stop,
    /// The disk is full.
    Full,
    /// Every write fails with EFBIG.
    Refuse,
    /// The wall clock is set.
    Clock,
}

impl Part {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Kill, Self::Stop, Self::Full, Self::Refuse, Self::Clock];

    /// Its name, as in command lines and folder names.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Stop => "stop",
            Self::Full => "full",
            Self::Refuse => "refuse",
            Self::Clock => "clock",
        }
    }

    /// The shortest and the longest pause before a fault, in milliseconds.
    fn rest_ms(self) -> (u64, u64) {
        match self {
            Self::Kill => (100, 12_000),
            _ => (300, 8_000),
        }
    }
}

/// Upper bounds of the random times and sizes.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// How long a process is suspended, in milliseconds.
    pub stop_ms: u64,
    /// How long a disk is full, in milliseconds.
    pub full_ms: u64,
    /// The pause before a fault, in milliseconds.
    pub rest_ms: u64,
    /// Events of the largest calls: above an endpoint's rate limit in a long run, below it in a
    /// short one.
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
    /// The kind of faults.
    pub part: Part,
    /// The bounds of their lengths.
    pub scale: Scale,
    /// The source of all random choices.
    pub rng: SeededRng,
    /// The process under test.
    pub victim: &'a mut Victim,
    /// The clock that is set, in a run of [`Part::Clock`].
    pub clock: Option<&'a WallClock>,
}

impl FaultInjector<'_> {
    /// Waits, and injects one fault. The process under test runs again afterwards.
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

    fn relaunch(&mut self) {
        wait::pass(self.rng.millis(1, 300));
        self.victim.launch();
    }

    fn kill(&mut self) {
        self.victim.kill();
        self.relaunch();
        self.victim.wait_ready();
    }

    /// Kills right after a 202: the acknowledged events must be on disk.
    fn kill_at_answer(&mut self) {
        self.victim.kill_at_answer();
        self.relaunch();
        self.victim.wait_ready();
    }

    fn kill_twice(&mut self) {
        self.victim.kill();
        self.relaunch();
        self.victim.wait_ready();
        wait::pass(self.rng.millis(1, 200));
        self.kill();
    }

    /// Kills a starting process, one to three times.
    fn kill_at_start(&mut self) {
        self.victim.kill();
        for _ in 0..=self.rng.below(3) {
            self.victim.launch();
            wait::pass(self.rng.millis(1, 60));
            self.victim.kill();
        }
        self.relaunch();
        self.victim.wait_ready();
    }

    fn orderly(&mut self) {
        self.victim.stop_in_order();
        self.relaunch();
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
        self.relaunch();
        self.victim.wait_ready();
    }

    fn full(&mut self) {
        self.victim.fill();
        self.pass_full();
        self.victim.expect_alive();
        self.victim.make_room();
    }

    /// Kills while the disk is full, and starts before there is space: that start may fail.
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

    /// Sets the clock ahead or back, by a second to two days, or to the real time.
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
