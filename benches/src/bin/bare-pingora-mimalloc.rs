//! The baseline with Weir's allocator, which shows the allocator's share of a difference.

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    weir_benches::bare::serve();
}
