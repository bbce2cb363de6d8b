//! Searches for inputs that break [`weir_fuzz::checks::http1::head`].

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::checks::http1::head(data));
