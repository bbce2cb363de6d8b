//! The notifications that systemd receives, and the unit files that it reads.

use std::os::unix::net::UnixDatagram;
use std::process::Command;

use weir_tests::config::{Config, DIRECTORY};
use weir_tests::folder::Folder;
use weir_tests::gateway::Gateway;
use weir_tests::process::{self, Process, program};
use weir_tests::wait;

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

#[test]
fn systemd_accepts_the_units_and_rates_them_as_sandboxed() {
    for unit in ["weir-gateway.service", "weir-dispatcher.service", "weir-agent.service"] {
        let folder = Folder::new();
        let shipped = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/systemd");
        let text = std::fs::read_to_string(format!("{shipped}/{unit}")).unwrap();
        // The unit's executable has another path here.
        let name = unit.trim_end_matches(".service");
        let here = program(name).display().to_string();
        let text = text.replace(&format!("/usr/local/bin/{name}"), &here);
        let path = folder.write(unit, &text).display().to_string();
        let verified = analyze(&["verify", "--man=no", &path]).expect(0);
        assert_eq!(verified.output().trim(), "", "{unit}");
        // The threshold is in tenths of the exposure level, from 0 (safest) to 10: at most 2.0.
        analyze(&["security", "--offline=yes", "--threshold=20", &path]).expect(0);
    }
}

fn analyze(arguments: &[&str]) -> process::Finished {
    let mut analyze = Command::new("systemd-analyze");
    process::finish(Process::spawn("systemd-analyze", analyze.args(arguments)))
}
