//! The dispatcher's shipped files are valid, and the link in a mail leads to a page.

use serde_json::json;
use weir_tests::config;
use weir_tests::dispatcher::{self, Dispatcher, run};
use weir_tests::folder::Folder;
use weir_tests::receiver::Receiver;
use weir_tests::upstream::Upstream;

use super::{shipped, shipped_gateway};

const CONFIG: &str = "config/dispatcher.toml";
const EVENTS: &str = "config/events.toml";
const TOKENS: &str = "config/tokens.toml";
const DIRECTORY: &str = "config/directory.toml";

#[test]
fn the_shipped_files_of_the_dispatcher_pass_check() {
    let folder = Folder::new();
    for name in [CONFIG, TOKENS, DIRECTORY] {
        folder.write(name, &shipped(name));
    }
    run(&folder, &["check", "--config", CONFIG]).expect(0);
}

#[test]
fn workspaces_begin_alike_for_the_gateway_and_for_the_dispatcher() {
    let prefix = |name: &str| {
        let text = shipped(name);
        let line = text.lines().find(|line| line.starts_with("workspace_prefix = "));
        line.expect("it has a prefix").split('"').nth(1).expect("it is quoted").to_owned()
    };
    assert_eq!(prefix(EVENTS), prefix("config/gateway.toml"));
}

#[test]
fn the_link_in_a_mail_opens_a_page_that_is_not_charged_to_the_workspace() {
    let config = shipped(CONFIG);
    let link = config.lines().find_map(|line| line.strip_prefix("# link = \"")?.split('"').next());
    let link =
        link.expect("it shows a link").replace("https://api.example.com", "http://api.localhost");
    let folder = Folder::new();
    for name in ["config/gateway.toml", DIRECTORY] {
        folder.write(name, &shipped(name));
    }
    let page = format!("{link}/workspaces/ws_acme/webhooks/wh_1");
    let arguments = ["explain", "GET", &page, "--config", "config/gateway.toml"];
    let printed = weir_tests::gateway::run(&folder, &arguments).expect(0).stdout;
    assert!(
        printed.contains("/dashboard/{*rest}") && !printed.contains("workspace for"),
        "{printed}"
    );
}

#[test]
fn the_shipped_gateway_passes_on_every_call_of_a_redelivery() {
    let receiver = Receiver::start();
    let dispatcher = Dispatcher::start(&dispatcher::config(), config::DIRECTORY);
    dispatcher.create_webhook(&receiver.url("/hook"), &["user.created"]);
    dispatcher.post_event("user.created");
    let delivered = dispatcher.acme().wait_for_count("delivered", 1);
    let [control, data] = [(); 2].map(|()| Upstream::start());
    let addresses = [control.address(), data.address(), dispatcher.api_address().to_owned()];
    let gateway = shipped_gateway(&addresses, |text| text);
    let acme = dispatcher.acme().through(gateway.http());
    let body = |dry_run: bool| json!({ "deliveries": [delivered[0]["id"]], "dry_run": dry_run });
    let counted = acme.post("/deliveries:redeliver", &body(true)).expect(200).json();
    assert_eq!(counted["total"]["count"], 1);
    let job = acme.post("/deliveries:redeliver", &body(false)).expect(202).json();
    let id = job["id"].as_str().expect("an id");
    dispatcher.acme().wait_for_job(id);
    assert_eq!(acme.get(&format!("/redeliveries/{id}")).expect(200).json()["redelivered"], 1);
    assert_eq!(acme.get("/redeliveries?limit=1").expect(200).json()["data"][0]["id"], id);
    let ended = acme.act(&format!("/redeliveries/{id}:cancel")).expect(200).json();
    assert_eq!(ended["state"], "done", "it had ended");
}

#[test]
fn the_shipped_gateway_passes_on_every_call_about_secrets() {
    let receiver = Receiver::start();
    let dispatcher = Dispatcher::start(&dispatcher::config(), config::DIRECTORY);
    let webhook = dispatcher.create_webhook(&receiver.url("/hook"), &["user.created"]);
    let [control, data] = [(); 2].map(|()| Upstream::start());
    let addresses = [control.address(), data.address(), dispatcher.api_address().to_owned()];
    let gateway = shipped_gateway(&addresses, |text| text);
    let acme = dispatcher.acme().through(gateway.http());
    let path = format!("/webhooks/{}/secrets", webhook.id);
    let added = acme.act(&path).expect(201).json();
    let listed = acme.get(&path).expect(200).json();
    assert_eq!(listed["data"][0]["fingerprint"], added["fingerprint"]);
    let fingerprint = added["fingerprint"].as_str().expect("a fingerprint");
    acme.call("DELETE", &format!("{path}/{fingerprint}"), None).expect(204);
}
