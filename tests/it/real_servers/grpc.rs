//! gRPC through the gateway with a third-party server and client: TLS in front, HTTP/2 with and
//! without TLS behind.

use weir_tests::authority::Authority;
use weir_tests::process::{Process, finish};
use weir_tests::real;
use weir_tests::request::Request;
use weir_tests::world::World;

use crate::proxying::tls::certificates;

#[test]
fn every_kind_of_call_passes_with_its_trailers() {
    let files = certificates();
    for secure in [false, true] {
        let server = server(&files, secure);
        let world = world_before(&server, &files, secure, "");
        let output = call(&world, &files, &[]);
        for name in ["unary", "fails", "both_stream", "large", "many_at_once", "deadline_is_told"] {
            assert!(output.lines().any(|line| line == format!("ok {name}")), "{output}");
        }
        for name in ["cancel", "deadline"] {
            server.stderr().wait("that the call was cancelled", |line| {
                line["message"] == "cancelled" && line["name"] == name
            });
        }
    }
}

#[test]
fn a_call_beyond_its_limit_gets_resource_exhausted() {
    let files = certificates();
    let server = server(&files, false);
    let world = world_before(&server, &files, false, "");
    let low = world.config().with("[limits.address]", "requests = 1");
    world.gateway.write_config(&low.to_string());
    world.gateway.reload().expect(200);
    call(&world, &files, &["empty"]);
    let mut command = client(&world, &files, &["empty"]);
    let refused = finish(Process::spawn("grpc_client", &mut command));
    // A gRPC status, not HTTP's 429, which gRPC clients would read as UNAVAILABLE.
    assert!(refused.stderr.contains("StatusCode.RESOURCE_EXHAUSTED"), "{}", refused.stderr);
}

#[test]
fn a_stream_that_is_silent_for_longer_than_the_read_timeout_is_cut() {
    let files = certificates();
    let server = server(&files, false);
    let world = world_before(&server, &files, false, "read_timeout = \"500ms\"");
    let output = call(&world, &files, &["idle"]);
    assert!(output.contains("idle ended as StatusCode."), "{output}");
    server.stderr().wait("that the server heard of it", |line| line["message"] == "cancelled");
    // A server whose messages are slow, but within the timeout, is not cut off.
    call(&world, &files, &["server_streams"]);
    world.gateway.call_admin(&Request::get("/livez")).expect(200);
}

fn server(files: &Authority, secure: bool) -> Process {
    let mut command = real::python("tests/real/grpc_server.py");
    if secure {
        command.arg(files.path("server.crt")).arg(files.path("server.key"));
    }
    Process::spawn("grpc_server", &mut command)
}

#[track_caller]
fn world_before(server: &Process, files: &Authority, secure: bool, more: &str) -> World {
    let tls = if secure {
        format!("tls = true\nserver_name = \"backend.test\"\nca = \"{}\"", files.path("ca.crt"))
    } else {
        String::new()
    };
    let address = server.listening("grpc");
    let upstream = format!("servers = [\"{address}\"]\nhttp = \"2\"\n{tls}\n{more}");
    let https = files.entry_of("server");
    World::with(|config| {
        config
            .with("[[server.https]]", &https)
            .with("[upstreams.grpc]", &upstream)
            .with("[limits.address]", "requests = 1000")
            .with(
                "[[routes]]",
                "plane = \"control\"\npath = \"/weir.Test/{*rest}\"\nlimits = [\"address\"]\n\
                 upstream = \"grpc\"",
            )
    })
}

fn client(world: &World, files: &Authority, names: &[&str]) -> std::process::Command {
    let mut command = real::python("tests/real/grpc_client.py");
    command.arg(world.gateway.https()).arg(files.path("ca.crt")).args(names);
    command
}

#[track_caller]
fn call(world: &World, files: &Authority, names: &[&str]) -> String {
    let mut command = client(world, files, names);
    let done = finish(Process::spawn("grpc_client", &mut command));
    done.expect(0).stdout
}
