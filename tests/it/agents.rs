//! The agent tool server as agents use it: the clients are the official SDKs, and every call goes
//! to the real dispatcher through the real gateway with its shipped configuration.
//!
//! Not here: how long a client waits (`weir-client`'s own tests).

mod asking;
mod conformance;
mod errors;
mod every_tool;
mod over_http;
mod shares;
mod simulated;
mod starting;
mod trouble;

use serde_json::{Value, json};
use weir_tests::config::DIRECTORY;
use weir_tests::dispatcher::{self, ACME, Dispatcher, READER};
use weir_tests::folder::Folder;
use weir_tests::gateway::Gateway;
use weir_tests::process::{Finished, Process, program};
use weir_tests::real;
use weir_tests::receiver::{Receiver, sha256};
use weir_tests::upstream::Upstream;

use crate::shipped::shipped_gateway;

const PROGRAM: &str = "weir-agent";

/// The bearer of the agent of `ws_acme`.
const BEARER: &str = "hidden-bearer-of-an-agent";

/// The route by which the gateway shows limits.
const LIMITS: &str = "\n[[routes]]\nplane = \"control\"\nmethods = [\"GET\"]\n\
    path = \"/v1/workspaces/{workspace}/limits\"\nlimits = [\"workspace\", \"organisation\"]\n\
    answer = \"limits\"\npublic = true\n";

/// A client: which SDK, and which version of the protocol it speaks.
#[derive(Clone, Copy, Debug)]
enum Sdk {
    /// npm's `@modelcontextprotocol/sdk`: versions with a session.
    Node,
    /// npm's `@modelcontextprotocol/client`: 2026-07-28.
    Node2,
    /// PyPI's `mcp`: 2026-07-28, or before.
    Python,
}

/// What agents work with.
struct Stage {
    receiver: Receiver,
    dispatcher: Dispatcher,
    gateway: Gateway,
    folder: Folder,
    _others: [Upstream; 2],
}

impl Stage {
    #[track_caller]
    fn new() -> Self {
        Self::with(|text| text)
    }

    /// With the gateway's configuration as `change` changes it.
    #[track_caller]
    fn with(change: impl FnOnce(String) -> String) -> Self {
        let dispatcher = Dispatcher::start(&dispatcher::config(), DIRECTORY);
        let others = [(); 2].map(|()| Upstream::start());
        let [control, data] = &others;
        let addresses = [control.address(), data.address(), dispatcher.api_address().to_owned()];
        let gateway = shipped_gateway(&addresses, |text| change(text + LIMITS));
        let folder = Folder::new();
        folder.write("token", ACME);
        folder.write("reader", READER);
        Self { receiver: Receiver::start(), dispatcher, gateway, folder, _others: others }
    }

    /// The URL of the gateway.
    fn url(&self) -> String {
        let (_, port) = self.gateway.http().rsplit_once(':').unwrap();
        format!("http://api.localhost:{port}")
    }

    /// The command of a server on its standard streams.
    fn command(&self, more: &[&str]) -> Vec<String> {
        let path = |name: &str| self.folder.path(name).display().to_string();
        let mut command = vec![program(PROGRAM).display().to_string()];
        command.extend(["--url".to_owned(), self.url()]);
        command.extend(["--token-file".to_owned(), path("token")]);
        command.extend(["--workspace", "ws_acme", "--secrets"].map(str::to_owned));
        command.push(path("secrets"));
        command.extend(more.iter().map(|one| (*one).to_owned()));
        command
    }

    /// What a client gets that uses a server on its standard streams.
    #[track_caller]
    fn session(&self, sdk: Sdk, steps: &[Value]) -> Session {
        self.answered(sdk, None, steps)
    }

    /// The same, with a person who gives this answer to each question.
    #[track_caller]
    fn answered(&self, sdk: Sdk, answer: Option<Value>, steps: &[Value]) -> Session {
        let mut task = json!({ "command": self.command(&[]), "steps": steps });
        if let Some(answer) = answer {
            task["answer"] = answer;
        }
        Session::of(sdk, task)
    }

    /// A server for agents over HTTP.
    #[track_caller]
    fn serve(&self) -> Served {
        self.serve_as(&[])
    }

    /// The same, with more flags.
    #[track_caller]
    fn serve_as(&self, more: &[&str]) -> Served {
        self.serve_agents(&self.agents("ws_acme", "token"), more)
    }

    /// A server for the agents of this file.
    #[track_caller]
    fn serve_agents(&self, text: &str, more: &[&str]) -> Served {
        self.folder.write("agents.toml", text);
        let agents = self.folder.path("agents.toml").display().to_string();
        let secrets = self.folder.path("secrets").display().to_string();
        let url = self.url();
        let flags = ["--url", &url, "--http", "127.0.0.1:0", "--agents", &agents];
        let origin = "https://app.example.com:443";
        let rest = ["--secrets", &*secrets, "--origin", origin];
        let process =
            Process::start(PROGRAM, &self.folder, &[&flags[..], &rest[..], more].concat());
        let address = process.listening("mcp");
        Served { process, address }
    }

    /// A file of one agent.
    fn agents(&self, workspace: &str, token: &str) -> String {
        let file = self.folder.path(token).display().to_string();
        format!(
            "[[agents]]\nname = \"acme\"\nsha256 = \"{}\"\ntoken_file = \"{file}\"\n\
             workspace = \"{workspace}\"\n",
            sha256(BEARER)
        )
    }

    /// Registers a webhook of `ws_acme` at the receiver.
    #[track_caller]
    fn webhook(&self) -> String {
        self.dispatcher.create_webhook(&self.receiver.url("/hook"), &["user.created"]).id
    }

    /// Deliveries that failed permanently, and their webhook.
    #[track_caller]
    fn failed(&self, count: usize) -> (String, Vec<Value>) {
        let webhook = self.webhook();
        self.receiver.status(500);
        self.dispatcher.post_events("user.created", count);
        (webhook, self.dispatcher.acme().wait_for_count("failed_permanent", count))
    }
}

/// A server for agents over HTTP.
struct Served {
    process: Process,
    address: String,
}

impl Served {
    /// A task of a client with the bearer of `ws_acme`.
    fn task(&self, rest: Value) -> Value {
        let mut task = json!({"url": format!("http://{}/mcp", self.address), "bearer": BEARER});
        task.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        task
    }
}

/// What a client saw.
#[derive(Debug)]
struct Session {
    outcomes: Vec<Value>,
    /// What a person was asked.
    questions: Vec<String>,
}

impl Session {
    #[track_caller]
    fn of(sdk: Sdk, task: Value) -> Self {
        let seen = driven(sdk, task);
        let outcomes = seen["outcomes"].as_array().unwrap_or_else(|| panic!("{seen}")).clone();
        let questions = serde_json::from_value(seen["questions"].clone()).unwrap();
        Self { outcomes, questions }
    }

    /// The data of a step that succeeded.
    #[track_caller]
    fn data(&self, step: usize) -> &Value {
        let outcome = &self.outcomes[step];
        assert_ne!(outcome["isError"], true, "{outcome:#}");
        let data = &outcome["structuredContent"];
        assert!(data.is_object(), "{outcome:#}");
        data
    }

    /// The text of a step that failed, as an agent reads it.
    #[track_caller]
    fn error(&self, step: usize) -> &str {
        let outcome = &self.outcomes[step];
        assert_eq!(outcome["isError"], true, "{outcome:#}");
        text_of(outcome)
    }
}

/// The text of a tool's result.
#[track_caller]
fn text_of(outcome: &Value) -> &str {
    outcome["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no text: {outcome:#}"))
}

/// Drives an SDK, and returns the line that it prints.
#[track_caller]
fn driven(sdk: Sdk, mut task: Value) -> Value {
    let mut command = match sdk {
        Sdk::Python => real::python("tests/real/agent.py"),
        Sdk::Node | Sdk::Node2 => real::node("tests/real/agent.mjs"),
    };
    if matches!(sdk, Sdk::Node2) {
        task["sdk"] = "v2".into();
    }
    let Finished { code, stdout, stderr } = real::run(command.env("TASK", task.to_string()));
    assert_eq!(code, Some(0), "{sdk:?}: {stdout}\n{stderr}");
    serde_json::from_str(stdout.trim()).unwrap_or_else(|why| panic!("{why}: {stdout}\n{stderr}"))
}

/// A step that calls a tool.
fn call(tool: &str, arguments: Value) -> Value {
    json!({ "do": tool, "with": arguments })
}

/// What a person says who agrees.
fn yes() -> Value {
    json!({ "action": "accept", "content": { "approve": true } })
}
