//! The baseline with the system's allocator, the default.

fn main() {
    weir_benches::bare::serve();
}
