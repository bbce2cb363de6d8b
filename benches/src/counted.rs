//! Weir's allocator, with counters of its allocations.

#![expect(unsafe_code, reason = "an allocator cannot be written without")]

use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicUsize, Ordering};

use weir_common::allocator::Allocator;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);
static LIVE_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Counts, then calls the programs' allocator.
pub struct Counted;

/// Allocations so far, and bytes not yet freed.
#[derive(Clone, Copy, Debug)]
pub struct Counts {
    /// Allocations; each reallocation counts as one.
    pub allocations: usize,
    /// Bytes allocated and not yet freed.
    pub live_bytes: usize,
}

impl Counts {
    /// The present counts.
    #[must_use]
    pub fn now() -> Self {
        Self {
            allocations: ALLOCATIONS.load(Ordering::Relaxed),
            live_bytes: LIVE_BYTES.load(Ordering::Relaxed),
        }
    }
}

// SAFETY: every call is forwarded unchanged; counting touches no allocated memory.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        LIVE_BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `GlobalAlloc`, which mimalloc requires.
        unsafe { Allocator.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { Allocator.dealloc(pointer, layout) }
    }
}
