//! The recipe of `deploy/systemd` works: the test runs its commands in a temporary root folder, and
//! both programs start with the installed files as their units specify.
//!
//! Not here: how systemd reads the units (`operating/upgrading/systemd`).

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use weir_tests::client::Client;
use weir_tests::folder::Folder;
use weir_tests::process::{self, Process, program};
use weir_tests::wait;

use super::{root, shipped};

/// Replacements for system commands: they change nothing outside the root folder, need no group on
/// this machine, and record their arguments.
const STAND_INS: &str = r#"
set -eu
sudo() { "$@"; }
cargo() { :; }
systemctl() { echo "systemctl $*" >>"$ROOT/done"; }
systemd-sysusers() { command systemd-sysusers --root="$ROOT"; }
install() {
    echo "install $*" >>"$ROOT/done"
    local kept=() one skipped=0
    for one in "$@"; do
        if [ $skipped -eq 1 ]; then skipped=0; continue; fi
        if [ "$one" = -g ]; then skipped=1; continue; fi
        kept+=("$one")
    done
    command install "${kept[@]}"
}
"#;

#[test]
fn the_recipe_for_systemd_installs_what_both_programs_start_on() {
    let installed = Installed::new();
    for name in ["weir-gateway", "weir-dispatcher"] {
        installed.check(name);
        let unit = installed.unit(name);
        let words: Vec<&str> = value(&unit, "ExecStart").split(' ').collect();
        let state = format!("var/lib/{}", value(&unit, "StateDirectory"));
        fs::create_dir_all(installed.folder.path(&state)).unwrap();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).current_dir(value(&unit, "WorkingDirectory"));
        let started = Process::spawn(name, &mut command);
        let admin = started.listening("admin");
        wait::until(&format!("{name} to be ready"), || {
            let ready = Client::try_connect(&admin).ok()?.get("/readyz");
            (ready.status == 200).then_some(())
        });
    }
    let state = installed.folder.path("var/lib/weir-dispatcher");
    for file in ["dispatcher.db", "dispatcher.db.lock", "secrets.key"] {
        assert_eq!(installed.mode(&state.join(file)), 0o600, "{file}");
    }
}

#[test]
fn the_recipe_for_systemd_leaves_no_path_of_a_clone() {
    let installed = Installed::new();
    let gateway = installed.text("etc/weir/gateway.toml");
    let snapshot = "\nsnapshot = \"/var/lib/weir-gateway/limits.snapshot\"";
    assert!(gateway.contains(&installed.here(snapshot)), "{gateway}");
    let dispatcher = installed.text("etc/weir/dispatcher.toml");
    let events = installed.here("\nfile = \"/etc/weir/events.toml\"");
    assert!(dispatcher.contains(&events), "{dispatcher}");
    for text in [gateway, dispatcher] {
        assert!(!text.contains("\"config/") && !text.contains("\"data/"), "{text}");
    }
}

#[test]
fn a_service_is_started_again_unless_its_configuration_is_at_fault() {
    for name in ["weir-gateway", "weir-dispatcher", "weir-agent"] {
        let unit = shipped(&format!("deploy/systemd/{name}.service"));
        assert_eq!(value(&unit, "Restart"), "on-failure", "{name}");
        assert_eq!(value(&unit, "RestartPreventExitStatus"), "2 64", "{name}");
        assert_eq!(value(&unit, "StartLimitIntervalSec"), "0", "{name}");
    }
}

#[test]
fn installed_files_are_readable_only_by_their_program() {
    let installed = Installed::new();
    let users = installed.text("etc/passwd");
    let done = installed.text("done");
    for (file, mode, reader) in [
        ("gateway.toml", 0o640, Some("weir-gateway")),
        ("dispatcher.toml", 0o640, Some("weir-dispatcher")),
        ("tokens.toml", 0o640, Some("weir-dispatcher")),
        ("events.toml", 0o644, None),
        ("directory.toml", 0o640, None),
    ] {
        let path = installed.folder.path(&format!("etc/weir/{file}"));
        assert_eq!(installed.mode(&path), mode, "{file}");
        let line = done.lines().find(|line| line.contains(&format!("config/{file}"))).unwrap();
        let Some(reader) = reader else { continue };
        assert!(line.contains(&format!(" -g {reader} ")), "{line}");
        assert!(users.contains(&format!("\n{reader}:")) || users.starts_with(reader), "{users}");
        let unit = installed.unit(reader);
        assert_eq!((value(&unit, "User"), value(&unit, "Group")), (reader, reader));
        assert_eq!(value(&unit, "LogRateLimitIntervalSec"), "0");
    }
    assert!(done.contains("systemctl enable --now weir-gateway weir-dispatcher"), "{done}");
    let directory = done.lines().find(|line| line.contains("config/directory.toml")).unwrap();
    assert!(directory.contains(" -g weir "), "{directory}");
    let groups = installed.text("etc/group");
    let members = groups.lines().find(|line| line.starts_with("weir:")).unwrap();
    assert!(members.contains("weir-gateway") && members.contains("weir-dispatcher"), "{members}");
}

#[test]
fn the_recipe_for_agents_installs_what_their_unit_starts() {
    let installed = Installed::new();
    installed.run(&installed.block_with("weir-agent"));
    assert_eq!(installed.mode(&installed.folder.path("etc/weir/agents.toml")), 0o640);
    let token = installed.folder.write("etc/weir/acme.token", "hidden-token");
    let agent = format!(
        "[[agents]]\nname = \"acme\"\nsha256 = \"{}\"\ntoken_file = \"{}\"\n\
         workspace = \"ws_acme\"\n",
        "0f".repeat(32),
        token.display()
    );
    installed.folder.write("etc/weir/agents.toml", &agent);
    let unit = installed.unit("weir-agent");
    assert!(installed.text("etc/passwd").contains("weir-agent:"), "there is no such user");
    assert_eq!((value(&unit, "User"), value(&unit, "Group")), ("weir-agent", "weir-agent"));
    let state = installed.folder.path("var/lib/weir-agent");
    fs::create_dir_all(&state).unwrap();
    let line = value(&unit, "ExecStart").replace("127.0.0.1:9006", "127.0.0.1:0");
    let mut command = Command::new("bash");
    let environment = value(&unit, "Environment");
    command.args(["-c", &format!("export {environment}; exec {line}")]);
    let started = Process::spawn("weir-agent", &mut command);
    let served = started.listening("mcp");
    assert_eq!(Client::connect(&served).get("/mcp").status, 401);
    assert_eq!(installed.mode(&state.join("secrets/acme")), 0o700);
}

/// A root folder in which the recipe was followed; ports are replaced by free ones.
struct Installed {
    folder: Folder,
    recipe: String,
}

impl Installed {
    #[track_caller]
    fn new() -> Self {
        let folder = Folder::new();
        let recipe = shipped("deploy/systemd/README.md");
        let installed = Self { folder, recipe };
        installed.run(&installed.block(0));
        for name in ["etc/weir/gateway.toml", "etc/weir/dispatcher.toml"] {
            let mut text = installed.text(name).replace("[\"127.0.0.1:8080", "[\"127.0.0.1:0");
            for port in ["8081", "9003", "9004", "9005"] {
                text = text.replace(&format!("= \"127.0.0.1:{port}"), "= \"127.0.0.1:0");
            }
            fs::write(installed.folder.path(name), text).unwrap();
        }
        installed
    }

    /// Runs the commands of a block.
    #[track_caller]
    fn run(&self, block: &str) {
        let script = STAND_INS.to_owned() + &self.here(block);
        let mut bash = Command::new("bash");
        bash.args(["-c", &script]).current_dir(root()).env("ROOT", self.folder.root());
        process::finish(Process::spawn("the recipe", &mut bash)).expect(0);
    }

    /// The first block that names a program.
    #[track_caller]
    fn block_with(&self, name: &str) -> String {
        let blocks = self.recipe.split("```sh\n").skip(1);
        let block = blocks.map(|rest| rest.split("```").next().unwrap_or_default());
        block.into_iter().find(|block| block.contains(name)).unwrap_or_default().to_owned()
    }

    /// The lines of one of the recipe's blocks.
    #[track_caller]
    fn block(&self, nth: usize) -> String {
        let block = self.recipe.split("```sh\n").nth(nth + 1).expect("the recipe has this block");
        block.split("```").next().unwrap_or_default().to_owned()
    }

    /// A text with absolute paths moved into the root folder, and with the programs under test.
    fn here(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for name in ["weir-gateway", "weir-dispatcher", "weir-agent"] {
            let built = program(name).display().to_string();
            text = text.replace(&format!("target/release/{name}"), &built);
        }
        for folder in ["/etc/", "/usr/local/", "/var/lib/"] {
            let there = self.folder.path(&folder[1..]).display().to_string();
            text = text.replace(folder, &format!("{there}/"));
        }
        text
    }

    /// Runs the recipe's command that checks a program's configuration.
    #[track_caller]
    fn check(&self, name: &str) {
        let block = self.block(1);
        let start = format!("sudo -u {name} {name} ");
        let arguments = block.lines().find_map(|line| line.strip_prefix(&start));
        let arguments = self.here(arguments.unwrap_or_else(|| panic!("no {start} in\n{block}")));
        let mut check = Command::new(self.folder.path("usr/local/bin").join(name));
        check.args(arguments.split(' '));
        process::finish(Process::spawn(name, &mut check)).expect(0);
    }

    #[track_caller]
    fn unit(&self, name: &str) -> String {
        self.here(&self.text(&format!("etc/systemd/system/{name}.service")))
    }

    #[track_caller]
    fn text(&self, name: &str) -> String {
        let path = self.folder.path(name);
        fs::read_to_string(&path).unwrap_or_else(|why| panic!("{name}: {why}"))
    }

    fn mode(&self, path: &Path) -> u32 {
        let file = fs::metadata(path).unwrap_or_else(|why| panic!("{}: {why}", path.display()));
        file.permissions().mode() & 0o777
    }
}

/// A unit's value of a setting.
#[track_caller]
fn value<'u>(unit: &'u str, name: &str) -> &'u str {
    let line = unit.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    line.unwrap_or_else(|| panic!("no {name} in\n{unit}"))
}
