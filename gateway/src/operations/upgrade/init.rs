//! Process 1 of a container, whose end is the end of all the others: it stays where another
//! process has taken its place, and stands for that.
//!
//! # Invariants
//!
//! 1. A signal that it is sent reaches the process that serves, however often that has changed.
//! 2. It ends when that one has ended without a successor, and it reaps every child.
//!
//! # Not here
//!
//! Taking a place (`upgrade::predecessor`), what follows from how the other ended (`app`).

use std::fs;
use std::io;

use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, wait};
use tokio::signal::unix::{self, SignalKind, signal};

/// Process 1, and what it may be told.
pub struct First {
    children: unix::Signal,
    terminate: unix::Signal,
    interrupt: unix::Signal,
    hang_up: unix::Signal,
    upgrade: unix::Signal,
}

impl First {
    /// This process, where it is the first.
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

    /// Stays until the process that serves is gone and has no successor. Says how it ended: its
    /// exit code, or 128 and the signal.
    pub async fn stand_for(mut self, mut serving: Pid) -> i32 {
        loop {
            while let Ok(Some((child, status))) = wait(WaitOptions::NOHANG) {
                if child != serving {
                    continue;
                }
                match heir() {
                    Some(heir) => serving = heir,
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
            // An error says that it has just ended, of which we hear next.
            let _ = kill_process(serving, signal);
        }
    }
}

/// The process of our program that has become our child: the system gives us those whose parent
/// has ended, and the one whose place was taken has ended when its successor serves.
fn heir() -> Option<Pid> {
    let (own, _) = name_and_parent("self")?;
    let processes = fs::read_dir("/proc").ok()?;
    processes.flatten().find_map(|entry| {
        let process = entry.file_name().into_string().ok()?;
        let pid = Pid::from_raw(process.parse().ok()?)?;
        let (name, parent) = name_and_parent(&process)?;
        (name == own && parent == "1").then_some(pid)
    })
}

/// Of `/proc/…/stat`, whose second field is the name of the program and whose fourth the parent.
fn name_and_parent(process: &str) -> Option<(String, String)> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let (before, after) = stat.rsplit_once(") ")?;
    let (_, name) = before.split_once('(')?;
    Some((name.to_owned(), after.split(' ').nth(1)?.to_owned()))
}
