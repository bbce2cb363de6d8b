//! The allocator of both programs: mimalloc, asked for an alignment only where one is unusual.
//!
//! The mimalloc crate asks for an alignment each time, which takes a longer way: 2,800 of a proxied
//! request's instructions (docs/decisions/speed.md).

#![expect(unsafe_code, reason = "an allocator cannot be written without")]

use std::alloc::{GlobalAlloc, Layout};
use std::ffi::{c_int, c_long};

use libmimalloc_sys as mi;

/// Every block of at least as many bytes has this alignment, and a smaller one that of its size.
const USUAL_ALIGNMENT: usize = 16;

/// mimalloc's option `purge_delay`: after how many milliseconds free memory is given back to the
/// system. Its crate names neither this option nor the next.
const PURGE_DELAY: c_int = 15;

/// mimalloc's option `page_full_retain`: how many full pages stay in the queue of each size.
const PAGE_FULL_RETAIN: c_int = 36;

unsafe extern "C" {
    safe fn mi_option_set(option: c_int, value: c_long);
    safe fn mi_option_set_default(option: c_int, value: c_long);
}

/// mimalloc.
#[derive(Debug)]
pub struct Allocator;

impl Allocator {
    /// Takes full pages out of the queues of threads that start from now on.
    ///
    /// mimalloc gives a page back as soon as it is empty and not alone in its queue: behind full
    /// pages, the block of each request would take a page and give it back
    /// (docs/decisions/speed.md).
    pub fn retain_no_full_pages(&self) {
        mi_option_set(PAGE_FULL_RETAIN, 0);
    }

    /// Gives free memory back to the system after 100 ms, not a second, unless the environment has
    /// a `MIMALLOC_PURGE_DELAY`: for a program that soon frees what it has allocated
    /// (docs/decisions/speed.md).
    pub fn give_back_soon(&self) {
        mi_option_set_default(PURGE_DELAY, 100);
    }
}

fn is_usual(alignment: usize, size: usize) -> bool {
    alignment <= USUAL_ALIGNMENT && alignment <= size
}

// SAFETY: each call is forwarded to mimalloc, which meets the contract of `GlobalAlloc`. Without an
// alignment it aligns a block to the largest power of two up to 16 that is no larger than its size.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: any size and any power of two are valid.
        unsafe {
            match is_usual(layout.align(), layout.size()) {
                true => mi::mi_malloc(layout.size()),
                false => mi::mi_malloc_aligned(layout.size(), layout.align()),
            }
        }
        .cast()
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        unsafe {
            match is_usual(layout.align(), layout.size()) {
                true => mi::mi_zalloc(layout.size()),
                false => mi::mi_zalloc_aligned(layout.size(), layout.align()),
            }
        }
        .cast()
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller has `pointer` from this allocator, whichever call it came from.
        unsafe {
            match is_usual(layout.align(), size) {
                true => mi::mi_realloc(pointer.cast(), size),
                false => mi::mi_realloc_aligned(pointer.cast(), size, layout.align()),
            }
        }
        .cast()
    }

    unsafe fn dealloc(&self, pointer: *mut u8, _layout: Layout) {
        // SAFETY: the caller has `pointer` from this allocator, and uses it no more.
        unsafe { mi::mi_free(pointer.cast()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" {
        safe fn mi_option_get(option: c_int) -> c_long;
    }

    #[test]
    fn the_option_is_the_one_that_mimalloc_sets_to_two() {
        let of_two: Vec<_> = (0..47).filter(|&option| mi_option_get(option) == 2).collect();
        assert_eq!(of_two, [4, PAGE_FULL_RETAIN], "4 is arena_eager_commit");
        Allocator.retain_no_full_pages();
        assert_eq!(mi_option_get(PAGE_FULL_RETAIN), 0);
    }

    #[test]
    fn the_option_is_the_one_that_mimalloc_sets_to_a_second() {
        let of_1000: Vec<_> = (0..47).filter(|&option| mi_option_get(option) == 1_000).collect();
        assert_eq!(of_1000, [PURGE_DELAY]);
        Allocator.give_back_soon();
        assert_eq!(mi_option_get(PURGE_DELAY), 100);
    }

    #[test]
    fn every_block_has_its_alignment_and_keeps_its_bytes() {
        for alignment in (0..=8).map(|power| 1_usize << power) {
            for size in (1..=300).chain([4_096, 70_000]) {
                let layout = Layout::from_size_align(size, alignment).unwrap();
                // SAFETY: each block is written within its size, and freed once.
                unsafe {
                    let zeroed = Allocator.alloc_zeroed(layout);
                    assert_eq!(zeroed.addr() % alignment, 0, "{layout:?}");
                    assert_eq!(zeroed.add(size - 1).read(), 0);
                    let block = Allocator.alloc(layout);
                    assert_eq!(block.addr() % alignment, 0, "{layout:?}");
                    block.write_bytes(7, size);
                    let grown = Allocator.realloc(block, layout, size * 2);
                    assert_eq!(grown.addr() % alignment, 0, "{layout:?}");
                    assert_eq!(grown.add(size - 1).read(), 7);
                    Allocator.dealloc(grown, Layout::from_size_align(size * 2, alignment).unwrap());
                    Allocator.dealloc(zeroed, layout);
                }
            }
        }
    }
}
