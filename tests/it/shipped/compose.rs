//! The files for two gateways and Valkey work, outside of containers.

use std::process::Command;

use weir_tests::folder::Folder;
use weir_tests::gateway::Gateway;
use weir_tests::real;
use weir_tests::redis::Redis;
use weir_tests::request::Request;
use weir_tests::upstream::Upstream;

use super::shipped;

const COMPOSE: &str = "deploy/compose/compose.yaml";

/// The options that the file gives to Valkey, as a shell passes them on.
fn options(password: &str) -> Vec<String> {
    let text = shipped(COMPOSE);
    let (_, command) = text.split_once("exec valkey-server ").unwrap();
    let (command, _) = command.split_once("    volumes:").unwrap();
    let command = command.replace("$$(cat /run/secrets/valkey-password)", password);
    // The test's own commands need a user, too.
    let command = command.replace("--user default off", "--user default on nopass '~*' +@all");
    let script = format!("printf '%s\\n' {}", command.replace('\n', " "));
    let printed = real::run(Command::new("sh").args(["-c", &script])).expect(0);
    printed.stdout.lines().map(str::to_owned).collect()
}

/// An image of a later compiler would fetch the one of `rust-toolchain.toml` at each build.
#[test]
fn the_image_is_built_by_the_compiler_of_the_repository() {
    let toolchain = shipped("rust-toolchain.toml");
    let channel = toolchain.split("channel = \"").nth(1).and_then(|rest| rest.split('"').next());
    let version = channel.expect("a channel");
    let dockerfile = shipped("deploy/compose/Dockerfile");
    for line in [format!("FROM rust:{version}-"), format!("ENV RUSTUP_TOOLCHAIN={version}\n")] {
        assert!(dockerfile.contains(&line), "{line}");
    }
}

#[test]
fn two_gateways_of_the_compose_file_admit_one_allowance() {
    let (files, backend) = (Folder::new(), Upstream::start());
    let (secret, password) =
        (files.write("secret", &"0123456789".repeat(4)), files.write("password", "open-sesame"));
    let options = options("open-sesame");
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let valkey = Redis::start_valkey(&options);
    let mut config = shipped("deploy/compose/config/gateway.toml");
    for (place, own) in [
        ("0.0.0.0:8080", "127.0.0.1:0".to_owned()),
        ("127.0.0.1:8081", "127.0.0.1:0".to_owned()),
        ("valkey:6379", valkey.address()),
        ("backend:80", backend.address()),
        ("/run/secrets/valkey-password", password.display().to_string()),
        ("/run/secrets/limits-secret", secret.display().to_string()),
        ("/etc/weir/directory.toml", "directory.toml".to_owned()),
    ] {
        assert!(config.contains(place), "{place}");
        config = config.replace(place, &own);
    }
    let directory = shipped("deploy/compose/config/directory.toml");
    let gateways = [(); 2].map(|()| Gateway::start(&config, &directory));
    let status = |nth: usize| {
        let request = Request::get("/v1/workspaces/ws_acme/users").host("api.localhost");
        gateways[nth % 2].client().call(&request).status
    };
    let all: Vec<u16> = (0..65).map(status).collect();
    let count = |status: u16| all.iter().filter(|own| **own == status).count();
    assert_eq!((count(200), count(429)), (60, 5));
    assert_eq!(gateways[1].metric("weir_gateway_store_up"), 1.0);
}
