//! The dispatcher that is killed, stopped, starved and started again, always at the same addresses
//! and on the same database. What is done to it is in the history from before it happens.
//!
//! Invariant: whatever was started is ended when its owner is dropped.

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

/// Whose token may do everything.
pub const TOKEN: &str = "hidden-token-of-everybody";

/// How long a start may take, whatever else the machine does.
const START_MAX: Duration = Duration::from_secs(60);

/// How long a stop in order may take: what is in flight, and then some.
const STOP_MAX: Duration = Duration::from_secs(30);

/// How long an answer is waited for to kill at.
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

/// The process, while there is one.
#[derive(Debug)]
pub struct Victim {
    program: PathBuf,
    folder: PathBuf,
    environment: Vec<(&'static str, String)>,
    /// What happens to it.
    pub history: Arc<History>,
    /// Where it listens.
    pub addresses: Addresses,
    /// What its database lies on.
    pub disk: Disk,
    child: Option<Child>,
}

/// An address of this machine that no connections come from, so that a port stays free while
/// no process listens on it.
fn address() -> String {
    let listener = TcpListener::bind("127.88.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

impl Victim {
    /// Writes its files; starts nothing yet.
    pub fn new(
        program: &Path,
        folder: &Path,
        disk: Disk,
        clock: Option<&WallClock>,
        history: &Arc<History>,
    ) -> Self {
        // So short that much is dropped while it goes on; where days pass at once, nothing may be.
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

    /// Starts it, and waits for nothing.
    pub fn launch(&mut self) {
        let mut command = self.disk.command(&self.program);
        command.args(["run", "--config", CONFIG]).current_dir(&self.folder);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        self.history.note(format_args!("start {}", child.id()));
        keep(child.stdout.take().unwrap(), &self.folder.join("attempts.log"));
        keep(child.stderr.take().unwrap(), &self.folder.join("dispatcher.log"));
        self.child = Some(child);
    }

    /// Starts it, and waits until backends can call; again where it does not come up because its
    /// disk is full. False where it is never there: that is a violation.
    pub fn start(&mut self) -> bool {
        self.launch();
        self.wait_ready()
    }

    /// Waits until backends can call. A process that a full disk ended is started again.
    pub fn wait_ready(&mut self) -> bool {
        let deadline = wait::Deadline::after(START_MAX);
        let ingest = self.addresses.ingest.clone();
        while deadline.left().is_some() {
            if TcpStream::connect(&ingest).is_ok() {
                return true;
            }
            if self.has_ended() {
                if !self.disk.is_full() && !self.disk.was_full() {
                    self.history
                        .violation("a start came to nothing; see dispatcher.log".to_owned());
                    return false;
                }
                self.history.state().failed_starts += 1;
                wait::pass(Duration::from_millis(100));
                self.launch();
            }
            wait::pass(Duration::from_millis(5));
        }
        self.history.violation(format!("not ready within {START_MAX:?}"));
        false
    }

    /// Whether there is no process, or it has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        let Some(child) = &mut self.child else { return true };
        let Some(status) = child.try_wait().unwrap() else { return false };
        let now = self.history.now();
        self.history.note(format_args!("ended by itself: {status}"));
        self.history.state().ends.push(Span { from: now, to: now });
        self.child = None;
        true
    }

    /// Looks whether it still runs; that it does not is a violation, and it is started again.
    pub fn expect_alive(&mut self) {
        if self.has_ended() {
            self.history.violation("the process ended by itself; see dispatcher.log".to_owned());
            self.start();
        }
    }

    /// `kill -9` as soon as a backend has its 202.
    pub fn kill_at_answer(&mut self) {
        self.history.listen(ANSWER_MAX);
        self.kill();
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        let from = self.history.now();
        child.kill().unwrap();
        child.wait().unwrap();
        let to = self.history.now();
        self.history.note(format_args!("killed {}", child.id()));
        self.history.state().ends.push(Span { from, to });
    }

    /// SIGTERM, and waits for the end, which must be a good one.
    pub fn stop_in_order(&mut self) {
        let from = self.history.now();
        self.signal("TERM");
        let Some(mut child) = self.child.take() else { return };
        let exit = wait::within(STOP_MAX, || child.try_wait().unwrap());
        let to = self.history.now();
        self.history.note(format_args!("stopped {} with {exit:?}", child.id()));
        if exit.is_some_and(|exit| exit.success()) {
            self.history.state().orderly.push(Span { from, to });
            return;
        }
        self.history.violation(format!("a stop in order ended with {exit:?}"));
        let _ = child.kill();
        let _ = child.wait();
        self.history.state().ends.push(Span { from, to: self.history.now() });
    }

    /// SIGSTOP: it stands still from now on.
    pub fn freeze(&mut self) {
        let span = Span { from: self.history.now(), to: u64::MAX };
        self.history.state().stops.push(span);
        self.signal("STOP");
        self.history.note(format_args!("frozen"));
    }

    /// SIGCONT: it goes on.
    pub fn thaw(&mut self) {
        self.signal("CONT");
        self.thawed();
        self.history.note(format_args!("thawed"));
    }

    /// It no longer stands still, because it is no more.
    pub fn thawed(&mut self) {
        let now = self.history.now();
        if let Some(span) = self.history.state().stops.last_mut() {
            span.to = span.to.min(now);
        }
    }

    /// Its wall clock was set, to so many seconds ahead.
    pub fn clock_was_set(&self, ahead: i64) {
        let now = self.history.now();
        self.history.note(format_args!("clock {ahead:+}"));
        self.history.state().sets.push((now, ahead));
    }

    /// Its disk has no room from now on.
    pub fn fill(&mut self) {
        let span = Span { from: self.history.now(), to: u64::MAX };
        self.history.state().fulls.push(span);
        self.disk.fill(self.child.as_ref().map(Child::id));
        let now = self.history.now();
        self.history.state().no_room_since = Some(now);
        self.history.note(format_args!("full"));
    }

    /// Its disk has room again.
    pub fn make_room(&mut self) {
        self.history.state().no_room_since = None;
        self.disk.make_room(self.child.as_ref().map(Child::id));
        let now = self.history.now();
        if let Some(span) = self.history.state().fulls.last_mut() {
            span.to = span.to.min(now);
        }
        self.history.note(format_args!("room"));
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

/// Appends what a stream says to a file, until it ends.
fn keep(mut stream: impl io::Read + Send + 'static, path: &Path) {
    let mut file = OpenOptions::new().create(true).append(true).open(path).unwrap();
    let keeper = Builder::new().name("a log".to_owned());
    keeper.spawn(move || io::copy(&mut stream, &mut file)).unwrap();
}
