//! Pages that have nothing to list say why, and where to go on.

use weir_tests::dispatcher::ACME;

use super::Site;

#[test]
fn where_nothing_has_failed_the_page_leads_to_the_newest_delivery() {
    let site = Site::new();
    let acme = site.stage.dispatcher.acme();
    let visitor = site.visitor(ACME);
    let page = visitor.get("failed").expect(200).text();
    assert!(page.contains("No event has happened yet."), "{page}");
    site.stage.webhook("/hook", &["user.created"]);
    let event = site.stage.dispatcher.post_event("user.created");
    let delivery = acme.wait_for_delivery(&event, |one| one["state"] == "delivered");
    let page = visitor.get("failed").expect(200).text();
    let link = format!("/deliveries/{}\">user.created</a>", delivery["id"].as_str().unwrap());
    assert!(page.contains("Nothing has failed for 30 d") && page.contains(&link), "{page}");
}
