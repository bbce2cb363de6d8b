//! Reads bodies: each within its time and size, all of a listener within one bound of bytes.
//!
//! # Invariants
//!
//! 1. A byte is counted before it is kept, and given back when its request has been answered.
//! 2. What is kept is what was counted: pieces are joined as they come, however small they are.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{Reply, refuse};

/// Bytes of bodies that a listener holds over all its connections; one more is 503.
pub(crate) const BODIES_BYTES_MAX: usize = 256 * 1024 * 1024;

/// A body, and its part of the bound for as long as somebody holds it.
pub(super) struct Held {
    /// The body.
    pub(super) bytes: Bytes,
    /// Given back when dropped; none for a body without bytes.
    pub(super) room: Option<OwnedSemaphorePermit>,
}

/// Reads a body of at most `most` bytes, for which there has to be room in `bodies`.
pub(super) async fn read(
    body: Incoming,
    most: usize,
    within: Duration,
    bodies: &Arc<Semaphore>,
) -> Result<Held, Reply> {
    if body.size_hint().lower() > most as u64 {
        return Err(too_large(most));
    }
    match tokio::time::timeout(within, gather(body, most, bodies)).await {
        Ok(read) => read,
        Err(_) => Err(Reply::problem(&refuse::body_too_slow(within))),
    }
}

async fn gather(mut body: Incoming, most: usize, bodies: &Arc<Semaphore>) -> Result<Held, Reply> {
    let mut bytes = Vec::new();
    let mut room: Option<OwnedSemaphorePermit> = None;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Reply::problem(&refuse::body_broken()))?;
        // Trailers say nothing to us.
        let Ok(piece) = frame.into_data() else { continue };
        if bytes.len() + piece.len() > most {
            return Err(too_large(most));
        }
        let count = u32::try_from(piece.len()).unwrap_or(u32::MAX);
        let more = Arc::clone(bodies).try_acquire_many_owned(count).map_err(|_| full())?;
        match &mut room {
            Some(room) => room.merge(more),
            None => room = Some(more),
        }
        grow(&mut bytes, piece.len(), most);
        bytes.extend_from_slice(&piece);
    }
    Ok(Held { bytes: bytes.into(), room })
}

/// Makes room for `more`, twice as much each time, and never for more than `most`.
fn grow(bytes: &mut Vec<u8>, more: usize, most: usize) {
    let wanted = bytes.len() + more;
    if wanted > bytes.capacity() {
        let room = wanted.max((bytes.capacity() * 2).min(most));
        bytes.reserve_exact(room - bytes.len());
    }
}

fn too_large(most: usize) -> Reply {
    Reply::problem(&refuse::body_too_large(most))
}

fn full() -> Reply {
    refuse::busy("More is being sent at the moment than may be held.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_doubles_and_is_never_more_than_a_body_may_have() {
        let mut bytes = Vec::new();
        let mut rooms = Vec::new();
        for _ in 0..10 {
            grow(&mut bytes, 10, 100);
            bytes.extend_from_slice(&[0; 10]);
            rooms.push(bytes.capacity());
        }
        rooms.dedup();
        assert_eq!(rooms, [10, 20, 40, 80, 100]);
    }
}
