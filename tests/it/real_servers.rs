//! Third-party programs around the gateway: nginx behind it, curl and wrk in front.
//!
//! If one is missing, its tests fail and name the package.

mod grpc;
mod websockets;

use std::process::Command;

use weir_tests::client::Client;
use weir_tests::folder::Folder;
use weir_tests::nginx::Nginx;
use weir_tests::request::Request;
use weir_tests::world::World;

use crate::targets::{CONTROL_TARGETS, DATA_TARGETS};

#[test]
fn nginx_behind_the_gateway_answers_what_it_answers_alone() {
    let nginx = reading_nginx();
    let world = world_before(&nginx);
    let file = "x".repeat(200_000);
    nginx.folder().write("files/large.txt", &file);
    let mut direct = Client::connect(nginx.address());
    let mut through = world.client();
    for target in ["/assets/large.txt", "/assets/missing.txt", "/v1/me", "/healthz"] {
        let direct = direct.get(target);
        let through = through.get(target);
        assert_eq!((through.status, &through.body), (direct.status, &direct.body), "{target}");
        assert_eq!(through.field("content-type"), direct.field("content-type"), "{target}");
        assert_eq!(through.field("server"), direct.field("server"), "{target}");
    }
    let part = Request::get("/assets/large.txt").field("Range", "bytes=10-19");
    let part = through.call(&part).expect(206);
    assert_eq!(part.body, &file.as_bytes()[10..20]);
}

#[test]
fn nginx_reads_every_forwarded_target_unchanged() {
    let nginx = reading_nginx();
    let world = world_before(&nginx);
    let tables = [
        (CONTROL_TARGETS.concat(), "api.localhost"),
        (DATA_TARGETS.concat(), "in_acme.auth.localhost"),
    ];
    let (mut checked, mut wrong) = (0, Vec::new());
    for (targets, host) in &tables {
        for (start, _) in targets.iter().filter(|(start, _)| start.starts_with(b"GET /")) {
            let head = [*start, b" HTTP/1.1\r\nHost: ", host.as_bytes(), b"\r\n\r\n"].concat();
            let Ok(answer) = world.client().try_exchange(&head) else { continue };
            // Only nginx's own responses show how nginx read a target.
            let Some(uri) = answer.field("x-uri") else { continue };
            let path = start[4..].split(|byte| *byte == b'?').next().unwrap();
            if uri.as_bytes() != [b"[".as_slice(), &decoded(path), b"]"].concat() {
                wrong.push(format!("{} is {uri} to nginx", start.escape_ascii()));
            }
            checked += 1;
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(checked > 40, "only {checked} targets reached nginx");
}

#[test]
fn nginx_accepts_uploads_of_every_kind() {
    let nginx = reading_nginx();
    let world = world_before(&nginx);
    let body = vec![b'u'; 300_000];
    for request in [
        Request::post("/v1/me", body.clone()),
        Request::post("/v1/me", "").chunks(&[&body]),
        Request::post("/v1/workspaces/ws_acme/tenants:batch", "[1,2,3]"),
    ] {
        // nginx answers before it has read the body, so the connection may not be kept.
        let answer = world.call(&request).expect(200);
        assert_eq!(answer.field("x-method"), Some("POST"));
    }
}

#[test]
fn curl_is_served_over_one_connection_with_limit_headers() {
    let world = World::new();
    let url = format!("http://{}/v1/workspaces/ws_acme", world.gateway.http());
    let host = "Host: api.localhost";
    let printed = curl(&[
        "-H",
        host,
        "-w",
        "%{http_code} %{num_connects}\n",
        "-o",
        "none",
        &url,
        "-o",
        "none",
        &url,
    ]);
    assert_eq!(printed, "200 1\n200 0\n");
    let head = curl(&["-H", host, "-I", &url]).to_ascii_lowercase();
    for field in ["x-ratelimit-limit: 60", "x-ratelimit-remaining: 57", "x-ratelimit-reset: "] {
        assert!(head.contains(field), "{head}");
    }
    assert_eq!(curl(&["-H", host, "--http1.0", &url]), "hello");
    let climbed = format!("{url}/../ws_quiet");
    let status = curl(&["-H", host, "--path-as-is", "-w", "%{http_code}", "-o", "none", &climbed]);
    assert_eq!(status, "400");
}

#[test]
fn curl_waits_for_retry_after_and_is_admitted() {
    let world =
        World::with(|config| config.with("[limits.workspace]", "requests = 1\nwindow = \"1s\""));
    let url = format!("http://{}/v1/workspaces/ws_acme", world.gateway.http());
    let patient = ["-H", "Host: api.localhost", "--retry", "5", "-w", "%{http_code}", &url];
    for _ in 0..2 {
        let printed = curl(&patient);
        assert!(printed.ends_with("hello200"), "{printed}");
    }
}

#[test]
fn curl_uploads_batches_with_expect_and_in_chunks() {
    let world = World::new();
    let url = format!("http://{}/v1/workspaces/ws_acme/tenants:batch", world.gateway.http());
    let item = format!("\"{}\"", "x".repeat(5_000));
    let full = format!("[{}]", vec![item.as_str(); 100].join(","));
    let long = format!("[{}]", vec![item.as_str(); 101].join(","));
    let folder = Folder::new();
    let [full, long] = [("full", full), ("long", long)]
        .map(|(name, text)| format!("@{}", folder.write(name, &text).display()));
    let post = |more: &[&str], body: &str| {
        let fixed = ["-H", "Host: api.localhost", "-w", "%{http_code}", "-o", "none"];
        curl(&[&fixed, more, &["--data-binary", body, &url]].concat())
    };
    assert_eq!(post(&["-H", "Expect: 100-continue"], &full), "200");
    assert_eq!(post(&["-H", "Transfer-Encoding: chunked"], &full), "200");
    assert_eq!(post(&["-H", "Expect: 100-continue"], &long), "422");
    assert_eq!(post(&["-H", "Transfer-Encoding: chunked"], &long), "422");
    assert_eq!(world.control.requests().len(), 2);
}

#[test]
fn wrk_gets_sixty_answers_however_hard_it_tries() {
    let world = World::new();
    let url = format!("http://{}/v1/workspaces/ws_acme", world.gateway.http());
    let printed = output(
        Command::new("wrk").args(["-t2", "-c32", "-d1s", "-H", "Host: api.localhost", &url]),
        "wrk",
    );
    let number = |words: &str, before: bool| -> u64 {
        let line = printed
            .lines()
            .find(|line| line.contains(words))
            .unwrap_or_else(|| panic!("{printed}"));
        let (left, right) = line.split_once(words).unwrap();
        let digits = if before { left } else { right };
        digits.trim().parse().unwrap_or_else(|_| panic!("{printed}"))
    };
    let all = number(" requests in", true);
    let refused = number("Non-2xx or 3xx responses:", false);
    assert_eq!(all - refused, 60, "{printed}");
    assert!(!printed.contains("Socket errors"), "{printed}");
    assert_eq!(world.control.requests().len(), 60);
}

/// The output of curl, without its progress.
#[track_caller]
fn curl(arguments: &[&str]) -> String {
    let folder = Folder::new();
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--max-time", "20"]).args(arguments);
    output(curl.current_dir(folder.root()), "curl")
}

/// The standard output of a program, if it succeeds.
#[track_caller]
fn output(command: &mut Command, package: &str) -> String {
    let finished = command
        .output()
        .unwrap_or_else(|error| panic!("{package} does not run ({error}): install it with apt"));
    let errors = String::from_utf8_lossy(&finished.stderr).into_owned();
    assert!(finished.status.success(), "{package}: {} {errors}", finished.status);
    String::from_utf8(finished.stdout).unwrap()
}

/// The path as RFC 3986 decodes it, once.
fn decoded(path: &[u8]) -> Vec<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).unwrap();
    let mut bytes = Vec::new();
    let mut rest = path;
    while let [first, tail @ ..] = rest {
        (bytes, rest) = match (first, tail) {
            (b'%', [high, low, tail @ ..]) => {
                let byte = u8::try_from(digit(*high) * 16 + digit(*low)).unwrap();
                ([bytes, vec![byte]].concat(), tail)
            }
            _ => ([bytes, vec![*first]].concat(), tail),
        };
    }
    bytes
}

/// An nginx that responds with its own parse of each request.
#[track_caller]
fn reading_nginx() -> Nginx {
    Nginx::start(|address, root| {
        let root = root.display();
        format!(
            "server {{\n\
               listen {address}; merge_slashes on;\n\
               add_header X-Uri \"[$uri]\" always; add_header X-Method $request_method always;\n\
               location /assets/ {{ alias {root}/files/; }}\n\
               location / {{ return 200 \"nginx\\n\"; }}\n\
             }}\n"
        )
    })
}

/// A world with this nginx as every upstream.
#[track_caller]
fn world_before(nginx: &Nginx) -> World {
    let servers = format!("servers = [\"{}\"]", nginx.address());
    World::with(|config| {
        config
            .with("[upstreams.control]", &servers)
            .with("[upstreams.data]", &servers)
            .with("[upstreams.dispatcher]", &servers)
            .with("[limits.workspace]", "requests = 4000")
            .with("[limits.organisation]", "requests = 4000")
            .with("[limits.address]", "requests = 4000")
            .with("[limits.instance]", "rate = 1000\nburst = 4000")
    })
}
