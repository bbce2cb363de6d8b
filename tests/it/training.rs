//! The training that a release's profile is recorded in (`scripts/release`), in small: a gateway
//! answers all of it and stops in order, or the training fails.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use weir_tests::folder::Folder;
use weir_tests::process::{Finished, Process, program};

/// Starts twelve gateways, on a machine that runs other tests too.
const PATIENCE: Duration = Duration::from_secs(120);

const PARTS: [&str; 10] = [
    "control",
    "data-logged",
    "refused",
    "shipped",
    "tokens",
    "shared-windows",
    "shared-bucket",
    "shared-refused",
    "tls",
    "tls-refused",
];

#[test]
fn a_gateway_answers_all_of_the_training() {
    let finished = train(&program("weir-gateway")).expect(0);
    for part in PARTS {
        let is_of_part = |line: &str| line.starts_with(&format!("{part}: "));
        let line = finished.stdout.lines().find(|line| is_of_part(line));
        assert!(
            line.is_some_and(|line| line.ends_with("0 requests answered as expected")),
            "{part}"
        );
    }
}

#[test]
fn a_gateway_that_admits_what_should_be_refused_fails_the_training() {
    let admitting = "sed -i 's/^requests = 1$/requests = 4000/' \"$3\"\nexec \"$gateway\" \"$@\"";
    let finished = train_script(admitting).expect(1);
    let stderr = &finished.stderr;
    assert!(stderr.starts_with("refused-logged, ") && stderr.contains("Refused(429)"), "{stderr}");
}

#[test]
fn a_gateway_that_does_not_stop_in_order_fails_the_training() {
    let failing = "\"$gateway\" \"$@\" &\ntrap 'kill $!; wait $!; exit 3' TERM\nwait $!";
    let finished = train_script(failing).expect(1);
    assert!(finished.stderr.contains("ended with exit status: 3"), "{}", finished.stderr);
}

/// Trains a script in the place of the gateway, whose path it has in `$gateway`.
fn train_script(lines: &str) -> Finished {
    let folder = Folder::new();
    let gateway = program("weir-gateway");
    let text = format!("#!/bin/sh\ngateway='{}'\n{lines}\n", gateway.display());
    let script = folder.write("gateway", &text);
    fs::set_permissions(&script, Permissions::from_mode(0o755)).unwrap();
    train(&script)
}

fn train(gateway: &Path) -> Finished {
    let gateway = gateway.display().to_string();
    let arguments = ["--gateway", gateway.as_str(), "--requests", "50"];
    let folder = Folder::new();
    let mut process = Process::start("train", &folder, &arguments);
    let code = process.wait_for_exit_within(PATIENCE);
    Finished { code, stdout: process.stdout().to_end(), stderr: process.stderr().to_end() }
}
