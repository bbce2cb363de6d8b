//! Only the restore command replaces the database with a backup.

use std::fs;

use weir_tests::dispatcher::{CONFIG, run};

use super::Stage;

#[test]
fn a_backup_is_restored_by_a_command_and_a_leftover_wal_stops_a_start() {
    let mut stage = Stage::new();
    let webhook = stage.webhook("/hook", &["user.created"]);
    let first = stage.dispatcher.post_event("user.created");
    stage.dispatcher.acme().wait_for_count("delivered", 1);
    let folder = stage.dispatcher.folder();
    run(folder, &["backup", "--config", CONFIG, "backup.db"]).expect(0);
    let refused = run(folder, &["restore", "--config", CONFIG, "--replace", "backup.db"]);
    assert_eq!(refused.code, Some(1), "{}", refused.output());
    assert!(refused.stderr.contains("in use by another process"), "{}", refused.stderr);
    let unnamed = run(folder, &["backup", "--config", "gone.toml", "other.db"]);
    assert_eq!(unnamed.code, Some(64), "{}", unnamed.output());
    let unnamed = run(folder, &["restore", "--config", "gone.toml", "backup.db"]);
    assert_eq!(unnamed.code, Some(64), "{}", unnamed.output());
    let last = stage.dispatcher.post_event("user.created");
    stage.dispatcher.kill();
    // Copied into place without the command, beside the WAL of the old database.
    let folder = stage.dispatcher.folder();
    fs::copy(folder.path("backup.db"), folder.path("dispatcher.db")).unwrap();
    let refused = run(folder, &["run", "--config", CONFIG]);
    assert_eq!(refused.code, Some(1), "{}", refused.output());
    assert!(refused.stderr.contains("dispatcher.db-wal is not of"), "{}", refused.stderr);
    let checked = run(folder, &["check", "--config", CONFIG]);
    assert_eq!(checked.code, Some(64), "{}", checked.output());
    assert!(checked.stderr.contains("dispatcher.db-wal is not of"), "{}", checked.stderr);
    let refused = run(folder, &["restore", "--config", CONFIG, "backup.db"]);
    assert_eq!(refused.code, Some(1), "{}", refused.output());
    assert!(refused.stderr.contains("--replace"), "{}", refused.stderr);
    let restored = run(folder, &["restore", "--config", CONFIG, "--replace", "backup.db"]);
    assert_eq!(restored.code, Some(0), "{}", restored.output());
    assert!(restored.stdout.contains("is restored from backup.db"), "{}", restored.stdout);
    assert!(folder.path("dispatcher.db.before-restore-wal").exists(), "the earlier WAL is kept");
    stage.dispatcher.start_again();
    let acme = stage.dispatcher.acme();
    let listed: Vec<String> =
        acme.deliveries("").iter().map(|one| super::text(one, "event_id").to_owned()).collect();
    assert!(listed.contains(&first) && !listed.contains(&last), "{listed:?}");
    assert_eq!(super::text(&acme.webhook(&webhook.id), "id"), webhook.id);
    let again = stage.dispatcher.post_event("user.created");
    acme.wait_for_delivery(&again, |one| one["state"] == "delivered");
}
