//! The notifications that systemd receives, and the unit files that it reads.

use std::os::unix::net::UnixDatagram;
use std::process::Command;

use weir_tests::answer::{Answer, Gate};
use weir_tests::config::{Config, DIRECTORY};
use weir_tests::folder::Folder;
use weir_tests::gateway::Gateway;
use weir_tests::process::{self, Process, program};
use weir_tests::request::Request;
use weir_tests::wait;
use weir_tests::world::World;

/// The folder of the units.
const SHIPPED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/systemd");
const UNITS: [&str; 3] = ["weir-gateway.service", "weir-dispatcher.service", "weir-agent.service"];

#[test]
fn systemd_is_notified_of_the_main_process_and_of_its_end() {
    let folder = Folder::new();
    let place = folder.path("notify");
    let supervisor = UnixDatagram::bind(&place).unwrap();
    supervisor.set_read_timeout(Some(wait::PATIENCE)).unwrap();
    let receive = || {
        let mut received = [0; 500];
        let length = supervisor.recv(&mut received).unwrap();
        String::from_utf8_lossy(&received[..length]).into_owned()
    };
    let environment = [("NOTIFY_SOCKET", place.to_str().unwrap())];
    let config = Config::default().to_string();
    let path = program("weir-gateway");
    let mut gateway = Gateway::start_as(&path, &environment, folder, &config, DIRECTORY);
    let serves = |id: u32| format!("READY=1\nMAINPID={id}\nSTATUS=serving");
    assert_eq!(receive(), serves(gateway.id()));
    let new = gateway.upgrade();
    assert_eq!(receive(), serves(new));
    assert_eq!(gateway.wait_for_exit(), Some(0));
    assert!(process::signal(new, "TERM"));
    assert!(receive().starts_with("STOPPING=1\n"), "the old process sent no STOPPING");
}

/// systemd does not wait for a main process that is not its child, as after an upgrade.
#[test]
fn the_stop_command_of_the_unit_ends_with_the_gateway_and_not_before() {
    let text = unit(UNITS[0]);
    let command = text
        .lines()
        .find_map(|line| line.strip_prefix("ExecStop=/bin/sh -c '")?.strip_suffix('\''));
    let command = command.expect("the unit has a stop command");
    let stop = |id: &str| {
        Process::spawn("sh", Command::new("sh").args(["-c", command]).env("MAINPID", id))
    };
    let mut world = World::new();
    let gate = Gate::new();
    world.control.always(Answer::script().wait(&gate).and(Answer::ok("finished")));
    let mut client = world.client();
    client.send(Request::get("/v1/workspaces/ws_acme").head_bytes());
    world.control.wait_for_requests(1);
    let mut stopping = stop(&world.gateway.id().to_string());
    world.gateway.log().wait("the stop", |line| line["message"] == "stopping");
    assert_eq!(stopping.try_wait(), None);
    gate.open();
    client.read().expect(200);
    assert_eq!(world.gateway.wait_for_exit(), Some(0));
    assert_eq!(stopping.wait_for_exit(), Some(0));
    // Where the main process has ended by itself, the variable is empty.
    process::finish(stop("")).expect(0);
}

#[test]
fn systemd_accepts_the_units_and_rates_them_as_sandboxed() {
    for name in UNITS {
        let folder = Folder::new();
        let text = unit(name);
        // The unit's executable has another path here.
        let program_name = name.trim_end_matches(".service");
        let here = program(program_name).display().to_string();
        let text = text.replace(&format!("/usr/local/bin/{program_name}"), &here);
        let path = folder.write(name, &text).display().to_string();
        let verified = analyze(&["verify", "--man=no", &path]).expect(0);
        assert_eq!(verified.output().trim(), "", "{name}");
        // The threshold is in tenths of the exposure level, from 0 (safest) to 10: at most 2.0.
        analyze(&["security", "--offline=yes", "--threshold=20", &path]).expect(0);
    }
}

#[track_caller]
fn unit(name: &str) -> String {
    std::fs::read_to_string(format!("{SHIPPED}/{name}")).unwrap()
}

fn analyze(arguments: &[&str]) -> process::Finished {
    let mut analyze = Command::new("systemd-analyze");
    process::finish(Process::spawn("systemd-analyze", analyze.args(arguments)))
}
