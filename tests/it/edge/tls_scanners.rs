//! Two TLS scanners, sslscan and testssl, find no weakness.

use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use weir_tests::authority::Authority;
use weir_tests::process::Process;
use weir_tests::real;

use super::{NAMES, world_of};

/// testssl is a slow shell script: it takes half a minute on an idle machine.
const TESTSSL_PATIENCE: Duration = Duration::from_secs(240);

#[test]
fn sslscan_finds_nothing_old_and_nothing_weak() {
    let authority = Authority::new();
    let world = world_of(&authority, &[("server", NAMES)], "", |config| config);
    let mut scan = Command::new("sslscan");
    scan.args(["--no-colour", "--xml=-", "--sni-name=api.localhost", &world.gateway.https()]);
    let xml = real::run(&mut scan).expect(0).stdout;
    let protocol = |kind: &str, version: &str| {
        let start = format!("<protocol type=\"{kind}\" version=\"{version}\" enabled=\"");
        let (_, rest) = xml.split_once(&start).unwrap_or_else(|| panic!("no {start} in {xml}"));
        rest.starts_with('1')
    };
    for (kind, version, enabled) in [
        ("ssl", "2", false),
        ("ssl", "3", false),
        ("tls", "1.0", false),
        ("tls", "1.1", false),
        ("tls", "1.2", true),
        ("tls", "1.3", true),
    ] {
        assert_eq!(protocol(kind, version), enabled, "{kind} {version}: {xml}");
    }
    assert!(!xml.contains("<compression supported=\"1\""), "{xml}");
    assert!(xml.contains("<renegotiation supported=\"0\""), "{xml}");
    assert!(!xml.contains("vulnerable=\"1\""), "{xml}");
    let ciphers: Vec<&str> = xml.lines().filter(|line| line.contains("<cipher ")).collect();
    assert!(ciphers.len() >= 5, "{xml}");
    for cipher in ciphers {
        // sslscan rates the ciphers of TLS 1.3 only by key size, and none of them better than this.
        let strength = ["strong", "acceptable"].map(|word| format!("strength=\"{word}\""));
        assert!(strength.iter().any(|strength| cipher.contains(strength)), "{cipher}");
        assert!(["GCM", "CHACHA20"].iter().any(|aead| cipher.contains(aead)), "{cipher}");
    }
}

#[test]
fn testssl_finds_no_weakness() {
    let authority = Authority::new();
    let world = world_of(&authority, &[("server", NAMES)], "", |config| config);
    let file = authority.path("testssl.json");
    let mut testssl = Command::new("testssl");
    testssl.args(["--quiet", "--warnings", "off", "--color", "0"]);
    testssl.args(["--ip", "one", "--jsonfile", &file, "--protocols", "--renegotiation"]);
    testssl.args(["--compression", "--heartbleed", "--ccs-injection"]);
    let mut testssl = Process::spawn("testssl", testssl.arg(world.gateway.https()));
    testssl.wait_for_exit_within(TESTSSL_PATIENCE);
    let output = || panic!("{}", testssl.stdout().text());
    let found = std::fs::read_to_string(&file).unwrap_or_else(|_| output());
    let found: Value = serde_json::from_str(&found).unwrap();
    let found = found.as_array().unwrap();
    let of = |id: &str| {
        let one = found.iter().find(|one| one["id"] == id);
        one.unwrap_or_else(|| panic!("nothing on {id} in {found:?}"))
    };
    for id in ["SSLv2", "SSLv3", "TLS1", "TLS1_1"] {
        assert_eq!(of(id)["finding"].as_str().map(|f| f.starts_with("not offered")), Some(true));
    }
    for id in ["TLS1_2", "TLS1_3"] {
        assert!(of(id)["finding"].as_str().unwrap().starts_with("offered"), "{}", of(id));
    }
    for id in ["secure_client_renego", "CRIME_TLS"] {
        assert!(of(id)["finding"].as_str().unwrap().contains("not vulnerable"), "{}", of(id));
    }
    // A finding about testssl's own openssl is not about the gateway.
    let fine = |one: &&Value| {
        ["OK", "INFO"].contains(&one["severity"].as_str().unwrap()) || one["id"] == "engine_problem"
    };
    let worries: Vec<_> = found.iter().filter(|one| !fine(one)).collect();
    assert!(worries.is_empty(), "{worries:#?}");
}
