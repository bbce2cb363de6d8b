//! Reads request bodies: each within a time and a size, all of one kind within a byte budget.
//!
//! # Invariants
//!
//! 1. A byte is counted before it is kept, and returned to the budget once its request is handled.
//! 2. A body uses the memory that is counted for it: small pieces are joined as they arrive.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::http_server::problems;
use crate::http_server::reply::Reply;

/// Bytes of verified callers' request bodies in memory over all connections of a listener; one
/// more is a 503.
pub const BODIES_BYTES_MAX: usize = 256 * 1024 * 1024;

/// The bodies of requests without a verified credential are a few fields: beside the bytes for all
/// others they may have this part of as many.
pub(super) const OPEN_PART: usize = 4;

/// Small pieces of a body are joined into blocks of at most this size.
const BLOCK_BYTES: usize = 64 * 1024;

/// A body, and its share of the budget until it is dropped.
pub(super) struct ReadBody {
    /// The body.
    pub(super) bytes: Bytes,
    /// Returned to the budget when dropped; `None` for a body without bytes.
    pub(super) permit: Option<OwnedSemaphorePermit>,
}

/// Reads a body of at most `most` bytes, and acquires a permit of `bodies` for each byte.
pub(super) async fn read(
    body: Incoming,
    most: usize,
    within: Duration,
    bodies: &Arc<Semaphore>,
) -> Result<ReadBody, Reply> {
    if body.size_hint().lower() > most as u64 {
        return Err(problems::body_too_large(most));
    }
    match tokio::time::timeout(within, gather(body, most, bodies)).await {
        Ok(read) => read,
        Err(_) => Err(problems::body_too_slow(within)),
    }
}

async fn gather(
    mut body: Incoming,
    most: usize,
    bodies: &Arc<Semaphore>,
) -> Result<ReadBody, Reply> {
    let (mut blocks, mut count) = (Blocks::default(), 0);
    let mut permit: Option<OwnedSemaphorePermit> = None;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| problems::body_broken())?;
        // Trailers are ignored.
        let Ok(piece) = frame.into_data() else { continue };
        count += piece.len();
        if count > most {
            return Err(problems::body_too_large(most));
        }
        let more = u32::try_from(piece.len()).unwrap_or(u32::MAX);
        let more = Arc::clone(bodies).try_acquire_many_owned(more).map_err(|_| full())?;
        match &mut permit {
            Some(permit) => permit.merge(more),
            None => permit = Some(more),
        }
        blocks.add(&piece);
    }
    Ok(ReadBody { bytes: blocks.joined(), permit })
}

/// The bytes of a body so far, in blocks: a new block moves no earlier one, and a client that sends
/// a few bytes at a time does not cause a block for each.
#[derive(Default)]
struct Blocks(Vec<Vec<u8>>);

impl Blocks {
    fn add(&mut self, piece: &[u8]) {
        match self.0.last_mut() {
            Some(block) if block.len() + piece.len() <= BLOCK_BYTES => {
                block.extend_from_slice(piece);
            }
            _ => self.0.push(piece.to_vec()),
        }
    }

    /// All blocks as one. Several blocks are in memory twice while they are joined.
    fn joined(mut self) -> Bytes {
        match self.0.pop() {
            Some(only) if self.0.is_empty() => only.into(),
            last => {
                self.0.extend(last);
                self.0.concat().into()
            }
        }
    }
}

fn full() -> Reply {
    problems::busy("Too many request bodies are being received at once; send the call again.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_received_whole_however_small_its_pieces() {
        let whole: Vec<u8> = (0..=255).cycle().take(3 * BLOCK_BYTES).collect();
        for size in [1, 1_000, BLOCK_BYTES, BLOCK_BYTES + 1, whole.len()] {
            let mut blocks = Blocks::default();
            whole.chunks(size).for_each(|piece| blocks.add(piece));
            assert!(blocks.0.len() <= 4, "{size}: {} blocks", blocks.0.len());
            assert_eq!(blocks.joined(), whole, "{size}");
        }
        assert_eq!(Blocks::default().joined(), "");
    }
}
