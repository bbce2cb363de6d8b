//! A serving gateway as an operator runs it: its files, its listeners, its signals.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::client::Client;
use crate::folder::Folder;
use crate::lines::Lines;
use crate::process::{self, Finished, Process, program};
use crate::request::Request;
use crate::response::Response;
use crate::wait;

/// The program.
const PROGRAM: &str = "weir-gateway";
/// The configuration's name in the folder of a gateway.
pub const CONFIG: &str = "gateway.toml";
/// The directory's name in the folder of a gateway.
pub const DIRECTORY: &str = "directory.toml";

/// A gateway that serves.
#[derive(Debug)]
pub struct Gateway {
    process: Process,
    folder: Folder,
    http: String,
    admin: String,
}

impl Gateway {
    /// Starts a gateway and waits until it is ready.
    #[track_caller]
    pub fn start(config: &str, directory: &str) -> Self {
        Self::start_in(Folder::new(), config, directory)
    }

    /// Starts a gateway in a folder that may contain an earlier one's files.
    #[track_caller]
    pub fn start_in(folder: Folder, config: &str, directory: &str) -> Self {
        Self::start_as(&program(PROGRAM), &[], folder, config, directory)
    }

    /// Starts a gateway by any path, with these environment variables.
    #[track_caller]
    pub fn start_as(
        program: &Path,
        environment: &[(&str, &str)],
        folder: Folder,
        config: &str,
        directory: &str,
    ) -> Self {
        folder.write(CONFIG, config);
        folder.write(DIRECTORY, directory);
        let mut command = Command::new(program);
        command.args(["run", "--config", CONFIG]).current_dir(folder.root());
        let process = Process::spawn(PROGRAM, command.envs(environment.iter().copied()));
        let [http, admin] = ["http", "admin"].map(|listener| process.listening(listener));
        let gateway = Self { process, folder, http, admin };
        wait::until("the gateway to be ready", || {
            let ready = Client::try_connect(&gateway.admin).ok()?.get("/readyz");
            (ready.status == 200).then_some(())
        });
        gateway
    }

    /// The address for clients.
    pub fn http(&self) -> &str {
        &self.http
    }

    /// The address for clients over TLS.
    #[track_caller]
    pub fn https(&self) -> String {
        self.process.listening("https")
    }

    /// The value of a metric, named with its labels as they are printed; 0 if it is not printed
    /// yet.
    #[track_caller]
    pub fn metric(&self, name: &str) -> f64 {
        let text = self.call_admin(&Request::get("/metrics")).expect(200).body;
        let text = String::from_utf8(text).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.map_or(0.0, |value| value.parse().unwrap())
    }

    /// Its resident memory, in bytes.
    pub fn resident_bytes(&self) -> u64 {
        self.process.resident_bytes()
    }

    /// The address of the admin listener.
    pub fn admin(&self) -> &str {
        &self.admin
    }

    /// The address of the listener with this name.
    #[track_caller]
    pub fn listening(&self, listener: &str) -> String {
        self.process.listening(listener)
    }

    /// A new connection to the gateway.
    #[track_caller]
    pub fn client(&self) -> Client {
        Client::connect(&self.http)
    }

    /// One request to the admin listener, on a new connection.
    #[track_caller]
    pub fn call_admin(&self, request: &Request) -> Response {
        Client::connect(&self.admin).call(request)
    }

    /// The admin listener's report on a key of a limit.
    #[track_caller]
    pub fn limit(&self, limit: &str, key: &str) -> Value {
        self.call_admin(&Request::get(&format!("/limits/{limit}/{key}"))).expect(200).json()
    }

    /// How much of a limit a key has used.
    #[track_caller]
    pub fn used(&self, limit: &str, key: &str) -> u64 {
        let state = self.limit(limit, key);
        state["used"].as_u64().unwrap_or_else(|| panic!("no used in {state}"))
    }

    /// How much a key may use of a limit: its requests, or the burst of its bucket.
    #[track_caller]
    pub fn allowed(&self, limit: &str, key: &str) -> u64 {
        let state = self.limit(limit, key);
        let allowance = &state["allowance"];
        let allowed = allowance["requests"].as_u64().or(allowance["burst"].as_u64());
        allowed.unwrap_or_else(|| panic!("no allowance in {state}"))
    }

    /// Replaces the configuration file, without requesting a reload.
    pub fn write_config(&self, text: &str) {
        self.folder.write(CONFIG, text);
    }

    /// Replaces the directory file, without requesting a reload.
    pub fn write_directory(&self, text: &str) {
        self.folder.write(DIRECTORY, text);
    }

    /// Requests a reload through the admin listener.
    #[track_caller]
    pub fn reload(&self) -> Response {
        self.call_admin(&Request::new("POST", "/reload").body(""))
    }

    /// Sends a signal by its name, such as `TERM`, to the process that was started first.
    pub fn signal(&self, name: &str) {
        self.process.signal(name);
    }

    /// The process ids of the successors, in order.
    pub fn successors(&self) -> Vec<u32> {
        let lines = self.log().json();
        let taken = lines.iter().filter(|line| line["message"] == "successor took over");
        taken.map(|line| u32::try_from(line["process"].as_u64().unwrap()).unwrap()).collect()
    }

    /// The process that serves now.
    pub fn serving(&self) -> u32 {
        self.successors().last().copied().unwrap_or(self.process.id())
    }

    /// Upgrades the serving process, waits until the successor serves, and returns its process id.
    #[track_caller]
    pub fn upgrade(&self) -> u32 {
        let before = self.successors().len();
        assert!(process::signal(self.serving(), "USR2"));
        let taken = || self.successors().get(before).copied();
        let id = wait::within(wait::PATIENCE, taken);
        let id = id.unwrap_or_else(|| panic!("no process takes over:\n{}", self.log().text()));
        let ready = || self.log().json().iter().filter(|l| l["message"] == "ready").count();
        wait::until("it to be ready", || (ready() > before + 1).then_some(()));
        id
    }

    /// Waits for the log line of a failed upgrade, and returns its reason.
    #[track_caller]
    pub fn wait_for_no_successor(&self) -> String {
        let line = self.log().wait("the reason of the failed upgrade", |line| {
            line["message"] == json!("upgrade failed; this process continues to serve")
        });
        line["error"].as_str().unwrap().to_owned()
    }

    /// Waits until the process has ended; `None` if a signal ended it.
    #[track_caller]
    pub fn wait_for_exit(&mut self) -> Option<i32> {
        self.process.wait_for_exit()
    }

    /// The lines of the access log.
    pub fn access_log(&self) -> &Lines {
        self.process.stdout()
    }

    /// The lines of the log.
    pub fn log(&self) -> &Lines {
        self.process.stderr()
    }

    /// The folder of its files.
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// The id of the process that was started first.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Waits until the process has ended, and returns its folder.
    #[track_caller]
    pub fn into_folder(mut self) -> Folder {
        self.wait_for_exit();
        std::mem::take(&mut self.folder)
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // Dropping `Process` kills the first; its successors are not children of the test.
        for id in self.successors() {
            process::signal(id, "KILL");
        }
    }
}

/// Runs `weir-gateway` with `arguments` in `folder` to its end.
#[track_caller]
pub fn run(folder: &Folder, arguments: &[&str]) -> Finished {
    process::run(PROGRAM, folder, arguments)
}
