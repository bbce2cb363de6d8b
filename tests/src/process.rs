//! Runs a real program as an operator does: files, flags, signals, exit codes, and its output.

use std::env;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::folder::Folder;
use crate::lines::Lines;
use crate::wait;

/// A running program; killed on drop.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    stdout: Lines,
    stderr: Lines,
}

impl Process {
    /// Starts one of our programs in `folder`.
    #[track_caller]
    pub fn start(name: &str, folder: &Folder, arguments: &[&str]) -> Self {
        Self::start_with(&[], name, folder, arguments)
    }

    /// Starts one of our programs in `folder`, with these environment variables.
    #[track_caller]
    pub fn start_with(
        environment: &[(&'static str, String)],
        name: &str,
        folder: &Folder,
        arguments: &[&str],
    ) -> Self {
        let mut command = Command::new(program(name));
        command.envs(environment.iter().map(|(name, value)| (name, value)));
        Self::spawn(name, command.args(arguments).current_dir(folder.root()))
    }

    /// Starts any program, without input.
    #[track_caller]
    pub fn spawn(name: &str, command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{name} does not start: {error}"));
        let stdout = Lines::of(child.stdout.take().unwrap());
        let stderr = Lines::of(child.stderr.take().unwrap());
        Self { name: name.to_owned(), child, stdout, stderr }
    }

    /// The address of the listener with this name, from the program's log.
    #[track_caller]
    pub fn listening(&self, listener: &str) -> String {
        let what = format!("where {listener} listens");
        let line = self
            .stderr
            .wait(&what, |line| line["message"] == "listening" && line["listener"] == listener);
        line["address"].as_str().unwrap().to_owned()
    }

    /// Sends a signal by its name, such as `TERM`.
    pub fn signal(&self, name: &str) {
        assert!(signal(self.child.id(), name), "kill -s {name} {}", self.child.id());
    }

    /// Kills it, and waits until it has ended.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits until the process has ended; `None` if a signal ended it.
    #[track_caller]
    pub fn wait_for_exit(&mut self) -> Option<i32> {
        self.wait_for_exit_within(wait::PATIENCE)
    }

    /// The same, with a longer timeout for a slow program.
    #[track_caller]
    pub fn wait_for_exit_within(&mut self, patience: Duration) -> Option<i32> {
        let exit = wait::within(patience, || self.child.try_wait().unwrap());
        let exit =
            exit.unwrap_or_else(|| panic!("{} does not end:\n{}", self.name, self.stderr.text()));
        exit.code()
    }

    /// Its exit code, if it has ended; -1 if a signal ended it.
    pub fn try_wait(&mut self) -> Option<i32> {
        let exit = self.child.try_wait().unwrap();
        exit.map(|exit| exit.code().unwrap_or(-1))
    }

    /// The lines of its standard output.
    pub fn stdout(&self) -> &Lines {
        &self.stdout
    }

    /// The lines of its standard error.
    pub fn stderr(&self) -> &Lines {
        &self.stderr
    }

    /// Its id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its resident memory, in bytes.
    pub fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let kib: u64 = line.trim().trim_end_matches(" kB").trim().parse().unwrap();
        kib * 1024
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- log of {}:\n{}", self.name, self.stderr.text());
        }
    }
}

/// Sends a signal by its name to any process; false if there is no such process.
pub fn signal(id: u32, name: &str) -> bool {
    let mut kill = Command::new("kill");
    kill.args(["-s", name, &id.to_string()]).stderr(Stdio::null()).status().unwrap().success()
}

/// The result of a command that has ended.
#[derive(Debug)]
pub struct Finished {
    /// Its exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl Finished {
    /// Checks the exit code.
    #[track_caller]
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "stdout:\n{}\nstderr:\n{}", self.stdout, self.stderr);
        self
    }

    /// Its whole output.
    pub fn output(&self) -> String {
        format!("{}\n{}", self.stdout, self.stderr)
    }
}

/// Runs one of our programs with `arguments` in `folder` to its end.
#[track_caller]
pub fn run(name: &str, folder: &Folder, arguments: &[&str]) -> Finished {
    finish(Process::start(name, folder, arguments))
}

/// Waits for the end of a process, and returns its exit code and output.
#[track_caller]
pub fn finish(process: Process) -> Finished {
    finish_within(wait::PATIENCE, process)
}

/// The same, with a longer timeout for a slow program.
#[track_caller]
pub fn finish_within(patience: Duration, mut process: Process) -> Finished {
    let code = process.wait_for_exit_within(patience);
    Finished { code, stdout: process.stdout.to_end(), stderr: process.stderr.to_end() }
}

/// The path of a program under test: the value of `WEIR_GATEWAY_BIN` and the like, or beside the
/// test or bench that runs it.
#[track_caller]
pub fn program(name: &str) -> PathBuf {
    let variable = format!("{}_BIN", name.to_uppercase().replace('-', "_"));
    if let Some(path) = env::var_os(&variable) {
        return path.into();
    }
    let own = env::current_exe().unwrap();
    // A test binary is one folder below the programs.
    let mut folders = own.ancestors().skip(1).take(2).map(|folder| folder.join(name));
    let found = folders.find(|path| path.exists());
    found.unwrap_or_else(|| {
        let own = own.display();
        panic!("{name} is not beside {own}: run `cargo build -p {name}` or set {variable}")
    })
}
