//! Changes of a thread: who may do what in which state, stored by one function.

pub(crate) mod act;
pub(crate) mod approval;
pub(crate) mod commit;
pub(crate) mod control;
pub(crate) mod intake;
pub(crate) mod messages;
pub(crate) mod model;
pub(crate) mod request;
pub(crate) mod results;
pub(crate) mod state;
pub(crate) mod timer;
