//! Stands in for `libz-ng-sys`, which needs cmake, by the same functions of stock zlib.
pub use libz_sys::*;
