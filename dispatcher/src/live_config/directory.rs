//! The organisations and owners of workspaces: from a file, or from a directory over HTTP, which is
//! asked for the owners when a mail to them is due.
//!
//! # Invariants
//!
//! 1. A request has a deadline, and there is none while the directory is down, except to find out
//!    whether it still is.
//! 2. While the directory is unavailable, the last good entry of a workspace is used until it is
//!    too old. Then its owners are unknown, which is not the same as none.
//!
//! Not here: when owners are looked for (`email::outbox`).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use weir_common::config::document::Document;
use weir_common::config::file::ConfigFile;
use weir_common::directory::Directory;
use weir_common::directory::cache::{Absent, Cached, Entry, EntryCache, Last};
use weir_common::directory::client::DirectoryClient;
use weir_common::directory::error_log;
use weir_common::directory::response::{TenantKind, read_owners};
use weir_common::directory::server::{DirectoryServer, FetchedEntry};
use weir_common::directory::settings::HttpDirectory;
use weir_common::identifier::IdForm;
use weir_common::log::limiter::LogLimiter;
use weir_common::time::{Clock, Tick};

use crate::config::settings::DirectorySource;
use crate::metrics::Metrics;

const SHIPPED_DIRECTORY: &str = include_str!("../../../config/directory.toml");

/// Time between two log lines about one entry that stays invalid.
const UNUSABLE_LOG_EVERY: Duration = Duration::from_secs(600);

/// What a configuration says of the directory.
pub(super) struct LoadedDirectory {
    /// Collects the errors of the file.
    pub(super) document: Document,
    /// The text of the file.
    pub(super) text: String,
    /// The entries of the file: none if it is elsewhere.
    pub(super) entries: Directory,
    /// The client, if it is elsewhere.
    pub(super) client: Option<DirectoryClient>,
}

impl LoadedDirectory {
    /// Reads the file, or the files of the client; `settings` collects their errors.
    pub(super) fn new(
        source: &DirectorySource,
        config: &ConfigFile,
        settings: &Document,
        workspaces: &IdForm,
    ) -> Self {
        let (name, text, client) = match source {
            DirectorySource::File(path) => {
                let text = config.beside(settings, path, "directory.path", SHIPPED_DIRECTORY);
                (path.value.as_str(), text.unwrap_or_default(), None)
            }
            DirectorySource::Http(http) => {
                let client = DirectoryClient::new(http);
                let fault = |(key, why)| settings.fault_in(&format!("directory.{key}"), why);
                ("", String::new(), client.map_err(fault).ok())
            }
        };
        let document = Document::new(name, &text);
        let entries = Directory::read(&document, workspaces);
        Self { document, text, entries, client }
    }
}

/// The owners of workspaces, from a directory over HTTP.
#[derive(Clone)]
pub struct RemoteOwners {
    client: DirectoryClient,
    shared: Arc<SharedOwners>,
}

/// What a reload keeps if the directory's settings stay the same.
struct SharedOwners {
    settings: HttpDirectory,
    clock: Clock,
    server: DirectoryServer,
    cache: EntryCache<Box<str>, BTreeSet<String>>,
    unusable_log: LogLimiter<Box<str>>,
}

impl RemoteOwners {
    /// A directory. Keeps the cache of the `earlier` one if the settings are the same.
    pub(super) fn new(
        client: DirectoryClient,
        earlier: Option<&Self>,
        metrics: &Metrics,
        clock: &Clock,
    ) -> Self {
        let settings = client.settings();
        let kept = earlier.filter(|earlier| earlier.shared.settings == *settings);
        let (requests, seconds) = (&metrics.directory_requests, &metrics.directory_seconds);
        let shared = kept.map(|earlier| Arc::clone(&earlier.shared)).unwrap_or_else(|| {
            Arc::new(SharedOwners {
                settings: settings.clone(),
                clock: clock.clone(),
                server: DirectoryServer::new(requests, seconds, clock),
                cache: EntryCache::new(settings.entries_max),
                unusable_log: LogLimiter::new(UNUSABLE_LOG_EVERY),
            })
        });
        Self { client, shared }
    }

    /// The mail addresses of a workspace's owners; none if the directory does not know it.
    ///
    /// # Errors
    ///
    /// Why they cannot be found now.
    pub(super) async fn find(&self, workspace: &str) -> Result<BTreeSet<String>, String> {
        let SharedOwners { clock, server, cache, .. } = &*self.shared;
        let now = clock.now().tick;
        let last = match cache.get(&workspace.into(), now).await {
            Cached::Entry(entry) => return Ok(entry.value.clone()),
            Cached::Absent(absent) if absent.is_certain(now) => return Ok(BTreeSet::new()),
            Cached::Absent(_) => return Err("the directory has just failed".to_owned()),
            Cached::Expired(last) => last,
        };
        let which = (TenantKind::Workspace, workspace);
        let fetched = if last.has_just_failed(now) || !server.may_send((which, None), now) {
            Err("the directory is unavailable".to_owned())
        } else {
            self.fetch(which, &last, now).await
        };
        match (fetched, last) {
            (Ok(owners), _) => Ok(owners),
            (Err(_), Last::Entry(entry)) => Ok(entry.value.clone()),
            // That there was no entry is not used stale: the mail waits for the directory.
            (Err(why), Last::Absent(_) | Last::Nothing) => Err(why),
        }
    }

    async fn fetch(
        &self,
        which: (TenantKind, &str),
        last: &Last<BTreeSet<String>>,
        requested: Tick,
    ) -> Result<BTreeSet<String>, String> {
        let SharedOwners { settings, server, cache, unusable_log, .. } = &*self.shared;
        let (key, mark) = (Box::<str>::from(which.1), cache.mark());
        let (fetched, now) = server.fetch(&self.client, (which, None), read_owners).await;
        let why = match fetched {
            FetchedEntry::Known(owners) => {
                unusable_log.recovered(&key);
                let spans = [settings.ttl, settings.stale_for];
                let entry = Arc::new(Entry::new(owners.clone(), requested, spans));
                cache.keep(key, entry, mark).await;
                return Ok(owners);
            }
            FetchedEntry::Unknown => {
                let absent = Absent::new(requested, [settings.negative_ttl, Duration::ZERO]);
                cache.keep_absent(key, absent, mark).await;
                return Ok(BTreeSet::new());
            }
            FetchedEntry::Unusable(why) => {
                if unusable_log.due(key.clone(), now).is_some() {
                    error_log::unusable(which.0, which.1, &why);
                }
                why
            }
            FetchedEntry::Unanswered(why) => why,
        };
        cache.keep_failed(key, last, now, mark).await;
        Err(why)
    }
}
