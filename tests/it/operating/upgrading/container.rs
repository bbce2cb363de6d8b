//! Process 1 of a container stays until the process that has taken over ends.

use std::fs;
use std::process::Command;

use weir_tests::client::Client;
use weir_tests::config::{Config, DIRECTORY};
use weir_tests::folder::Folder;
use weir_tests::gateway;
use weir_tests::process::{self, Process, program};
use weir_tests::upstream::Upstream;
use weir_tests::wait;

use super::TARGET;

/// A gateway as process 1 of a PID namespace. The process ids in its log are valid only inside.
struct Container {
    process: Process,
    folder: Folder,
    /// The id of process 1 outside the namespace.
    first: u32,
}

impl Container {
    fn start(config: &Config) -> Self {
        let folder = Folder::new();
        folder.write(gateway::CONFIG, &config.to_string());
        folder.write(gateway::DIRECTORY, DIRECTORY);
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--pid", "--fork", "--kill-child"]);
        command.arg("--mount-proc").arg(program("weir-gateway"));
        command.args(["run", "--config", gateway::CONFIG]).current_dir(folder.root());
        let process = Process::spawn("unshare", &mut command);
        process.stderr().wait("that it is ready", |line| line["message"] == "ready");
        let children = format!("/proc/{0}/task/{0}/children", process.id());
        let first = fs::read_to_string(children).unwrap().trim().parse().unwrap();
        Self { process, folder, first }
    }

    fn client(&self) -> Client {
        Client::connect(&self.process.listening("http"))
    }

    fn signal(&self, name: &str) {
        assert!(process::signal(self.first, name), "process 1 has ended");
    }

    /// Waits until at least `count` lines have this message.
    fn wait_for(&self, count: usize, message: &str) {
        let output = || {
            let lines = self.process.stderr().json();
            lines.iter().filter(|line| line["message"] == message).count()
        };
        wait::until(message, || (output() >= count).then_some(()));
    }
}

#[test]
fn process_1_upgrades_more_than_once_and_represents_the_serving_process() {
    let upstream = Upstream::start();
    let servers = format!("servers = [\"{}\"]", upstream.address());
    let config = Config::default().with("[upstreams.control]", &servers);
    let mut container = Container::start(&config);
    let left =
        |container: &Container| container.client().get(TARGET).expect(200).allowance().remaining;
    assert_eq!(left(&container), 59);
    for nth in 1..=3 {
        container.signal("USR2");
        container.wait_for(nth + 1, "ready");
        container.wait_for(nth, "handed over");
        assert_eq!(left(&container), 59 - nth as u64, "the counters are kept");
    }
    // A reload reaches the serving process.
    let fewer = config.with("[limits.workspace]", "requests = 50");
    container.folder.write(gateway::CONFIG, &fewer.to_string());
    container.signal("HUP");
    wait::until("the reload", || (left(&container) < 50).then_some(()));
    container.signal("TERM");
    assert_eq!(container.process.wait_for_exit(), Some(0));
    assert!(Client::try_connect(&container.process.listening("http")).is_err());
}

#[test]
fn process_1_ends_with_the_serving_process_and_reports_its_failure() {
    let mut container = Container::start(&Config::default());
    container.signal("USR2");
    container.wait_for(1, "handed over");
    let children = format!("/proc/{0}/task/{0}/children", container.first);
    let serving = fs::read_to_string(children).unwrap().trim().parse().unwrap();
    assert!(process::signal(serving, "KILL"));
    assert_eq!(container.process.wait_for_exit(), Some(1));
    let output = container.process.stderr().to_end();
    assert!(output.contains("the process that took over has ended with exit code 137"), "{output}");
}
