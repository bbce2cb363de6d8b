//! Processes under measurement, and the folders of their files.
//!
//! Invariant: every started process is killed when its [`Process`] is dropped and when a
//! measurement fails; [`Process::stop`] ends one in order. A [`Folder`] is removed when it is
//! dropped; after a failure it stays, for its logs.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use weir_common::time::Clock;

use crate::flags::fail;

/// The timeout of a start, and of a response to [`get`].
const START: Duration = Duration::from_secs(60);
/// The timeout of a stop: longer than the gateway's `shutdown_grace`, which is 30 s.
const STOP: Duration = Duration::from_secs(45);
/// One tick of `/proc/PID/stat` in microseconds: `USER_HZ` is 100 on every Linux we run on.
const TICK_MICROS: f64 = 10_000.0;

/// Without these tunables glibc copies with `rep movsb`, which callgrind counts byte by byte.
pub const PLAIN_COPIES: &str =
    "glibc.cpu.x86_rep_movsb_threshold=1000000000:glibc.cpu.x86_rep_stosb_threshold=1000000000";

/// A folder for configuration and logs, removed when dropped.
pub struct Folder {
    path: PathBuf,
    callgrind: bool,
}

impl Folder {
    /// Creates a folder, named for this process; ends the process if it cannot.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("weir-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap_or_else(|error| fail(&format!("{path:?}: {error}")));
        Self { path, callgrind: false }
    }

    /// Creates a folder whose processes run under callgrind, which counts their instructions.
    #[must_use]
    pub fn counting(name: &str) -> Self {
        let mut folder = Self::new(name);
        folder.callgrind = true;
        folder
    }

    /// The path of `name` in the folder.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Writes `text` into the file `name`, and returns its path.
    #[must_use]
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, text).unwrap_or_else(|error| fail(&format!("{path:?}: {error}")));
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// The identifiers of the running processes, for `end_all`.
static RUNNING: Mutex<Vec<u32>> = Mutex::new(Vec::new());

fn running() -> MutexGuard<'static, Vec<u32>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Kills every process that was started here: `fail` exits without dropping anything.
pub(crate) fn end_all() {
    for id in running().drain(..) {
        let _ = Command::new("kill").args(["-KILL", &id.to_string()]).status();
    }
}

/// A process under measurement.
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

/// What a process has used so far.
#[derive(Clone, Copy, Default)]
pub struct Usage {
    /// Microseconds in user space.
    pub user: f64,
    /// Microseconds in the kernel on its behalf.
    pub system: f64,
}

impl Process {
    /// Starts `program`; its output is written to files in `folder`.
    #[must_use]
    pub fn start(folder: &Folder, name: &str, program: &Path, args: &[&str]) -> Self {
        let file = |suffix: &str| {
            let path = folder.path(&format!("{name}.{suffix}"));
            File::create(&path).unwrap_or_else(|error| fail(&format!("{path:?}: {error}")))
        };
        let log = folder.path(&format!("{name}.err"));
        let mut command = Command::new(program);
        if folder.callgrind {
            command = Command::new("valgrind");
            let out = folder.path(&format!("{name}.callgrind"));
            command.args(["--tool=callgrind", "--instr-atstart=no"]);
            command.arg(format!("--callgrind-out-file={}", out.display()));
            command.arg(program).env("GLIBC_TUNABLES", PLAIN_COPIES);
        }
        let child = command
            .args(args)
            .stdin(Stdio::null())
            .stdout(file("out"))
            .stderr(file("err"))
            .spawn()
            .unwrap_or_else(|error| fail(&format!("{name}: cannot start {program:?}: {error}")));
        running().push(child.id());
        Self { name: name.to_owned(), child, log }
    }

    /// Waits until a connection to `address` succeeds.
    pub fn wait_for(&mut self, address: SocketAddr) {
        self.wait(|_| TcpStream::connect(address).is_ok().then_some(()));
    }

    /// Waits until `found` returns a value for the log's text, and returns that value.
    pub fn wait_for_line<T>(&mut self, found: impl Fn(&str) -> Option<T>) -> T {
        self.wait(|log| found(&fs::read_to_string(log).unwrap_or_default()))
    }

    fn wait<T>(&mut self, ready: impl Fn(&Path) -> Option<T>) -> T {
        let clock = Clock::system();
        let started = clock.now().tick;
        loop {
            if let Some(answer) = ready(&self.log) {
                return answer;
            }
            let ended = !matches!(self.child.try_wait(), Ok(None));
            if ended || clock.now().tick.since(started) > START {
                let why = if ended { "ended" } else { "is not ready" };
                let log = fs::read_to_string(&self.log).unwrap_or_default();
                fail(&format!("{} {why}:\n{log}", self.name));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Its process identifier.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The path of callgrind's `nth` dump.
    #[must_use]
    pub fn counts(&self, nth: u32) -> PathBuf {
        self.log.with_extension(format!("callgrind.{nth}"))
    }

    /// The CPU time used so far by all its threads.
    #[must_use]
    pub fn usage(&self) -> Usage {
        usage_of(&self.child.id().to_string()).unwrap_or_else(|| fail(&self.gone()))
    }

    /// The bytes written to disks on its behalf so far.
    #[must_use]
    pub fn written(&self) -> f64 {
        let path = format!("/proc/{}/io", self.child.id());
        let text = fs::read_to_string(path).unwrap_or_else(|_| fail(&self.gone()));
        let line = text.lines().find_map(|line| line.strip_prefix("write_bytes: "));
        line.and_then(|bytes| bytes.parse().ok()).unwrap_or(0.0)
    }

    /// Resident memory in MiB.
    #[must_use]
    pub fn resident_mib(&self) -> f64 {
        resident_kib(&self.child.id().to_string()) / 1024.0
    }

    /// The peak of its resident memory so far, in MiB.
    #[must_use]
    pub fn resident_most_mib(&self) -> f64 {
        status_kib(&self.child.id().to_string(), "VmHWM:") / 1024.0
    }

    /// Sends SIGTERM, and waits until the process has written what it writes at its end, and
    /// exited with 0.
    pub fn stop(mut self) {
        let id = self.child.id().to_string();
        if !Command::new("kill").args(["-TERM", &id]).status().is_ok_and(|done| done.success()) {
            fail(&self.gone());
        }
        let clock = Clock::system();
        let asked = clock.now().tick;
        loop {
            let ended = self.child.try_wait().unwrap_or_else(|_| fail(&self.gone()));
            if let Some(status) = ended {
                // Another process may have its identifier from now on.
                running().retain(|id| *id != self.child.id());
                if status.success() {
                    return;
                }
                fail(&format!("{} ended with {status} after SIGTERM", self.name));
            }
            if clock.now().tick.since(asked) > STOP {
                fail(&format!("{} still runs {STOP:?} after SIGTERM", self.name));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn gone(&self) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        format!("{} has gone:\n{log}", self.name)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        running().retain(|id| *id != self.child.id());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The CPU time that this process has used so far.
#[must_use]
pub fn own_usage() -> Usage {
    usage_of("self").unwrap_or_else(|| fail("/proc/self/stat cannot be read"))
}

fn usage_of(process: &str) -> Option<Usage> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name, the second field, may contain spaces; the fields after its bracket may not.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|text| text.parse::<f64>().ok());
    Some(Usage { user: ticks(11)? * TICK_MICROS, system: ticks(12)? * TICK_MICROS })
}

/// Resident memory in KiB of the process `pid`, or of `self`.
#[must_use]
pub fn resident_kib(pid: &str) -> f64 {
    status_kib(pid, "VmRSS:")
}

fn status_kib(pid: &str, name: &str) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0.0)
}

/// A loopback address that has no listener now.
#[must_use]
pub fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .unwrap_or_else(|error| fail(&format!("no free port: {error}")))
}

/// Sends one request on its own connection, and returns the whole response.
#[must_use]
pub fn get(address: SocketAddr, host: &str, path: &str) -> String {
    let head = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    let exchange = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(START))?;
        stream.write_all(head.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    exchange().unwrap_or_else(|error| fail(&format!("{address}: {error}")))
}
