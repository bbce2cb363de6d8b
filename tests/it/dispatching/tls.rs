//! Receivers with TLS: one with a valid certificate gets requests, one with an invalid
//! certificate gets none.

use std::process::Command;

use serde_json::{Value, json};
use weir_tests::authority::Authority;
use weir_tests::dispatcher::{CONFIG, config, run};
use weir_tests::nginx::Nginx;
use weir_tests::real;
use weir_tests::receiver::Receiver;

use super::operating::folder;
use super::{Stage, attempts, text};

#[test]
fn curl_agrees_which_certificates_are_valid() {
    let (folder, receiver) = (certificates(), Receiver::start());
    // curl exits with 60 if it cannot verify the certificate.
    for (name, code) in [("server", 0), ("elsewhere", 60), ("lapsed", 60)] {
        let nginx = before(&receiver, &folder, name);
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--cacert"]).arg(folder.path("ca.crt"));
        let url = format!("https://{}/{name}", nginx.address());
        let finished = real::run(curl.args(["--data", "{}", &url]));
        assert_eq!(finished.code, Some(code), "{name}: {}", finished.output());
    }
    assert_eq!(receiver.wait(1)[0].path(), "/server");
    assert_eq!(receiver.count(), 1);
}

#[test]
fn a_certificate_of_a_trusted_authority_is_accepted() {
    let (folder, receiver) = (certificates(), Receiver::start());
    let nginx = before(&receiver, &folder, "server");
    let extra_ca = format!("extra_ca = \"{}\"", folder.path("ca.crt"));
    let stage =
        Stage::with(|config| config.with("[egress]", &format!("allow_http = false\n{extra_ca}")));
    let url = format!("https://{}/hook", nginx.address());
    let webhook = stage.dispatcher.create_webhook(&url, &["user.created"]);
    stage.dispatcher.post_event("user.created");
    let delivered = receiver.wait(1).remove(0);
    delivered.verify(&webhook.secret);
    stage.dispatcher.acme().wait_for_count("delivered", 1);
}

#[test]
fn a_receiver_that_verifies_its_clients_is_shown_the_certificate_of_the_platform() {
    let (folder, receiver) = (certificates(), Receiver::start());
    folder.sign("client", "DNS:weir.example.com", 2);
    let path = |name: &str| folder.path(name);
    let (certificate, key, ca) = (path("server.crt"), path("server.key"), path("ca.crt"));
    let upstream = receiver.upstream().address();
    let nginx = Nginx::start(|address, _| {
        format!(
            "server {{ listen {address} ssl; ssl_certificate {certificate};\n\
             ssl_certificate_key {key}; ssl_client_certificate {ca}; ssl_verify_client on;\n\
             location / {{ proxy_pass http://{upstream}; }} }}\n"
        )
    });
    let trusted = format!("extra_ca = \"{ca}\"");
    let own = format!(
        "{trusted}\nclient_certificate = \"{}\"\nclient_key = \"{}\"",
        path("client.crt"),
        path("client.key")
    );
    for (lines, state, answered) in [(&trusted, "waiting", 400), (&own, "delivered", 200)] {
        let stage = Stage::with(|config| config.with("[egress]", lines));
        let url = format!("https://{}/hook", nginx.address());
        stage.dispatcher.create_webhook(&url, &["user.created"]);
        let id = stage.dispatcher.post_event("user.created");
        let acme = stage.dispatcher.acme();
        let tried = acme.wait_for_delivery(&id, |one| one["attempts"].as_u64() >= Some(1));
        assert_eq!(tried["state"], state, "{tried}");
        assert_eq!(attempts(&tried)[0].1, format!("status_{answered}"), "{tried}");
    }
    assert_eq!(receiver.count(), 1);
}

#[test]
fn a_key_that_cannot_be_read_is_reported_without_any_part_of_it() {
    let authority = certificates();
    let (certificate, key) = (authority.path("server.crt"), authority.path("server.key"));
    let lines = format!("client_certificate = \"{certificate}\"\nclient_key = \"{key}\"");
    let folder = folder(&config().with("[egress]", &lines).to_string());
    let good = authority.read("server.key");
    for text in [good.replace('\n', ""), good.replace('\n', "\\n")] {
        authority.write("server.key", &text);
        let output = run(&folder, &["check", "--config", CONFIG]).expect(64).output();
        let expected = format!("egress.client_key: `{key}` has no private key in PEM");
        assert!(output.trim_end().ends_with(&expected), "{output}");
    }
}

#[test]
fn an_expired_certificate_of_the_platform_is_a_warning_at_a_start_a_reload_and_a_check() {
    let authority = certificates();
    let lines = |name: &str| {
        let [certificate, key] = ["crt", "key"].map(|end| authority.path(&format!("{name}.{end}")));
        format!("client_certificate = \"{certificate}\"\nclient_key = \"{key}\"")
    };
    let expired = |line: &Value| line["message"] == "certificate expired";
    let stage = Stage::with(|config| config.with("[egress]", &lines("server")));
    assert!(!stage.dispatcher.log().json().iter().any(expired));
    for end in ["crt", "key"] {
        authority.write(&format!("server.{end}"), &authority.read(&format!("lapsed.{end}")));
    }
    stage.dispatcher.reload().expect(200);
    stage.dispatcher.log().wait("that it has expired", expired);
    let checked = run(stage.dispatcher.folder(), &["check", "--config", CONFIG]);
    let output = checked.expect(0).output();
    let expected = "server.crt` expired at 2020-02-01T00:00:00.000Z";
    assert!(output.contains("warning: ") && output.contains(expected), "{output}");
    let stage = Stage::with(|config| config.with("[egress]", &lines("lapsed")));
    stage.dispatcher.log().wait("that it has expired", expired);
}

#[test]
fn a_webhook_shows_the_certificate_of_its_owner_and_never_that_of_another() {
    let (folder, receiver) = (certificates(), Receiver::start());
    for name in ["client", "one", "two"] {
        folder.sign(name, "DNS:weir.example.com", 2);
    }
    let path = |name: &str| folder.path(name);
    let (certificate, key, ca) = (path("server.crt"), path("server.key"), path("ca.crt"));
    let upstream = receiver.upstream().address();
    let nginx = Nginx::start(|address, _| {
        format!(
            "server {{ listen {address} ssl; ssl_certificate {certificate};\n\
             ssl_certificate_key {key}; ssl_client_certificate {ca}; ssl_verify_client on;\n\
             location / {{ proxy_pass http://{upstream};\n\
             proxy_set_header X-Client $ssl_client_s_dn; }} }}\n"
        )
    });
    let platform = format!(
        "extra_ca = \"{ca}\"\nclient_certificate = \"{}\"\nclient_key = \"{}\"",
        path("client.crt"),
        path("client.key")
    );
    let stage = Stage::with(|config| config.with("[egress]", &platform));
    let acme = stage.dispatcher.acme();
    let pem = |name: &str| {
        let read = |end: &str| folder.read(&format!("{name}.{end}"));
        json!({ "certificate": read("crt"), "key": read("key") })
    };
    let body = |name: &str| {
        let url = format!("https://{}/{name}", nginx.address());
        let mut body = json!({ "url": url, "events": ["user.created"] });
        if name != "client" {
            body["client_certificate"] = pem(name);
        }
        body
    };
    let create = |name| acme.post("/webhooks", &body(name)).expect(201).json();
    let [_, one, _] = ["client", "one", "two"].map(create);
    assert_eq!(one["client_certificate"]["subject"], "CN=one", "{one}");
    assert!(one["client_certificate"]["expires_at"].is_string());
    assert!(!one.to_string().contains("PRIVATE KEY"), "{one}");
    for round in 1..=2 {
        stage.dispatcher.post_event("user.created");
        for delivered in receiver.wait(3 * round) {
            assert_eq!(format!("/{}", &delivered.field("X-Client")[3..]), delivered.path());
        }
    }
    let at = format!("/webhooks/{}", text(&one, "id"));
    for (change, pointer) in [
        (json!({ "certificate": pem("one")["certificate"], "key": pem("two")["key"] }), "key"),
        (json!({ "certificate": "x", "key": pem("two")["key"] }), "certificate"),
        (json!({ "certificate": pem("one")["certificate"] }), "key"),
        (json!({ "key": pem("one")["key"] }), "certificate"),
    ] {
        let change = json!({ "client_certificate": change });
        let problem = acme.call("PATCH", &at, Some(&change)).expect_problem(422);
        assert_eq!(problem["errors"][0]["pointer"], format!("/client_certificate/{pointer}"));
    }
    let none = json!({ "client_certificate": {} });
    let changed = acme.call("PATCH", &at, Some(&none)).expect(200).json();
    assert!(changed["client_certificate"].is_null(), "{changed}");
    stage.dispatcher.post_event("user.created");
    let clients = receiver.wait(9).split_off(6).into_iter();
    let mut clients: Vec<_> = clients.map(|one| one.field("X-Client")).collect();
    clients.sort_unstable();
    assert_eq!(clients, ["CN=client", "CN=client", "CN=two"]);
}

#[test]
fn a_receiver_with_an_invalid_certificate_gets_no_request() {
    for (name, trusted, error) in [
        ("server", false, "the TLS certificate was not issued by a trusted authority"),
        ("elsewhere", true, "the TLS certificate is for another host name"),
        ("lapsed", true, "the TLS certificate expired on 2020-02-01T00:00:00.000Z"),
        ("itself", false, "the TLS certificate is self-signed, or an authority's own"),
    ] {
        let (folder, receiver) = (certificates(), Receiver::start());
        let nginx = before(&receiver, &folder, name);
        let extra_ca = format!("extra_ca = \"{}\"", folder.path("ca.crt"));
        let stage = Stage::with(|config| match trusted {
            true => config.with("[egress]", &extra_ca),
            false => config,
        });
        let url = format!("https://{}/hook", nginx.address());
        stage.dispatcher.create_webhook(&url, &["user.created"]);
        let id = stage.dispatcher.post_event("user.created");
        let acme = stage.dispatcher.acme();
        let failed = acme.wait_for_delivery(&id, |one| one["attempts"].as_u64() >= Some(1));
        assert_eq!(attempts(&failed)[0].1, "tls", "{name}: {failed}");
        let shown = text(&failed["attempt_log"][0], "error");
        assert!(shown.starts_with(error), "{name}: {failed}");
        receiver.upstream().assert_untouched();
    }
}

#[test]
fn plain_text_on_an_https_port_is_a_tls_failure() {
    let stage = Stage::new();
    let plain = Nginx::start(|address, _| format!("server {{ listen {address}; }}\n"));
    let url = format!("https://{}/hook", plain.address());
    stage.dispatcher.create_webhook(&url, &["user.created"]);
    let id = stage.dispatcher.post_event("user.created");
    let acme = stage.dispatcher.acme();
    let failed = acme.wait_for_delivery(&id, |one| one["attempts"].as_u64() >= Some(1));
    assert_eq!(attempts(&failed)[0].1, "tls", "{failed}");
}

/// An nginx that terminates TLS with this certificate in front of a receiver.
#[track_caller]
fn before(receiver: &Receiver, folder: &Authority, name: &str) -> Nginx {
    let upstream = receiver.upstream().address();
    let path = |end: &str| folder.path(&format!("{name}.{end}"));
    let (certificate, key) = (path("crt"), path("key"));
    Nginx::start(|address, _| {
        format!(
            "server {{ listen {address} ssl; ssl_certificate {certificate};\n\
             ssl_certificate_key {key}; location / {{ proxy_pass http://{upstream}; }} }}\n"
        )
    })
}

/// An authority, `ca`, and its certificates: `server` for 127.0.0.1, `elsewhere` for another name,
/// and the expired `lapsed`; `itself` is self-signed.
#[track_caller]
pub(super) fn certificates() -> Authority {
    let authority = Authority::new();
    authority.sign("server", "IP:127.0.0.1", 2);
    authority.sign("elsewhere", "DNS:example.com", 2);
    authority.sign_itself("itself");
    authority.sign_expired("lapsed", "IP:127.0.0.1", "20200201000000Z");
    authority
}
