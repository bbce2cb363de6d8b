//! What the measuring programs share; each of them is one file in `bin/`.

pub mod bare;
