//! Streams the deliveries that a filter selects, as NDJSON.
//!
//! # Invariants
//!
//! 1. Between two pages nothing of the store is held, no snapshot and no reader: a client that
//!    reads slowly delays neither a checkpoint of the WAL nor the reads of others.
//! 2. A workspace has one export at a time, from its first page until it ends or its client leaves.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use log::Level;
use weir_common::http_server::problems;
use weir_common::http_server::reply::{BrokenOff, NextPiece, Reply, Rest};
use weir_common::log::events;

use crate::api::deliveries::Viewer;
use crate::api::query::LIMIT_MAX;
use crate::api::{ApiRequest, bad_query};
use crate::domain::delivery::Cursor;
use crate::state::State;
use crate::store::StoreError;
use crate::store::types::{Filter, Paging};

/// `Retry-After` of a refused export: one of a few thousand deliveries ends sooner.
const AGAIN_SECONDS: &str = "10";

/// The workspaces that export.
#[derive(Clone, Debug, Default)]
pub(super) struct Exports(Arc<Mutex<HashSet<String>>>);

impl Exports {
    /// `None` if the workspace exports already.
    fn start(&self, workspace: &str) -> Option<ExportPermit> {
        let mut running = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let workspace = workspace.to_owned();
        let is_first = running.insert(workspace.clone());
        is_first.then(|| ExportPermit { exports: self.clone(), workspace })
    }
}

/// The right of a workspace to its one export.
#[derive(Debug)]
struct ExportPermit {
    exports: Exports,
    workspace: String,
}

impl Drop for ExportPermit {
    fn drop(&mut self) {
        let mut running = self.exports.0.lock().unwrap_or_else(PoisonError::into_inner);
        running.remove(&self.workspace);
    }
}

/// An export, between two pages.
struct Export {
    state: Arc<State>,
    filter: Filter,
    /// The next page.
    paging: Paging,
    permit: ExportPermit,
}

pub(super) async fn deliveries(request: &ApiRequest<'_>) -> Result<Reply, Reply> {
    let (filter, paging) =
        request.query.deliveries(request.store().ids(), &request.types).map_err(bad_query)?;
    let permit = request.exports.start(request.workspace).ok_or_else(too_many)?;
    let paging = Paging { limit: LIMIT_MAX, ..paging };
    let export = Export { state: Arc::clone(request.state), filter, paging, permit };
    let (lines, next) = export.page().await.map_err(|error| request.failed(&error))?;
    let rest = next.map(|after| export.rest(after));
    Ok(Reply { rest, ..Reply::new(200, request.operation.media, lines) })
}

fn too_many() -> Reply {
    let detail = "A workspace has one export at a time; try again when it has ended.";
    problems::refusal(429, "too-many-exports", "Too many exports", detail)
        .with("retry-after", AGAIN_SECONDS)
}

impl Export {
    /// What follows a page that ended at `after`.
    fn rest(mut self, after: Cursor) -> Rest {
        self.paging.after = Some(after);
        Rest::new(async move { self.next().await })
    }

    async fn next(mut self) -> NextPiece {
        loop {
            let (lines, next) = self.page().await.map_err(|error| self.failed(&error))?;
            match next {
                Some(after) if lines.is_empty() => self.paging.after = Some(after),
                Some(after) => return Ok(Some((lines, self.rest(after)))),
                None if lines.is_empty() => return Ok(None),
                None => return Ok(Some((lines, Rest::new(async { Ok(None) })))),
            }
        }
    }

    /// The lines of a page, and where the next one starts.
    async fn page(&self) -> Result<(Bytes, Option<Cursor>), StoreError> {
        let Self { state, filter, paging, permit } = self;
        let viewer = Viewer {
            state,
            active: &state.active.load_full(),
            workspace: &permit.workspace,
            now: state.clock.now().unix,
        };
        let page = state.store.deliveries(viewer.workspace, filter, *paging).await?;
        let mut lines = Vec::new();
        for view in viewer.views(&page.items).await? {
            serde_json::to_writer(&mut lines, &view)
                .map_err(|error| StoreError::Damaged(error.to_string().into()))?;
            lines.push(b'\n');
        }
        Ok((lines.into(), page.next))
    }

    /// Counts and logs an error of the store: the response has begun, and cannot state it.
    fn failed(&self, error: &StoreError) -> BrokenOff {
        self.state.metrics.store_failed(error);
        let fields = [("error", error.to_string().into())];
        events::event(Level::Warn, "export broken off", &fields);
        BrokenOff
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workspace_has_one_export_until_it_is_dropped() {
        let exports = Exports::default();
        let first = exports.start("ws_a");
        assert!(first.is_some() && exports.start("ws_a").is_none());
        let other = exports.start("ws_b");
        assert!(other.is_some(), "another workspace exports meanwhile");
        drop(first);
        assert!(exports.start("ws_a").is_some() && exports.start("ws_b").is_none());
    }
}
