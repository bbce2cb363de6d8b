//! The way to the store with TLS.

use weir_tests::authority::Authority;
use weir_tests::config::{Config, DIRECTORY};
use weir_tests::folder::Folder;
use weir_tests::gateway::Gateway;
use weir_tests::redis::Redis;
use weir_tests::request::Request;
use weir_tests::wait;

use super::connecting::{refused_with, why};
use super::{Fleet, TARGET, count, store};

/// The certificate and key of the server, and the root.
const FILES: [&str; 3] = ["server.crt", "server.key", "ca.crt"];

/// A server with these files.
#[track_caller]
fn redis([certificate, key, ca]: &[String; 3]) -> Redis {
    let options = ["--tls-cert-file", certificate, "--tls-key-file", key, "--tls-ca-cert-file", ca];
    Redis::start(&[&options[..], &["--tls-auth-clients", "no"]].concat())
}

#[test]
fn a_store_is_reached_over_tls() {
    let authority = Authority::of_server();
    let files = FILES.map(|name| authority.path(name));
    let (redis, [_, _, ca]) = (redis(&files), &files);
    let port = redis.address().split_off("127.0.0.1".len());
    let at = |host: &str, ca: &str| format!("url = \"rediss://{host}{port}\"\n{ca}");
    let trusted = format!("ca = \"{ca}\"");
    let fleet = Fleet::of(redis, 2, |config| config.with("[store]", &at("localhost", &trusted)));
    assert_eq!(count(&fleet.at_once(1, 35, &Request::get(TARGET)), 200), 60);

    for (host, ca, words) in [
        ("localhost", String::new(), "certificate"),
        ("[::ffff:127.0.0.1]", trusted, "certificate"),
    ] {
        let config = fleet.config.clone().without("[store]");
        let lines = format!("{}\n{}", store("redis://x", &fleet.files), at(host, &ca));
        let config = lines.lines().fold(config, |config, line| config.with("[store]", line));
        let gateway = Gateway::start(&config.to_string(), DIRECTORY);
        let why = why(&gateway);
        assert!(why.to_lowercase().contains(words), "{why}");
    }
}

#[test]
fn an_unknown_root_is_logged_and_a_new_one_trusted_from_the_next_connection_on() {
    let (files, authorities) = (Folder::new(), [(); 2].map(|()| Authority::of_server()));
    let place = |from: &Authority| {
        FILES.map(|name| files.write(name, &from.read(name)).display().to_string())
    };
    let paths = place(&authorities[0]);
    let redis = redis(&paths);
    let port = redis.address().split_off("127.0.0.1".len());
    let at = format!("url = \"rediss://localhost{port}\"\nca = \"{}\"", paths[2]);
    let fleet = Fleet::of(redis, 1, |config| config.with("[store]", &at));
    let called = || fleet.gateways[0].metric("weir_gateway_store_decisions_total{kind=\"call\"}");
    fleet.get(0, TARGET).expect(200);
    assert_eq!(called(), 1.0);
    let [certificate, key, ca] = place(&authorities[1]);
    std::fs::write(&ca, authorities[0].read("ca.crt")).unwrap();
    fleet.redis.run(&format!("CONFIG SET tls-cert-file {certificate} tls-key-file {key}"));
    fleet.redis.run("CLIENT KILL TYPE normal");
    fleet.gateways[0].log().wait("why the store is away", |line| {
        line["error"].as_str().is_some_and(|why| why.contains("invalid peer certificate"))
    });
    place(&authorities[1]);
    wait::until("the store to be asked again", || {
        fleet.get(0, TARGET);
        (called() > 1.0).then_some(())
    });
}

#[test]
fn a_file_of_roots_that_has_none_is_an_error_in_the_settings() {
    let files = Folder::new();
    let file = files.write("ca.crt", "no PEM").display().to_string();
    let output = refused_with("rediss://localhost:1", &format!("ca = \"{file}\""));
    assert!(output.contains(&format!("`{file}` has no certificate")), "{output}");
}

#[test]
fn which_side_lacks_tls_is_logged() {
    let authority = Authority::of_server();
    let (with, without) = (redis(&FILES.map(|name| authority.path(name))), Redis::start(&[]));
    for (server, scheme, more, words) in [
        (&without, "rediss", "", "speak TLS?"),
        (&with, "redis", "", "want TLS, by rediss://?"),
        (&with, "redis", "cluster = true", "want TLS, by rediss://?"),
        (&with, "redis", "sentinel = \"primary\"", "want TLS, by rediss://?"),
    ] {
        let files = Folder::new();
        let lines = store(&format!("{scheme}://{}", server.address()), &files);
        let lines = format!("{lines}\n{more}");
        let gateway =
            Gateway::start(&Config::default().with("[store]", &lines).to_string(), DIRECTORY);
        let why = why(&gateway);
        assert!(why.contains(words), "{why}");
    }
}
