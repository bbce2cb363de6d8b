//! Forms and changes that meet others' changes.

use std::thread;

use serde_json::json;
use weir_tests::client::Client;
use weir_tests::dispatcher::ACME;

use super::{Site, Visitor, form};

#[test]
fn of_two_forms_that_are_saved_at_one_moment_the_second_is_refused() {
    let site = Site::new();
    let (acme, webhook) =
        (site.stage.dispatcher.acme(), site.stage.webhook("/hook", &["user.created"]));
    let path = format!("webhooks/{}/edit", webhook.id);
    let visitors = [(); 2].map(|()| site.visitor(ACME));
    let tokens = visitors.each_ref().map(Visitor::form_token);
    let (url, gateway) = (site.stage.receiver.url("/hook"), site.gateway.http());
    let mut description = String::new();
    for round in 0..8 {
        let text = visitors[0].get(&path).expect(200).text();
        let (_, shown) = text.split_once("name=\"shown\" value=\"").expect("what it shows");
        let shown = shown.split('"').next().unwrap_or_default().replace("&#34;", "\"");
        let texts = ["a", "b"].map(|one| format!("{one}{round}"));
        let requests = [0, 1].map(|nth: usize| {
            let fields = [
                ("form_token", tokens[nth].as_str()),
                ("shown", shown.as_str()),
                ("url", url.as_str()),
                ("events", "user.created"),
                ("description", texts[nth].as_str()),
                ("answers", "failures"),
            ];
            let form = form(&format!("/dashboard/workspaces/ws_acme/{path}"), &fields);
            form.field("Cookie", &visitors[nth].cookie)
        });
        let saved = thread::scope(|scope| {
            let send = |request| scope.spawn(move || Client::connect(gateway).call(request).status);
            requests.each_ref().map(send).map(|sent| sent.join().unwrap())
        });
        assert!(matches!(saved, [303, 409] | [409, 303]), "{saved:?} in round {round}");
        description.clone_from(&texts[usize::from(saved[1] == 303)]);
        assert_eq!(acme.webhook(&webhook.id)["description"], json!(description));
    }
    // The API refuses in the same way.
    let api = site.stage.dispatcher.api_address();
    let path = format!("/webhooks/{}", webhook.id);
    let read = acme.call("GET", &path, None).expect(200);
    let tag = read.field("etag").unwrap_or_else(|| panic!("{}", read.head_text()));
    let change = json!({ "description": "by the API" });
    let patch = |tag: &str| {
        let request = acme.request("PATCH", &path, Some(&change));
        Client::connect(api).call(&request.field("If-Match", tag))
    };
    let changed = patch(tag).expect(200);
    assert_ne!(changed.field("etag"), Some(tag));
    assert_eq!(patch(tag).expect_problem(412)["type"], "urn:weir:problem:webhook-changed");
    patch(changed.field("etag").unwrap_or_default()).expect(200);
}
