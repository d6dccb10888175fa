//! Tools in turns.
