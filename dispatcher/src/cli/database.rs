//! The commands that work on the database and its key: copy, restore, rotate, recover.
//!
//! Not here: how they do it (`store::sqlite`).

use std::path::Path;

use weir_common::time::{Clock, UnixTime};

use crate::config::settings::Settings;
use crate::email::templates::{Incident, secret_lost};
use crate::live_config::ActiveConfig;
use crate::store::mail::QueuedMail;
use crate::store::sqlite::rekey::recovery::{LostSecret, RecoveryReport, recover};
use crate::store::sqlite::rekey::rotation::{RotationReport, rotate};
use crate::store::sqlite::{backup, restore};

pub(super) fn copy(settings: &Settings, to: &Path) -> Result<String, String> {
    let path = &settings.store.path;
    backup::backup(path, to).map_err(|why| why.to_string())?;
    let key = settings.secrets.key_file.display();
    Ok(format!("{} is a copy of {}; keep {key} with it", to.display(), path.display()))
}

pub(super) fn put_back(
    settings: &Settings,
    backup: &Path,
    replace: bool,
) -> Result<String, String> {
    let (path, key) = (&settings.store.path, &settings.secrets.key_file);
    let aside = restore::restore(backup, path, key, replace).map_err(|why| why.to_string())?;
    let restored = format!("{} is restored from {}", path.display(), backup.display());
    Ok(match aside {
        Some(aside) => format!("{restored}; what was there is {}", aside.display()),
        None => restored,
    })
}

pub(super) fn rotate_key(settings: &Settings, dry_run: bool) -> Result<String, String> {
    let (path, key) = (&settings.store.path, &settings.secrets.key_file);
    let done = rotate(path, key, dry_run).map_err(|why| why.to_string())?;
    let key = key.display();
    let text = match done {
        RotationReport::Sealed { webhooks, former } => format!(
            "webhooks sealed with a new key in {key}: {webhooks}; backups made before open with \
             the one before, in {}",
            former.display()
        ),
        RotationReport::Finished => {
            format!("a rotation that was cut off after its commit has its key in {key}")
        }
    };
    Ok(or_dry(dry_run, text))
}

pub(super) fn recover_key(
    active: &ActiveConfig,
    dry_run: bool,
    clock: &Clock,
) -> Result<String, String> {
    let now = clock.now().unix;
    let (path, key) = (&active.settings.store.path, &active.settings.secrets.key_file);
    let mails = |lost: &LostSecret| mails(active, lost, now);
    let done = recover(path, key, &mails, now, dry_run).map_err(|why| why.to_string())?;
    let RecoveryReport { lost, kept, mails, copy } = done;
    let text = format!(
        "webhooks disabled until their owners make new secrets: {lost}; webhooks that keep theirs: \
         {kept}; mails to owners: {mails}; the database as it was: {}",
        copy.display(),
    );
    Ok(or_dry(dry_run, text))
}

fn or_dry(dry_run: bool, text: String) -> String {
    if dry_run { format!("nothing is changed; without --dry-run:\n{text}") } else { text }
}

/// The mails to a webhook's owners.
fn mails(active: &ActiveConfig, lost: &LostSecret, now: UnixTime) -> Vec<QueuedMail> {
    let about = Incident {
        id: lost.id,
        webhook: &lost.webhook,
        workspace: &lost.workspace,
        url: &lost.url,
        since: now,
        last: None,
        link: active.settings.mail_link(),
    };
    let more = [
        lost.headers.then_some("custom headers"),
        lost.signing_key.then_some("the Ed25519 key"),
        lost.certificate.then_some("the client certificate"),
    ];
    let more: Vec<&str> = more.into_iter().flatten().collect();
    active.to_owners(&lost.workspace, |owner| secret_lost(&about, &more, owner))
}
