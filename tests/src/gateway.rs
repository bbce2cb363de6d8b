//! A gateway that serves, in an operator's hands: its files, its listeners, its signals.

use serde_json::Value;

use crate::client::Client;
use crate::folder::Folder;
use crate::lines::Lines;
use crate::process::{self, Finished, Process};
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

    /// Starts a gateway in a folder that may hold what an earlier one left.
    #[track_caller]
    pub fn start_in(folder: Folder, config: &str, directory: &str) -> Self {
        folder.write(CONFIG, config);
        folder.write(DIRECTORY, directory);
        let process = Process::start(PROGRAM, &folder, &["run", "--config", CONFIG]);
        let [http, admin] = ["http", "admin"].map(|listener| process.listening(listener));
        let gateway = Self { process, folder, http, admin };
        wait::until("the gateway to be ready", || {
            let ready = Client::try_connect(&gateway.admin).ok()?.get("/readyz");
            (ready.status == 200).then_some(())
        });
        gateway
    }

    /// Where tenants connect.
    pub fn http(&self) -> &str {
        &self.http
    }

    /// Where tenants connect over TLS.
    #[track_caller]
    pub fn https(&self) -> String {
        self.process.listening("https")
    }

    /// The memory it really uses, in bytes.
    pub fn resident_bytes(&self) -> u64 {
        self.process.resident_bytes()
    }

    /// Where the operator connects.
    pub fn admin(&self) -> &str {
        &self.admin
    }

    /// A new connection to the gateway.
    #[track_caller]
    pub fn client(&self) -> Client {
        Client::connect(&self.http)
    }

    /// One request to the admin listener, on a connection of its own.
    #[track_caller]
    pub fn ask(&self, request: &Request) -> Response {
        Client::connect(&self.admin).call(request)
    }

    /// What the admin listener knows about a key of a limit.
    #[track_caller]
    pub fn limit(&self, limit: &str, key: &str) -> Value {
        self.ask(&Request::get(&format!("/limits/{limit}/{key}"))).expect(200).json()
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

    /// Replaces the configuration file, without asking for a reload.
    pub fn write_config(&self, text: &str) {
        self.folder.write(CONFIG, text);
    }

    /// Replaces the directory file, without asking for a reload.
    pub fn write_directory(&self, text: &str) {
        self.folder.write(DIRECTORY, text);
    }

    /// Asks for a reload.
    #[track_caller]
    pub fn reload(&self) -> Response {
        self.ask(&Request::new("POST", "/reload").body(""))
    }

    /// Sends a signal by its name, such as `TERM`.
    pub fn signal(&self, name: &str) {
        self.process.signal(name);
    }

    /// Waits until the process is gone; `None` when a signal ended it.
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

    /// The process's id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Lets go of the process, which must have ended, and hands on its files.
    #[track_caller]
    pub fn into_folder(mut self) -> Folder {
        self.wait_for_exit();
        std::mem::take(&mut self.folder)
    }
}

/// Runs `weir-gateway` with `arguments` in `folder` to its end.
#[track_caller]
pub fn run(folder: &Folder, arguments: &[&str]) -> Finished {
    process::run(PROGRAM, folder, arguments)
}
