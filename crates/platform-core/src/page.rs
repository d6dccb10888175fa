/// A slice of a collection: already capped, already checked (contract 00 §4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Page {
    /// At most this many elements.
    pub limit: i64,
    /// This many are skipped.
    pub offset: i64,
}

/// Bytes of records that are listed at once.
pub const MAX_LISTED: usize = 7 << 20;

/// How many of the first records of these sizes fit into so many bytes; one does in any case.
pub fn fitting(sizes: impl IntoIterator<Item = usize>, most: usize) -> usize {
    let mut sum = 0;
    let fits = sizes.into_iter().take_while(|size| {
        sum += size;
        sum <= most
    });
    fits.count().max(1)
}

impl Page {
    /// The page as short as records of these sizes make it, in their order.
    #[must_use]
    pub fn fitting(self, sizes: &[i64]) -> Self {
        let fits = fitting(sizes.iter().map(|size| usize::try_from(*size).unwrap_or(usize::MAX)), MAX_LISTED);
        if fits < sizes.len() { Self { limit: i64::try_from(fits).unwrap_or(self.limit), ..self } } else { self }
    }
}
