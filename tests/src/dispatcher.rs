//! The real dispatcher as an operator runs it, and the calls of backends.
//!
//! Not here: the calls of owners (`api`).

use serde_json::{Value, json};

use crate::api::{Api, Webhook};
use crate::client::Client;
use crate::config::Config;
use crate::folder::Folder;
use crate::lines::Lines;
use crate::process::{self, Finished, Process};
use crate::receiver::sha256;
use crate::request::Request;
use crate::response::Response;

/// The program.
pub const PROGRAM: &str = "weir-dispatcher";
/// The configuration's name in the folder of a dispatcher.
pub const CONFIG: &str = "dispatcher.toml";
/// The directory's name in the folder of a dispatcher.
pub const DIRECTORY: &str = "directory.toml";
/// The name of the file of tokens in the folder of a dispatcher.
pub const TOKENS: &str = "tokens.toml";

/// The token of the owner of `ws_acme`.
pub const ACME: &str = "hidden-token-of-acme";
/// The token of the owner of `ws_quiet`.
pub const QUIET: &str = "hidden-token-of-quiet";
/// A token that may read `ws_acme` and change nothing.
pub const READER: &str = "hidden-token-of-a-reader";
/// The token of the backends.
pub const BACKEND: &str = "hidden-token-of-a-backend";

const SECTIONS: &[(&str, &str)] = &[
    (
        "[server]",
        r#"
        api = "127.0.0.1:0"
        ingest = "127.0.0.1:0"
        admin = "127.0.0.1:0"
        threads = 2
        shutdown_grace = "5s"
        "#,
    ),
    ("[store]", "kind = \"sqlite\"\npath = \"dispatcher.db\""),
    ("[auth]", "tokens = \"tokens.toml\""),
    ("[secrets]", "key_file = \"secrets.key\""),
    ("[signature]", "header = \"Service-Signature\"\nstandard_webhooks = true"),
    (
        "[egress]",
        r#"
        deadline = "500ms"
        requests = 1000
        window = "1s"
        allow_http = true
        allow_networks = ["127.0.0.0/8"]
        ports = []
        "#,
    ),
    ("[retry]", "delays = [\"100ms\", \"200ms\", \"400ms\", \"800ms\"]\ngive_up_after = \"2s\""),
    ("[attempts]", "private_answers = true"),
    ("[health]", "warn_share = 0.05\nwarn_for = \"30m\"\npause_after = \"24h\""),
    ("[directory]", "source = \"file\"\npath = \"directory.toml\""),
    ("[retention]", "delivered = \"7d\"\nfailed = \"30d\""),
    ("[log]", "level = \"info\""),
];

/// The configuration most tests use: the retry schedule is scaled down to milliseconds, and
/// receivers on this machine are allowed. `[health]` has production values.
pub fn config() -> Config {
    Config::of(SECTIONS)
}

/// The file of tokens most tests use.
pub fn tokens() -> String {
    let owner = r#"["webhooks:read", "webhooks:write"]"#;
    [
        ("acme", ACME, "ws_acme", owner),
        ("quiet", QUIET, "ws_quiet", owner),
        ("reader", READER, "ws_acme", r#"["webhooks:read"]"#),
        ("backend", BACKEND, "*", r#"["events:write"]"#),
    ]
    .map(|(name, token, workspace, scopes)| entry(name, token, workspace, scopes))
    .concat()
}

/// One entry of the file of tokens.
pub fn entry(name: &str, token: &str, workspace: &str, scopes: &str) -> String {
    let hash = sha256(token);
    format!(
        "[[tokens]]\nname = \"{name}\"\nsha256 = \"{hash}\"\n\
         workspaces = [\"{workspace}\"]\nscopes = {scopes}\n"
    )
}

/// A dispatcher that serves.
#[derive(Debug)]
pub struct Dispatcher {
    process: Process,
    folder: Folder,
    environment: Environment,
    addresses: Addresses,
}

type Environment = Vec<(&'static str, String)>;

#[derive(Debug)]
struct Addresses {
    api: String,
    ingest: String,
    admin: String,
}

impl Dispatcher {
    /// Starts a dispatcher and waits until it is ready.
    #[track_caller]
    pub fn start(config: &Config, directory: &str) -> Self {
        Self::start_in(Folder::new(), config, directory)
    }

    /// Starts a dispatcher with these environment variables.
    #[track_caller]
    pub fn start_with(
        environment: &[(&'static str, String)],
        config: &Config,
        directory: &str,
    ) -> Self {
        Self::launch(environment.to_vec(), Folder::new(), config, directory)
    }

    /// Starts a dispatcher in a folder that may contain an earlier one's files.
    #[track_caller]
    pub fn start_in(folder: Folder, config: &Config, directory: &str) -> Self {
        Self::launch(Vec::new(), folder, config, directory)
    }

    #[track_caller]
    fn launch(environment: Environment, folder: Folder, config: &Config, directory: &str) -> Self {
        folder.write(CONFIG, &config.to_string());
        folder.write(DIRECTORY, directory);
        folder.write(TOKENS, &tokens());
        let (process, addresses) = launch(&environment, &folder);
        Self { process, folder, environment, addresses }
    }

    /// Starts it again on the same files, after the previous process has ended.
    #[track_caller]
    pub fn start_again(&mut self) {
        self.process.wait_for_exit();
        (self.process, self.addresses) = launch(&self.environment, &self.folder);
    }

    /// Stops it with SIGTERM, and checks its exit code.
    #[track_caller]
    pub fn stop(&mut self) {
        self.process.signal("TERM");
        let code = self.process.wait_for_exit();
        assert_eq!(code, Some(0), "{}", self.process.stderr().text());
    }

    /// Kills it with SIGKILL.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// The address for customers' calls.
    pub fn api_address(&self) -> &str {
        &self.addresses.api
    }

    /// The address for events.
    pub fn ingest_address(&self) -> &str {
        &self.addresses.ingest
    }

    /// The address for operators.
    pub fn admin_address(&self) -> &str {
        &self.addresses.admin
    }

    /// The owner of `ws_acme`.
    pub fn acme(&self) -> Api<'_> {
        self.api(ACME, "ws_acme")
    }

    /// A client with this token, for that workspace.
    pub fn api<'a>(&'a self, token: &'a str, workspace: &'a str) -> Api<'a> {
        Api::new(&self.addresses.api, token, workspace)
    }

    /// Registers a webhook of `ws_acme`.
    #[track_caller]
    pub fn create_webhook(&self, url: &str, events: &[&str]) -> Webhook {
        self.acme().create_webhook(url, events)
    }

    /// Posts a body to the ingest listener, as a backend does.
    #[track_caller]
    pub fn ingest(&self, body: &Value) -> Response {
        self.ingest_raw("application/json", &body.to_string())
    }

    /// Posts bytes of a media type to the ingest listener, as a backend does.
    #[track_caller]
    pub fn ingest_raw(&self, media_type: &str, body: &str) -> Response {
        Client::connect(&self.addresses.ingest).call(&ingest_request(media_type, body))
    }

    /// Posts one event of `ws_acme`, and returns its id.
    #[track_caller]
    pub fn post_event(&self, kind: &str) -> String {
        self.post(&event("ws_acme", kind))
    }

    /// Posts one event, and returns its id.
    #[track_caller]
    pub fn post(&self, event: &Value) -> String {
        let answer = self.ingest(event).expect(202).json();
        answer["events"][0]["id"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
    }

    /// Posts `count` events of `ws_acme` in one call, and returns their ids.
    #[track_caller]
    pub fn post_events(&self, kind: &str, count: usize) -> Vec<String> {
        let events: Vec<Value> = (0..count).map(|_| event("ws_acme", kind)).collect();
        let answer = self.ingest(&events.into()).expect(202).json();
        let ids = answer["events"].as_array().unwrap_or_else(|| panic!("{answer}")).iter();
        ids.map(|one| one["id"].as_str().unwrap().to_owned()).collect()
    }

    /// One request to the admin listener.
    #[track_caller]
    pub fn call_admin(&self, request: &Request) -> Response {
        Client::connect(&self.addresses.admin).call(request)
    }

    /// The value of a metric, named with its labels as they are printed.
    #[track_caller]
    pub fn metric(&self, name: &str) -> f64 {
        let page = self.call_admin(&Request::get("/metrics")).expect(200).text();
        let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let line = line.unwrap_or_else(|| panic!("no {name} in\n{page}"));
        line.trim().parse().unwrap()
    }

    /// The lines of the attempt log.
    pub fn attempts(&self) -> Vec<Value> {
        let lines = self.process.stdout().json().into_iter();
        lines.filter(|line| line["attempt"].is_u64()).collect()
    }

    /// Requests a reload through the admin listener.
    #[track_caller]
    pub fn reload(&self) -> Response {
        self.call_admin(&Request::new("POST", "/reload").body(""))
    }

    /// Sends a signal by its name, such as `HUP`.
    pub fn signal(&self, name: &str) {
        self.process.signal(name);
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Waits until the process has ended; `None` if a signal ended it.
    #[track_caller]
    pub fn wait_for_exit(&mut self) -> Option<i32> {
        self.process.wait_for_exit()
    }

    /// Its standard output: the attempt log.
    pub fn attempt_log(&self) -> &Lines {
        self.process.stdout()
    }

    /// The lines of its log.
    pub fn log(&self) -> &Lines {
        self.process.stderr()
    }

    /// The folder of its files.
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// Its resident memory, in bytes.
    pub fn resident_bytes(&self) -> u64 {
        self.process.resident_bytes()
    }
}

#[track_caller]
fn launch(environment: &Environment, folder: &Folder) -> (Process, Addresses) {
    let run = ["run", "--config", CONFIG];
    let process = Process::start_with(environment, PROGRAM, folder, &run);
    let [api, ingest, admin] = ["api", "ingest", "admin"].map(|name| process.listening(name));
    process.stderr().wait("that it is ready", |line| line["message"] == "ready");
    (process, Addresses { api, ingest, admin })
}

/// Runs `weir-dispatcher` with `arguments` in `folder` to its end.
#[track_caller]
pub fn run(folder: &Folder, arguments: &[&str]) -> Finished {
    process::run(PROGRAM, folder, arguments)
}

/// A backend's request that posts events.
pub fn ingest_request(media_type: &str, body: &str) -> Request {
    Request::new("POST", "/internal/v1/events")
        .field("Content-Type", media_type)
        .field("Authorization", &format!("Bearer {BACKEND}"))
        .body(body)
}

/// An event of a workspace.
pub fn event(workspace: &str, kind: &str) -> Value {
    json!({
        "type": kind,
        "workspace_id": workspace,
        "tenant_id": "tn_1",
        "data": { "user_id": "usr_1", "email": "ada@example.com", "name": "Ada", "via_idp": "x" },
    })
}
