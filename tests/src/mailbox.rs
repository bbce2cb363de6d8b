//! A real SMTP server (aiosmtpd) that keeps every mail it accepts.

use serde_json::Value;

use crate::process::Process;
use crate::{real, wait};

/// An SMTP server on a free port.
#[derive(Debug)]
pub struct Mailbox {
    process: Process,
    port: u64,
}

impl Mailbox {
    /// A server that accepts every mail.
    #[track_caller]
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// A server with flags: `--auth USER:PASSWORD` requires this login; `--tls CERTIFICATE KEY`
    /// offers STARTTLS and requires it; `--refuse TIMES` defers the first mails with a 451.
    #[track_caller]
    pub fn start_with(flags: &[&str]) -> Self {
        let mut command = real::python("tests/real/mailbox.py");
        let process = Process::spawn("the SMTP server", command.args(flags));
        let line = process.stdout().wait("where it listens", |line| line["port"].is_u64());
        let port = line["port"].as_u64().unwrap();
        Self { process, port }
    }

    /// Its address, as `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The mails so far: `{from, to, headers, text, tls, user}`.
    pub fn mails(&self) -> Vec<Value> {
        let lines = self.process.stdout().json().into_iter();
        lines.filter(|line| line["to"].is_array()).collect()
    }

    /// How often a mail was deferred.
    pub fn refused(&self) -> usize {
        self.process.stdout().json().iter().filter(|line| line["refused"] == true).count()
    }

    /// Waits until there are at least `count` mails.
    #[track_caller]
    pub fn wait(&self, count: usize) -> Vec<Value> {
        wait::within(wait::PATIENCE, || Some(self.mails()).filter(|mails| mails.len() >= count))
            .unwrap_or_else(|| panic!("timed out for {count} mails: {:#?}", self.mails()))
    }
}
