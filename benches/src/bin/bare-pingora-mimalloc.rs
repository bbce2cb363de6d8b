//! The baseline with the allocator that Weir uses, so that the allocator's part can be told apart.

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    weir_benches::bare::serve();
}
