//! What is read of threads: lists, explanations, streams, the picture of their states.

pub(crate) mod explain;
pub(crate) mod list;
pub(crate) mod picture;
pub(crate) mod source;
