//! Weir's allocator, counting what it is asked for.

#![expect(unsafe_code, reason = "an allocator cannot be written without")]

use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicUsize, Ordering};

use mimalloc::MiMalloc;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);
static LIVE_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Counts, then asks mimalloc.
pub struct Counted;

/// How much was asked for so far, and how much of it is still held.
#[derive(Clone, Copy, Debug)]
pub struct Counts {
    /// Allocations, and reallocations that grew.
    pub allocations: usize,
    /// Bytes asked for and not given back.
    pub live_bytes: usize,
}

impl Counts {
    /// What has been counted until now.
    #[must_use]
    pub fn now() -> Self {
        Self {
            allocations: ALLOCATIONS.load(Ordering::Relaxed),
            live_bytes: LIVE_BYTES.load(Ordering::Relaxed),
        }
    }
}

// SAFETY: every call is passed on as it came; counting touches no memory that is handed out.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        LIVE_BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the promises that mimalloc asks for.
        unsafe { MiMalloc.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { MiMalloc.dealloc(pointer, layout) }
    }
}
