/// A slice of a collection: already capped, already checked (contract 00 §4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Page {
    /// At most this many elements.
    pub limit: i64,
    /// This many are skipped.
    pub offset: i64,
}
