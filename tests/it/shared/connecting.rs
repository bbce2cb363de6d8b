//! How gateways reach the store, and which stores they do not use.

use weir_tests::config::{Config, DIRECTORY};
use weir_tests::folder::Folder;
use weir_tests::gateway::{self, CONFIG, Gateway};
use weir_tests::process::Finished;
use weir_tests::redis::{Redis, Reply};
use weir_tests::request::{Request, data_host};
use weir_tests::upstream::Upstream;
use weir_tests::wait;

use super::{Fleet, TARGET, count, store};

/// What a user of the store must be allowed, as docs/scaling.md has it.
pub(super) const RIGHTS: &str = "~weir1:* -@all +info +time +evalsha +script|load +get +set \
    +getrange +setrange +del +pexpire +incr +hset +hdel +hgetall +zadd +zrangebyscore \
    +zremrangebyrank";

/// A user that can do all.
const PASSWORD: &str = "correct-horse";

/// The end of a gateway that does not start with this configuration.
#[track_caller]
fn refused(config: &Config) -> Finished {
    run(config, "run")
}

#[track_caller]
fn run(config: &Config, command: &str) -> Finished {
    let folder = Folder::new();
    folder.write(CONFIG, &config.to_string());
    folder.write(gateway::DIRECTORY, DIRECTORY);
    gateway::run(&folder, &[command, "--config", CONFIG])
}

/// What a gateway says that does not start with a store at this URL, and this line.
#[track_caller]
pub(super) fn refused_with(url: &str, line: &str) -> String {
    let files = Folder::new();
    let config = Config::default().with("[store]", &store(url, &files)).with("[store]", line);
    let ended = refused(&config);
    assert_ne!(ended.code, Some(0));
    ended.output()
}

/// Why a gateway has no connection, from its log.
#[track_caller]
pub(super) fn why(gateway: &Gateway) -> String {
    let line = gateway
        .log()
        .wait("why there is no connection", |line| line["message"] == "shared store unavailable");
    line["error"].as_str().unwrap().to_owned()
}

#[test]
fn a_store_that_was_never_reached_leaves_each_gateway_its_share() {
    let (nowhere, upstream, files) = (Upstream::refusing(), Upstream::start(), Folder::new());
    let url = format!("redis://{}", nowhere.address());
    let config = Config::default()
        .with("[upstreams.control]", &format!("servers = [\"{}\"]", upstream.address()))
        .with("[store]", &format!("{}\ngateways = 2", store(&url, &files)))
        .with("[limits.workspace]", "requests = 20");
    let gateways = [(); 2].map(|()| Gateway::start(&config.to_string(), DIRECTORY));
    for gateway in &gateways {
        assert!(why(gateway).contains("refused"), "{}", why(gateway));
        let mut client = gateway.client();
        let statuses = (0..12).map(|_| client.get(TARGET).status);
        assert_eq!(statuses.filter(|status| *status == 200).count(), 10);
    }
}

/// The numbers of the connections that gateways have, in the order in which they were opened.
fn connections(redis: &Redis) -> Vec<u64> {
    let Reply::Text(list) = redis.run("CLIENT LIST TYPE normal") else { panic!("no text") };
    // The tests' own come over a UNIX socket.
    let of_gateways = list.lines().filter(|line| line.contains("addr=127.0.0.1:"));
    let number = |line: &str| line.strip_prefix("id=")?.split(' ').next()?.parse().ok();
    of_gateways.map(|line| number(line).unwrap()).collect()
}

#[test]
fn each_worker_has_a_connection_of_its_own_and_one_that_is_cut_admits_nothing_twice() {
    let limits = ["[limits.workspace]", "[limits.organisation]"];
    let change =
        |config| limits.iter().fold(config, |to: Config, of| to.with(of, "requests = 1_000_000"));
    let (fleet, mut admitted) = (Fleet::of(Redis::start(&[]), 1, change), 0);
    let mut some = || admitted += count(&fleet.at_once(4, 1, &Request::get(TARGET)), 200);
    let cut = wait::until("both workers to have one besides the first", || {
        some();
        <[u64; 3]>::try_from(connections(&fleet.redis)).ok()
    });
    cut[1..].iter().for_each(|own| drop(fleet.redis.run(&format!("CLIENT KILL ID {own}"))));
    let renewed = wait::until("both workers to have others", || {
        some();
        <[u64; 3]>::try_from(connections(&fleet.redis)).ok()
    });
    assert_eq!(renewed[0], cut[0], "the first one stays");
    assert!(!fleet.gateways[0].log().text().contains("shared store unavailable"));
    wait::until("what was admitted to be in the store, once", || {
        (fleet.gateways[0].used("workspace", "ws_acme") == admitted as u64).then_some(())
    });
}

#[test]
fn a_password_is_read_from_its_file_at_each_connection() {
    let files = Folder::new();
    let file = files.write("password", PASSWORD);
    let redis = Redis::start(&["--requirepass", PASSWORD]);
    let fleet = Fleet::of(redis, 1, |config| {
        config.with("[store]", &format!("password_file = \"{}\"", file.display()))
    });
    assert_eq!(fleet.get(0, TARGET).expect(200).allowance().remaining, 59);
    assert!(fleet.redis.calls("getrange") > 0);

    files.write("password", "wrong");
    fleet.redis.run("ACL LOG RESET");
    fleet.redis.run("CLIENT KILL TYPE normal");
    let fails = || format!("{:?}", fleet.redis.run("ACL LOG")).contains("auth");
    wait::until("another connection to fail", || fails().then_some(()));
    files.write("password", PASSWORD);
    fleet.gateways[0].log().wait("the return", |line| line["message"] == "shared store available");
    fleet.get(0, TARGET).expect(200);
    assert!(!fleet.gateways[0].log().text().contains(PASSWORD));
}

#[test]
fn a_wrong_password_is_reported_at_the_start() {
    let files = Folder::new();
    let wrong = files.write("password", "wrong");
    for (line, words) in [
        (format!("password_file = \"{}\"", wrong.display()), "Password authentication failed"),
        (String::new(), "Authentication required"),
    ] {
        let redis = Redis::start(&["--requirepass", PASSWORD]);
        let fleet = Fleet::of(redis, 1, |config| config.with("[store]", &line));
        let why = why(&fleet.gateways[0]);
        assert!(why.contains(words), "{why}");
        fleet.get(0, TARGET).expect(200);
        assert_eq!(fleet.redis.calls("getrange"), 0);
    }
}

#[test]
fn a_user_of_the_store_needs_few_rights() {
    let files = Folder::new();
    let file = files.write("password", PASSWORD);
    let redis = Redis::start(&["--requirepass", "another"]);
    redis.run(&format!("ACL SETUSER weir reset on >{PASSWORD} {RIGHTS}"));
    let url = format!(
        "url = \"redis://weir@{}\"\npassword_file = \"{}\"",
        redis.address(),
        file.display()
    );
    let calendar = "key = \"organisation\"\nalgorithm = \"calendar_day\"\nrequests = 600\n\
                    time_zone = \"UTC\"";
    let mut fleet = Fleet::of(redis, 2, |config| {
        config
            .with("[store]", &url)
            .with("[limits.workspace]", "requests = 100")
            .without("[limits.organisation]")
            .with("[limits.organisation]", calendar)
    });
    fleet.wait_until_known();
    assert_eq!(count(&fleet.at_once(2, 20, &Request::get(TARGET)), 200), 80);
    let login = Request::get("/login").host(&data_host("in_acme"));
    assert_eq!(count(&fleet.at_once(1, 5, &login), 200), 10);
    let admin = |nth: usize, method: &str, path: &str, body: &str| {
        let path = format!("/limits/workspace/ws_acme{path}");
        fleet.gateways[nth].call_admin(&Request::new(method, &path).body(body)).expect(200);
    };
    admin(0, "POST", "/boost", r#"{"requests":200,"ttl":"10m"}"#);
    wait::until("the boost", || {
        (fleet.gateways[1].allowed("workspace", "ws_acme") == 200).then_some(())
    });
    fleet.redis.run("FLUSHALL");
    fleet.redis.run("SCRIPT FLUSH");
    assert_eq!(count(&fleet.at_once(1, 1, &Request::get(TARGET)), 200), 2);
    let answers = fleet.at_once(1, 70, &Request::get(TARGET));
    assert_eq!(count(&answers, 200), 118);
    wait::until("the boost to be published again", || {
        (fleet.redis.run("HLEN weir1:{gateways}boosts") == Reply::Number(1)).then_some(())
    });
    admin(1, "DELETE", "/boost", "");
    admin(0, "DELETE", "", "");
    fleet.get(1, TARGET).expect(200);
    // One ends, and tells the others.
    fleet.start_again(0, "TERM");
    wait::until("its end", || (fleet.redis.calls("hdel") > 0).then_some(()));
    assert_eq!(fleet.redis.run("ACL LOG"), Reply::List(Vec::new()));
    let used = |right: &&str| fleet.redis.calls(right) > 0;
    let unused: Vec<_> = RIGHTS.split(" +").skip(1).filter(|right| !used(right)).collect();
    assert!(unused.is_empty(), "{unused:?}");
}

#[test]
fn a_check_online_names_each_right_that_is_missing() {
    let (files, upstream) = (Folder::new(), Upstream::start());
    let redis = Redis::start(&["--requirepass", "another"]);
    let password = files.write("password", PASSWORD).display().to_string();
    let servers = format!("servers = [\"{}\"]", upstream.address());
    let config = ["control", "data", "dispatcher"]
        .iter()
        .fold(Config::default(), |to, name| to.with(&format!("[upstreams.{name}]"), &servers))
        .with("[store]", &store(&format!("redis://weir@{}", redis.address()), &files))
        .with("[store]", &format!("password_file = \"{password}\""));
    files.write(CONFIG, &config.to_string());
    files.write(gateway::DIRECTORY, DIRECTORY);
    let rights: Vec<&str> = RIGHTS.split(" +").skip(1).collect();
    for right in &rights {
        redis.run("SCRIPT FLUSH");
        let others = format!("{RIGHTS} ").replace(&format!("+{right} "), "");
        redis.run(&format!("ACL SETUSER weir reset on >{PASSWORD} {others}"));
        let ended = gateway::run(&files, &["check", "--online", "--config", CONFIG]);
        assert_ne!(ended.code, Some(0), "{right}");
        let named = ended.output().contains(&format!("+{right}"));
        let is_of_scripts = !["info", "evalsha", "script|load"].contains(right);
        assert!(named || !is_of_scripts, "{right}: {}", ended.output());
    }
    redis.run(&format!("ACL SETUSER weir reset on >{PASSWORD} {RIGHTS}"));
    gateway::run(&files, &["check", "--online", "--config", CONFIG]).expect(0);
    assert_eq!(redis.run("DBSIZE"), Reply::Number(0));
}

#[test]
fn a_gateway_with_another_secret_does_not_start() {
    let mut fleet = Fleet::of(Redis::start(&[]), 1, |config| config);
    let other = Folder::new();
    let file = other.write("other", "another secret of more than 32 characters");
    let line = format!("secret_file = \"{}\"", file.display());
    let config = fleet.config.clone().with("[store]", &line);
    let ended = refused(&config);
    assert_ne!(ended.code, Some(0));
    let output = ended.output();
    assert!(output.contains("give all gateways the same secret_file"), "{output}");
    assert!(output.contains(&fleet.redis.address()), "{output}");
    // As that says.
    fleet.gateways.clear();
    fleet.redis.run("DEL weir1:{gateways}fingerprint");
    Gateway::start(&config.to_string(), DIRECTORY).client().get(TARGET).expect(200);
}

#[test]
fn a_check_online_tries_the_store_and_changes_nothing_there() {
    let mut redis = Redis::start(&[]);
    let (files, upstream) = (Folder::new(), Upstream::start());
    let servers = format!("servers = [\"{}\"]", upstream.address());
    let config = ["control", "data", "dispatcher"]
        .iter()
        .fold(Config::default(), |to, name| to.with(&format!("[upstreams.{name}]"), &servers));
    let config = config.with("[store]", &store(&redis.url(), &files));
    let folder = Folder::new();
    folder.write(CONFIG, &config.to_string());
    folder.write(gateway::DIRECTORY, DIRECTORY);
    let check = || gateway::run(&folder, &["check", "--online", "--config", CONFIG]);
    check().expect(0);
    assert_eq!(redis.run("DBSIZE"), Reply::Number(0));
    redis.run("SET weir1:{gateways}fingerprint another");
    let other = check();
    assert!(
        other.output().contains("give all gateways the same secret_file"),
        "{}",
        other.output()
    );
    redis.kill();
    let gone = check();
    assert_ne!(gone.code, Some(0));
    assert!(gone.output().contains("cannot use the shared store 127.0.0.1"), "{}", gone.output());
    redis.start_again();
    check().expect(0);
}

#[test]
fn a_store_that_drops_counters_is_not_used() {
    let fleet = Fleet::of(Redis::start(&["--maxmemory", "64mb"]), 1, |config| config);
    fleet.get(0, TARGET).expect(200);
    for policy in ["allkeys-lru", "volatile-ttl"] {
        fleet.redis.run(&format!("CONFIG SET maxmemory-policy {policy}"));
        let ended = refused(&fleet.config);
        assert_ne!(ended.code, Some(0));
        let output = ended.output();
        assert!(output.contains(&format!("its maxmemory-policy is {policy}")), "{output}");
        assert!(output.contains("set `maxmemory-policy noeviction`"), "{output}");
    }
    fleet.redis.run("CONFIG SET maxmemory 0");
    let unbounded = Gateway::start(&fleet.config.to_string(), DIRECTORY);
    unbounded.client().get(TARGET).expect(200);
}

#[test]
fn a_full_store_counts_as_away() {
    let fleet = Fleet::with(|config| config.with("[limits.workspace]", "requests = 20"));
    fleet.wait_until_known();
    assert_eq!(count(&fleet.at_once(1, 2, &Request::get(TARGET)), 200), 4);
    fleet.redis.run("CONFIG SET maxmemory 1");
    let answers = fleet.in_turn(24);
    assert_eq!((count(&answers, 200), count(&answers, 429)), (16, 8));
    fleet.redis.run("CONFIG SET maxmemory 0");
    fleet.wait_for_return();
    assert_eq!(count(&fleet.at_once(1, 2, &Request::get(TARGET)), 429), 4);
    assert_eq!(fleet.upstream.requests().len(), 20);
}

#[test]
fn a_store_may_be_one_of_several_databases() {
    let redis = Redis::start(&[]);
    let url = format!("url = \"{}/3\"", redis.url());
    let fleet = Fleet::of(redis, 1, |config| config.with("[store]", &url));
    fleet.get(0, TARGET).expect(200);
    assert_eq!(fleet.redis.run("DBSIZE"), Reply::Number(0));
    let Reply::Text(found) = fleet.redis.run("INFO keyspace") else { panic!("no text") };
    assert!(found.contains("db3:keys="), "{found}");
}

#[test]
fn an_upgrade_with_another_secret_leaves_the_old_process_serving() {
    let fleet = Fleet::of(Redis::start(&[]), 1, |config| config);
    fleet.get(0, TARGET).expect(200);
    let file = fleet.files.write("other", "another secret of more than 32 characters");
    let line = format!("secret_file = \"{}\"", file.display());
    let gateway = &fleet.gateways[0];
    gateway.write_config(&fleet.config.clone().with("[store]", &line).to_string());
    gateway.signal("USR2");
    let why = gateway.wait_for_no_successor();
    assert!(why.contains("secret_file"), "{why}");
    assert_eq!(fleet.get(0, TARGET).expect(200).allowance().remaining, 58);
}

#[test]
fn a_replica_is_not_used() {
    let [primary, replica] = [(); 2].map(|()| Redis::start(&[]));
    let port = primary.address().split_off("127.0.0.1:".len());
    replica.run(&format!("REPLICAOF 127.0.0.1 {port}"));
    let fleet = Fleet::of(replica, 1, |config| config);
    assert!(why(&fleet.gateways[0]).contains("replica"), "{}", why(&fleet.gateways[0]));
    fleet.get(0, TARGET).expect(200);
    fleet.redis.run("REPLICAOF NO ONE");
    fleet.gateways[0].log().wait("it is used", |line| line["message"] == "shared store available");
}

#[test]
fn wrong_settings_of_a_store_are_reported_by_check() {
    let files = Folder::new();
    let short = files.write("short", "0123456789");
    let config = |lines: &str| {
        let with = |config: Config, line: &str| config.with("[store]", line);
        lines.lines().fold(Config::default(), with)
    };
    let good = store("redis://127.0.0.1", &files);
    run(&config(&good), "check").expect(0);
    let without = |key: &str| -> String {
        let lines = good.lines().filter(|line| !line.starts_with(key));
        lines.collect::<Vec<_>>().join("\n")
    };
    let url = |url: &str| format!("{good}\nurl = \"{url}\"");
    for (lines, words) in [
        (without("secret_file"), "secret_file"),
        (without("url"), "url"),
        (without("kind"), "`url` needs kind = \"redis\""),
        (url("redis://weir:password@127.0.0.1"), "must not contain a password"),
        (url("http://127.0.0.1"), "must start with redis:// or rediss://"),
        (url("127.0.0.1:6379"), "`url` must"),
        (url("redis://127.0.0.1/x"), "is not the number of a database"),
        (url("redis://127.0.0.1?timeout=1"), "must not have a query"),
        (format!("{good}\nsecret_file = \"{}\"", short.display()), "32 characters or more"),
        (format!("{good}\nsecret_file = \"/nowhere\""), "/nowhere"),
        (format!("{good}\npassword_file = \"/nowhere\""), "/nowhere"),
        (url("redis://weir@127.0.0.1"), "needs a `password_file`"),
        (format!("{good}\nca = \"ca.pem\""), "`ca` needs a `url` that starts with rediss://"),
        (format!("{good}\ntimeout = \"2s\""), "timeout"),
        (format!("{good}\ngateways = 0"), "gateways"),
    ] {
        let output = run(&config(&lines), "check").expect(64).output();
        assert!(output.contains(words), "{words}: {output}");
        assert!(!output.contains(":password@"), "{output}");
    }
    let limit = Config::default().with("[limits.workspace]", "on_store_failure = \"wait\"");
    let output = run(&limit, "check").expect(64).output();
    assert!(output.contains("local_share"), "{output}");
}
