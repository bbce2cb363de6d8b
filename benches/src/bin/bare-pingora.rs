//! The baseline with the system's allocator, which is what one gets without asking.

fn main() {
    weir_benches::bare::serve();
}
