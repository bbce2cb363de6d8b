//! The dispatcher under test, which is killed, suspended and restarted, always at the same
//! addresses and on the same database. A fault's time in the history starts before the fault.
//!
//! Invariant: dropping a [`Victim`] kills its process.

use std::fs::OpenOptions;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::thread::Builder;
use std::time::Duration;

use super::cast;
use super::disk::Disk;
use super::history::{History, Span};
use super::wall_clock::WallClock;
use crate::dispatcher::{CONFIG, DIRECTORY, TOKENS, config, entry};
use crate::process::signal;
use crate::wait;

/// A token with all scopes.
pub const TOKEN: &str = "hidden-token-of-everybody";

/// How long a start may take on a busy machine.
const START_MAX: Duration = Duration::from_secs(60);

/// How long a graceful stop may take: the shutdown grace of 10 s and a margin.
const STOP_MAX: Duration = Duration::from_secs(30);

/// How long [`Victim::kill_at_answer`] waits for a 202.
const ANSWER_MAX: Duration = Duration::from_secs(1);

/// Where the dispatcher listens.
#[derive(Clone, Debug)]
pub struct Addresses {
    /// For owners.
    pub api: String,
    /// For backends.
    pub ingest: String,
    /// For operators.
    pub admin: String,
}

/// The process, while it runs.
#[derive(Debug)]
pub struct Victim {
    program: PathBuf,
    folder: PathBuf,
    environment: Vec<(&'static str, String)>,
    /// Where its faults are recorded.
    pub history: Arc<History>,
    /// Where it listens.
    pub addresses: Addresses,
    /// The disk of its database.
    pub disk: Disk,
    child: Option<Child>,
}

/// A free port on a loopback address that no client connects from, so that no outgoing connection
/// takes the port while the dispatcher is down.
fn address() -> String {
    let listener = TcpListener::bind("127.88.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

impl Victim {
    /// Writes its files; does not start it yet.
    pub fn new(
        program: &Path,
        folder: &Path,
        disk: Disk,
        clock: Option<&WallClock>,
        history: &Arc<History>,
    ) -> Self {
        // So short that many deliveries expire during the run; with a clock that jumps by days,
        // none may.
        let retention = if clock.is_none() { "2m" } else { "365d" };
        let [api, ingest, admin] = [address(), address(), address()];
        let quoted = |path: PathBuf| format!("\"{}\"", path.display());
        let millis = |time: Duration| format!("\"{}ms\"", time.as_millis());
        let config = config()
            .with(
                "[server]",
                &format!(
                    "api = \"{api}\"\ningest = \"{ingest}\"\nadmin = \"{admin}\"\n\
                     shutdown_grace = \"10s\""
                ),
            )
            .with("[store]", &format!("path = {}", quoted(disk.folder().join("dispatcher.db"))))
            .with(
                "[egress]",
                &format!(
                    "deadline = {}\nrequests = {}\nwindow = {}",
                    millis(cast::DEADLINE),
                    cast::REQUESTS,
                    millis(cast::WINDOW)
                ),
            )
            .with(
                "[retry]",
                &format!(
                    "delays = [{}, \"1s\", \"2s\", \"4s\"]\ngive_up_after = {}",
                    millis(cast::FIRST_DELAY),
                    millis(cast::GIVE_UP_AFTER)
                ),
            )
            .with(
                "[health]",
                &format!("warn_for = \"5s\"\npause_after = {}", millis(cast::PAUSE_AFTER)),
            )
            .with("[webhooks]", "checks_per_minute = 6000")
            .with("[retention]", &format!("delivered = \"{retention}\""));
        let scopes = r#"["webhooks:read", "webhooks:write", "events:write"]"#;
        let files = [
            (CONFIG, config.to_string()),
            (DIRECTORY, crate::config::DIRECTORY.to_owned()),
            (TOKENS, entry("everybody", TOKEN, "*", scopes)),
        ];
        for (name, text) in files {
            std::fs::write(folder.join(name), text).unwrap();
        }
        Self {
            program: program.to_owned(),
            folder: folder.to_owned(),
            environment: clock.map(WallClock::environment).unwrap_or_default(),
            history: Arc::clone(history),
            addresses: Addresses { api, ingest, admin },
            disk,
            child: None,
        }
    }

    /// Starts it without waiting.
    pub fn launch(&mut self) {
        let mut command = self.disk.command(&self.program);
        command.args(["run", "--config", CONFIG]).current_dir(&self.folder);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        self.history.note(format_args!("process {} starts", child.id()));
        keep(child.stdout.take().unwrap(), &self.folder.join("attempts.log"));
        keep(child.stderr.take().unwrap(), &self.folder.join("dispatcher.log"));
        self.child = Some(child);
    }

    /// Starts it, and waits as [`Self::wait_ready`] does.
    pub fn start(&mut self) -> bool {
        self.launch();
        self.wait_ready()
    }

    /// Waits until it listens for backends. If it ends because of a full disk, it is started again.
    /// False, and a violation, if it never listens.
    pub fn wait_ready(&mut self) -> bool {
        let deadline = wait::Deadline::after(START_MAX);
        let ingest = self.addresses.ingest.clone();
        while deadline.left().is_some() {
            if TcpStream::connect(&ingest).is_ok() {
                return true;
            }
            if self.has_ended() {
                if !self.disk.is_full() && !self.disk.was_full() {
                    self.history.violation("a start fails; see dispatcher.log".to_owned());
                    return false;
                }
                self.history.state().failed_starts += 1;
                wait::pass(Duration::from_millis(100));
                self.launch();
            }
            wait::pass(Duration::from_millis(5));
        }
        self.history.violation(format!("the process is not ready within {START_MAX:?}"));
        false
    }

    /// Whether no process runs; records one that has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        let Some(child) = &mut self.child else { return true };
        let Some(status) = child.try_wait().unwrap() else { return false };
        let now = self.history.now();
        self.history.note(format_args!("the process exits by itself: {status}"));
        self.history.state().ends.push(Span { from: now, to: now });
        self.child = None;
        true
    }

    /// Checks that it still runs; otherwise records a violation and starts it again.
    pub fn expect_alive(&mut self) {
        if self.has_ended() {
            self.history.violation("the process exits by itself; see dispatcher.log".to_owned());
            self.start();
        }
    }

    /// `kill -9` as soon as a backend has its 202.
    pub fn kill_at_answer(&mut self) {
        self.history.wait_for_202(ANSWER_MAX);
        self.kill();
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        let from = self.history.now();
        child.kill().unwrap();
        child.wait().unwrap();
        let to = self.history.now();
        self.history.note(format_args!("process {} is killed", child.id()));
        self.history.state().ends.push(Span { from, to });
    }

    /// SIGTERM; waits for the exit, which must be successful.
    pub fn stop_in_order(&mut self) {
        let from = self.history.now();
        self.signal("TERM");
        let Some(mut child) = self.child.take() else { return };
        let exit = wait::within(STOP_MAX, || child.try_wait().unwrap());
        let to = self.history.now();
        self.history.note(format_args!("process {} after SIGTERM: {exit:?}", child.id()));
        if exit.is_some_and(|exit| exit.success()) {
            self.history.state().orderly.push(Span { from, to });
            return;
        }
        self.history.violation(format!("graceful stop: expected exit code 0, found {exit:?}"));
        let _ = child.kill();
        let _ = child.wait();
        self.history.state().ends.push(Span { from, to: self.history.now() });
    }

    /// SIGSTOP: suspends it.
    pub fn freeze(&mut self) {
        let span = Span { from: self.history.now(), to: u64::MAX };
        self.history.state().stops.push(span);
        self.signal("STOP");
        self.history.note(format_args!("the process is suspended"));
    }

    /// SIGCONT: continues it.
    pub fn thaw(&mut self) {
        self.signal("CONT");
        self.thawed();
        self.history.note(format_args!("the process continues"));
    }

    /// Records the end of a suspension; call it also after a kill.
    pub fn thawed(&mut self) {
        let now = self.history.now();
        if let Some(span) = self.history.state().stops.last_mut() {
            span.to = span.to.min(now);
        }
    }

    /// Records that its wall clock was set to `ahead` seconds ahead of the real time.
    pub fn clock_was_set(&self, ahead: i64) {
        let now = self.history.now();
        self.history.note(format_args!("wall clock {ahead:+} s"));
        self.history.state().sets.push((now, ahead));
    }

    /// Fills its disk.
    pub fn fill(&mut self) {
        let span = Span { from: self.history.now(), to: u64::MAX };
        self.history.state().fulls.push(span);
        self.disk.fill(self.child.as_ref().map(Child::id));
        let now = self.history.now();
        self.history.state().no_room_since = Some(now);
        self.history.note(format_args!("the disk is full"));
    }

    /// Frees its disk again.
    pub fn make_room(&mut self) {
        self.history.state().no_room_since = None;
        self.disk.make_room(self.child.as_ref().map(Child::id));
        let now = self.history.now();
        if let Some(span) = self.history.state().fulls.last_mut() {
            span.to = span.to.min(now);
        }
        self.history.note(format_args!("the disk has space"));
    }

    fn signal(&self, name: &str) {
        if let Some(child) = &self.child {
            signal(child.id(), name);
        }
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Appends a stream to a file until the stream ends.
fn keep(mut stream: impl io::Read + Send + 'static, path: &Path) {
    let mut file = OpenOptions::new().create(true).append(true).open(path).unwrap();
    let keeper = Builder::new().name("a log".to_owned());
    keeper.spawn(move || io::copy(&mut stream, &mut file)).unwrap();
}
