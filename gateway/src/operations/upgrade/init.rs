//! Process 1 of a container: when it exits, the kernel kills all others. So after an upgrade it
//! stays, and represents the process that serves.
//!
//! # Invariants
//!
//! 1. A signal to process 1 reaches the process that serves, after any number of upgrades.
//! 2. It ends when that process has ended without a successor, and it reaps every child.
//!
//! # Not here
//!
//! Taking over (`upgrade::new_process`), what follows from the exit code (`app`).

use std::fs;
use std::io;

use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, wait};
use tokio::signal::unix::{self, SignalKind, signal};

/// Process 1, and the signals that it forwards.
pub struct First {
    children: unix::Signal,
    terminate: unix::Signal,
    interrupt: unix::Signal,
    hang_up: unix::Signal,
    upgrade: unix::Signal,
}

impl First {
    /// This process, if it is process 1.
    pub fn new() -> io::Result<Option<Self>> {
        if getpid() != Pid::INIT {
            return Ok(None);
        }
        Ok(Some(Self {
            children: signal(SignalKind::child())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
            upgrade: signal(SignalKind::user_defined2())?,
        }))
    }

    /// Waits until the process that serves has ended without a successor. Returns its exit code, or
    /// 128 plus the signal that ended it.
    pub async fn supervise(mut self, mut serving: Pid) -> i32 {
        loop {
            while let Ok(Some((child, status))) = wait(WaitOptions::NOHANG) {
                if child != serving {
                    continue;
                }
                match find_successor() {
                    Some(successor) => serving = successor,
                    None => {
                        let by_signal = status.terminating_signal().map_or(0, |nth| 128 + nth);
                        return status.exit_status().unwrap_or(by_signal);
                    }
                }
            }
            let signal = tokio::select! {
                _ = self.children.recv() => continue,
                _ = self.terminate.recv() => Signal::TERM,
                _ = self.interrupt.recv() => Signal::INT,
                _ = self.hang_up.recv() => Signal::HUP,
                _ = self.upgrade.recv() => Signal::USR2,
            };
            // An error means that it has just ended; SIGCHLD follows.
            let _ = kill_process(serving, signal);
        }
    }
}

/// Finds the successor of a process that has ended: the child of process 1 with the same program
/// name. The kernel makes orphans children of process 1.
fn find_successor() -> Option<Pid> {
    let (own, _) = name_and_parent("self")?;
    let processes = fs::read_dir("/proc").ok()?;
    processes.flatten().find_map(|entry| {
        let process = entry.file_name().into_string().ok()?;
        let pid = Pid::from_raw(process.parse().ok()?)?;
        let (name, parent) = name_and_parent(&process)?;
        (name == own && parent == "1").then_some(pid)
    })
}

/// Reads `/proc/…/stat`: the second field is the name of the program, the fourth its parent.
fn name_and_parent(process: &str) -> Option<(String, String)> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let (before, after) = stat.rsplit_once(") ")?;
    let (_, name) = before.split_once('(')?;
    Some((name.to_owned(), after.split(' ').nth(1)?.to_owned()))
}
