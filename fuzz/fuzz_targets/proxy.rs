//! Searches for inputs that break [`weir_fuzz::checks::proxy`].

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::checks::proxy(data));
