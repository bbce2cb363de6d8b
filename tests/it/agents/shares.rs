//! What the worst agent of a listener does to the others: requests without end, messages that stop
//! half-way, connections that idle, a token that is refused; and anyone without a bearer.

use serde_json::{Value, json};
use weir_tests::answer::{Answer, Gate};
use weir_tests::client::Client;
use weir_tests::folder::Folder;
use weir_tests::process::{self, Process};
use weir_tests::receiver::sha256;
use weir_tests::request::Request;
use weir_tests::response::Response;
use weir_tests::upstream::{Received, Upstream};
use weir_tests::wait;

use super::PROGRAM;

/// Requests of one of two agents that may be in progress: a third of the connections.
const SHARE: usize = CONNECTIONS / 3;

/// Connections of one listener.
const CONNECTIONS: usize = 512;

/// Two agents, `worst` and `other`, and a gateway of their own.
struct Two {
    gateway: Upstream,
    served: Process,
    address: String,
}

impl Two {
    /// With a gateway that answers calls to `/v1/workspaces/ws_NAME` by `answer(NAME, rest)`.
    #[track_caller]
    fn start(answer: impl Fn(&str, &str) -> Answer + Send + Sync + 'static) -> Self {
        let gateway = Upstream::start();
        gateway.answer(move |request| answered(request, &answer));
        let folder = Folder::new();
        folder.write("agents.toml", &agents(&folder));
        let url = format!("http://{}", gateway.address());
        let flags = ["--url", &url, "--http", "127.0.0.1:0", "--agents", "agents.toml"];
        let served = Process::start(PROGRAM, &folder, &flags);
        let address = served.listening("mcp");
        Self { gateway, served, address }
    }

    /// A call of `get_webhook` by an agent.
    fn get(&self, agent: &str, id: &str) -> Request {
        let params = json!({ "name": "get_webhook", "arguments": { "id": id } });
        self.post(
            agent,
            &json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call",
            "params": params }),
        )
    }

    fn post(&self, agent: &str, message: &Value) -> Request {
        Request::post("/mcp", message.to_string())
            .host(&self.address)
            .field("Authorization", &format!("Bearer bearer-of-{agent}"))
            .field("Accept", "application/json, text/event-stream")
            .field("Content-Type", "application/json")
    }

    /// A list of tools: answered without the gateway.
    fn tools(&self, agent: &str) -> Request {
        self.post(agent, &json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" }))
    }

    #[track_caller]
    fn call(&self, request: &Request) -> Response {
        Client::connect(&self.address).call(request)
    }

    /// Checks that an agent is served at once.
    #[track_caller]
    fn assert_served(&self, agent: &str) {
        let answer = self.call(&self.get(agent, "wh_quick")).expect(200).json();
        assert_eq!(answer["result"]["structuredContent"]["id"], "wh_quick", "{answer:#}");
    }
}

fn agents(folder: &Folder) -> String {
    let entry = |name: &str| {
        let file = folder.write(&format!("{name}.token"), &format!("token-of-{name}"));
        format!(
            "[[agents]]\nname = \"{name}\"\nsha256 = \"{}\"\ntoken_file = \"{}\"\n\
             workspace = \"ws_{name}\"\n",
            sha256(&format!("bearer-of-{name}")),
            file.display()
        )
    };
    entry("worst") + &entry("other")
}

/// The gateway's answer: each token reaches its own workspace.
fn answered(request: &Received, answer: &impl Fn(&str, &str) -> Answer) -> Answer {
    let target = String::from_utf8(request.target()).unwrap();
    let path = target.strip_prefix("/v1/workspaces/ws_").unwrap_or_default();
    let (name, rest) = path.split_once('/').unwrap_or_default();
    if request.head.field("authorization") == Some(&*format!("Bearer token-of-{name}")) {
        answer(name, rest)
    } else {
        problem(404, "not-found")
    }
}

fn problem(status: u16, kind: &str) -> Answer {
    let body = json!({ "type": format!("urn:weir:problem:{kind}"), "detail": "A reason." });
    Answer::status(status).body(body.to_string())
}

/// What a gateway answers that has nothing to refuse.
fn good(rest: &str) -> Answer {
    let Some(id) = rest.strip_prefix("webhooks/") else {
        return Answer::ok(r#"{"data": [], "next_cursor": null}"#);
    };
    let webhook = json!({ "id": id, "url": "https://a.example/", "events": [], "created_at": "x",
        "state": "delivering", "health": {}, "waiting": { "count": 0 }, "forecast": {} });
    Answer::ok(webhook.to_string())
}

#[test]
fn an_agent_with_its_share_of_requests_is_refused_more_and_another_is_served() {
    let gate = Gate::new();
    let closed = gate.clone();
    let two = Two::start(move |_, rest| match rest {
        "webhooks?limit=1" | "webhooks/wh_quick" => good(rest),
        _ => Answer::script().wait(&closed).and(good(rest)),
    });
    let mut waiting: Vec<Client> = (0..SHARE)
        .map(|nth| {
            let mut client = Client::connect(&two.address);
            let request = two.get("worst", &format!("wh_{nth}"));
            client.send([request.head_bytes(), request.body_bytes()].concat());
            client
        })
        .collect();
    let calls = |seen: &weir_tests::upstream::Seen| {
        let slow = |one: &&Received| String::from_utf8_lossy(&one.target()).contains("/wh_");
        (seen.requests.iter().filter(slow).count() == SHARE).then_some(())
    };
    two.gateway.wait("the calls", calls);
    for _ in 0..200 {
        let refused = two.call(&two.get("worst", "wh_more")).expect_problem(503);
        assert!(refused["detail"].as_str().unwrap().contains("its share"), "{refused}");
    }
    two.assert_served("other");
    gate.open();
    for client in &mut waiting {
        client.read().expect(200);
    }
    two.assert_served("worst");
}

#[test]
fn messages_that_stop_half_way_count_in_the_share_of_their_agent() {
    let two = Two::start(|_, rest| good(rest));
    let request = two.get("worst", "wh_1");
    let halves: Vec<Client> = (0..SHARE)
        .map(|_| {
            let mut client = Client::connect(&two.address);
            client.send([request.head_bytes(), request.body_bytes()[..9].to_vec()].concat());
            client
        })
        .collect();
    wait::until("the share to be used up", || (two.call(&request).status == 503).then_some(()));
    two.assert_served("other");
    drop(halves);
    wait::until("the share to be free again", || (two.call(&request).status == 200).then_some(()));
}

#[test]
fn connections_that_idle_leave_half_of_the_listener_to_others() {
    let two = Two::start(|_, rest| good(rest));
    let tools = two.tools("worst");
    let idle: Vec<(Client, Response)> = (0..CONNECTIONS + 100)
        .map(|_| {
            let mut client = Client::connect(&two.address);
            let answer = client.call(&tools).expect(200);
            (client, answer)
        })
        .collect();
    let closed = |answer: &Response| answer.field("connection") == Some("close");
    let kept = idle.iter().filter(|(_, answer)| !closed(answer)).count();
    assert!((CONNECTIONS / 2 - 9..=CONNECTIONS / 2 + 9).contains(&kept), "{kept}");
    two.assert_served("other");
}

#[test]
fn connections_without_a_known_bearer_give_way_to_agents() {
    let two = Two::start(|_, rest| good(rest));
    let _silent: Vec<Client> = (0..CONNECTIONS).map(|_| Client::connect(&two.address)).collect();
    two.assert_served("other");
    let unknown = two.tools("unknown");
    let _refused: Vec<Client> = (0..CONNECTIONS)
        .map(|_| {
            let mut client = Client::connect(&two.address);
            client.call(&unknown).expect_problem(401);
            client
        })
        .collect();
    two.assert_served("other");
}

#[test]
fn a_token_that_cannot_be_checked_holds_up_its_own_agent_alone() {
    for trouble in [
        problem(401, "unauthorized"),
        problem(429, "rate-limited").field("Retry-After", "3600"),
        Answer::status(500),
        Answer::script().close(),
    ] {
        let two = Two::start(move |name, rest| match (name, rest) {
            ("worst", "webhooks?limit=1") => trouble.clone(),
            _ => good(rest),
        });
        two.assert_served("other");
        let refused = two.call(&two.tools("worst")).expect_problem(503);
        assert!(refused["detail"].as_str().unwrap().starts_with("Not served: "), "{refused}");
        let log = two.served.stderr();
        let line = log.wait("the warning", |line| line["message"] == "agent not served yet");
        assert_eq!(line["agent"], "worst", "{line}");
        assert!(!log.text().contains("token-of"), "{}", log.text());
    }
}

#[test]
fn a_token_that_turns_out_to_reach_more_is_never_served() {
    let two = Two::start(|name, rest| match (name, rest) {
        ("worst", "webhooks?limit=1") => Answer::status(502),
        _ => good(rest),
    });
    two.call(&two.tools("worst")).expect_problem(503);
    // Now the token of `worst` is good for every workspace.
    two.gateway.answer(|request| {
        let target = String::from_utf8(request.target()).unwrap();
        good(target.splitn(5, '/').nth(4).unwrap_or_default())
    });
    let refused = wait::until("the next check", || {
        let answer = two.call(&two.tools("worst"));
        (answer.status != 503).then_some(answer)
    });
    let detail = refused.expect_problem(403)["detail"].to_string();
    assert!(detail.contains("reaches workspaces other than ws_worst"), "{detail}");
}

#[test]
fn a_listener_has_room_for_a_share_of_each_of_its_agents() {
    let folder = Folder::new();
    let entry = |nth: usize| {
        let file = folder.write(&format!("token-{nth}"), &format!("token-{nth}"));
        format!(
            "[[agents]]\nname = \"a{nth}\"\nsha256 = \"{}\"\ntoken_file = \"{}\"\n\
             workspace = \"ws_{nth}\"\n",
            sha256(&format!("bearer-{nth}")),
            file.display()
        )
    };
    folder.write("agents.toml", &(0..129).map(entry).collect::<String>());
    let url = "http://127.0.0.1:1";
    let flags = ["--url", url, "--http", "127.0.0.1:0", "--agents", "agents.toml"];
    let refused = process::run(PROGRAM, &folder, &flags).expect(64).stderr;
    assert!(refused.contains("has 129 agents; one listener is for 128"), "{refused}");
}
