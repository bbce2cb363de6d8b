//! The tools.

pub(crate) mod arguments;
pub(crate) mod results;
pub(crate) mod run;
pub(crate) mod schema;
pub(crate) mod shapes;
pub(crate) mod table;
