//! Signatures verify with every documented snippet and package, and forgeries do not.
//!
//! The same deliveries are verified by the snippets of `docs/verify/` and by the packages of Stripe
//! and of Standard Webhooks; Ed25519 signatures by another implementation.

use std::process::Command;

use serde_json::{Value, json};
use weir_tests::folder::Folder;
use weir_tests::process::Finished;
use weir_tests::real;
use weir_tests::receiver::{Delivered, sign, sign_standard};
use weir_tests::wait;

use super::{Stage, text};

#[allow(unreachable_pub, reason = "it is written for others")]
#[path = "../../../docs/verify/verify.rs"]
mod snippet;

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYo=";
const BODY: &str = "{\"id\":\"evt_1\",\"type\":\"user.created\",\"data\":{\"name\":\"Zoë\"}}";

/// A delivery in files, as input of a receiver's program.
struct Case {
    folder: Folder,
    secret: String,
    headers: Value,
}

impl Case {
    fn new(secret: &str, headers: Value, body: &[u8]) -> Self {
        let folder = Folder::new();
        folder.write("headers.json", &headers.to_string());
        std::fs::write(folder.path("body"), body).unwrap();
        Self { folder, secret: secret.to_owned(), headers }
    }

    /// A delivery that the test signs, with a time `ago` seconds in the past; `body` may be forged.
    fn signed(ago: u64, body: &str) -> Self {
        let t = wait::unix_seconds() - ago;
        let [old, new] = ["whsec_b2xk", SECRET].map(|secret| sign(secret, t, BODY.as_bytes()));
        let headers = json!({
            "service-signature": format!("t={t},v1={old},v1={new}"),
            "webhook-id": "evt_1",
            "webhook-timestamp": t.to_string(),
            "webhook-signature": sign_standard(SECRET, "evt_1", t, BODY.as_bytes()),
        });
        Self::new(SECRET, headers, body.as_bytes())
    }

    /// A delivery as the dispatcher sent it.
    fn captured(delivered: &Delivered, secret: &str) -> Self {
        let fields = delivered.head.fields.iter();
        let headers = fields.map(|(name, value)| (name.to_lowercase(), Value::from(&**value)));
        Self::new(secret, Value::Object(headers.collect()), &delivered.body)
    }

    fn signature(&self) -> &str {
        self.headers["service-signature"].as_str().unwrap()
    }

    /// The result of one third-party package.
    fn package(&self, mut command: Command, package: &str) -> Finished {
        command.args([package, &self.secret]);
        real::run(command.args(["headers.json", "body"].map(|name| self.folder.path(name))))
    }

    /// The results of all third-party packages.
    fn packages(&self) -> Vec<(String, Finished)> {
        let mut all = Vec::new();
        for package in ["stripe", "standardwebhooks"] {
            let python = real::python("tests/real/verify.py");
            all.push((format!("{package} of PyPI"), self.package(python, package)));
            let node = real::node("tests/real/verify.mjs");
            all.push((format!("{package} of npm"), self.package(node, package)));
        }
        all
    }

    /// The verdict of every snippet that can run on this machine.
    fn snippets(&self) -> Vec<(&'static str, bool)> {
        let body = std::fs::read(self.folder.path("body")).unwrap();
        let rust = snippet::verify(&self.secret, self.signature(), &body, wait::unix_seconds());
        let mut all = vec![("verify.rs", rust)];
        for (name, mut command) in [
            ("verify.py", real::python("tests/real/snippet.py")),
            ("verify.mjs", real::node("tests/real/snippet.mjs")),
        ] {
            command.arg(real::root().join("docs/verify").join(name));
            all.push((name, self.accepts(&mut command)));
        }
        all.extend(self.accepts_in_go().map(|printed| ("verify.go", printed)));
        all
    }

    fn accepts(&self, command: &mut Command) -> bool {
        command.args([&self.secret, self.signature()]).arg(self.folder.path("body"));
        real::run(command).expect(0).stdout.trim().parse().unwrap()
    }

    fn accepts_in_go(&self) -> Option<bool> {
        if Command::new("go").arg("version").output().is_err() {
            eprintln!("docs/verify/verify.go was not run: there is no go on this machine");
            return None;
        }
        let read = |path: &str| std::fs::read_to_string(real::root().join(path)).unwrap();
        self.folder.write("go.mod", "module snippet\n\ngo 1.19\n");
        self.folder.write("main.go", &read("tests/real/snippet.go"));
        self.folder.write("verify/verify.go", &read("docs/verify/verify.go"));
        let program = self.folder.path("snippet");
        let mut build = Command::new("go");
        build.args(["build", "-o"]).arg(&program).current_dir(self.folder.root());
        real::run(&mut build).expect(0);
        Some(self.accepts(&mut Command::new(program)))
    }
}

#[test]
fn third_party_packages_accept_our_signatures() {
    for (name, finished) in Case::signed(0, BODY).packages() {
        assert_eq!(finished.code, Some(0), "{name}: {}", finished.output());
    }
}

#[test]
fn third_party_packages_refuse_forged_and_stale_signatures() {
    for case in [Case::signed(0, &BODY.replace("Zoë", "Zoe")), Case::signed(400, BODY)] {
        for (name, finished) in case.packages() {
            assert_ne!(finished.code, Some(0), "{name}");
            let printed = finished.output().to_lowercase();
            assert!(
                ["signature", "timestamp", "tolerance"].iter().any(|word| printed.contains(word)),
                "{name} broke rather than refuse: {printed}"
            );
        }
    }
}

#[test]
fn the_documented_snippets_accept_true_and_refuse_forged_signatures() {
    let enormous = json!({ "service-signature": format!("t={},v1=a", "9".repeat(5_000)) });
    for (case, good) in [
        (Case::signed(0, BODY), true),
        (Case::signed(290, BODY), true),
        (Case::signed(310, BODY), false),
        (Case::signed(0, &format!("{BODY} ")), false),
        (Case::new(SECRET, json!({ "service-signature": "" }), b"{}"), false),
        (Case::new(SECRET, json!({ "service-signature": "t=x,v1=é,=" }), b"{}"), false),
        (Case::new(SECRET, enormous, b"{}"), false),
    ] {
        for (name, printed) in case.snippets() {
            assert_eq!(printed, good, "{name} of {}", case.headers);
        }
    }
}

#[test]
fn a_real_delivery_verifies_with_every_package_and_every_snippet() {
    let stage = Stage::new();
    let webhook = stage.webhook("/hook", &["user.created"]);
    stage.dispatcher.post_event("user.created");
    let delivered = stage.receiver.wait(1).remove(0);
    delivered.verify(&webhook.secret);
    delivered.verify_standard(&webhook.secret);
    let case = Case::captured(&delivered, &webhook.secret);
    for (name, finished) in case.packages() {
        assert_eq!(finished.code, Some(0), "{name}: {}", finished.output());
    }
    for (name, printed) in case.snippets() {
        assert!(printed, "{name}");
    }
}

#[test]
fn an_ed25519_signature_verifies_with_the_public_key_that_the_api_shows() {
    let stage = Stage::new();
    let acme = stage.dispatcher.acme();
    let url = stage.receiver.url("/hook");
    let body = json!({ "url": url, "events": ["user.created"], "ed25519": true });
    let made = acme.post("/webhooks", &body).expect(201).json();
    let path = format!("/webhooks/{}", text(&made, "id"));
    let change = |ed25519| acme.call("PATCH", &path, Some(&json!({ "ed25519": ed25519 })));
    assert_eq!(change(true).expect(200).json()["public_key"], made["public_key"], "it stays");
    stage.dispatcher.post_event("user.created");
    let delivered = stage.receiver.wait(1).remove(0);
    delivered.verify(text(&made, "secret"));
    let key = text(&made, "public_key");
    let package = |case: &Case| case.package(real::python("tests/real/verify.py"), "cryptography");
    let case = Case::captured(&delivered, key);
    package(&case).expect(0);
    for (name, finished) in Case::captured(&delivered, text(&made, "secret")).packages() {
        assert_eq!(finished.code, Some(0), "{name}: {}", finished.output());
    }
    let forged = package(&Case::new(key, case.headers, b"{}"));
    assert!(forged.output().contains("InvalidSignature"), "{}", forged.output());
    assert_eq!(change(false).expect(200).json()["public_key"], Value::Null);
    stage.dispatcher.post_event("user.created");
    let delivered = stage.receiver.wait(2).remove(1);
    let plain = Case::captured(&delivered, text(&made, "secret"));
    assert!(!text(&plain.headers, "webhook-signature").contains("v1a"), "{}", plain.headers);
    assert_ne!(change(true).expect(200).json()["public_key"], made["public_key"], "it is another");
}

#[test]
fn ed25519_needs_the_headers_that_have_its_signature() {
    let stage = Stage::with(|config| config.with("[signature]", "standard_webhooks = false"));
    let body = json!({ "url": stage.receiver.url("/"), "events": [], "ed25519": true });
    let refused = stage.dispatcher.acme().post("/webhooks", &body).expect(422).json();
    assert!(refused.to_string().contains("/ed25519"), "{refused}");
}
