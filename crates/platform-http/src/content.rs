//! Bytes that are answered whole or in part (RFC 9110 §13, §14).

use std::ops::Range;

use actix_web::http::header::{self, ByteRangeSpec, EntityTag, HeaderMap, Range as RangeHeader};
use bytes::Bytes;
use futures_util::Stream;
use platform_core::Result;

use crate::{
    answer::{Answer, Body},
    request::Request,
};

/// What of some bytes a request asks for.
#[derive(Debug, PartialEq, Eq)]
enum Asked {
    /// What it has already.
    Nothing,
    Whole,
    Part(Range<u64>),
    /// What is not there.
    Beyond,
}

/// `etag`: without its quotes, strong.
fn asked(headers: &HeaderMap, size: u64, etag: &str) -> Asked {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let own = EntityTag::new_strong(etag.to_owned());
    let is_own = |tag: &str| tag.trim() == "*" || tag.trim().parse().is_ok_and(|tag: EntityTag| tag.weak_eq(&own));
    if text(header::IF_NONE_MATCH).is_some_and(|tags| tags.split(',').any(is_own)) {
        return Asked::Nothing;
    }
    let is_of_this =
        text(header::IF_RANGE).is_none_or(|tag| tag.trim().parse().is_ok_and(|tag: EntityTag| tag.strong_eq(&own)));
    let range = text(header::RANGE).filter(|_| is_of_this).and_then(|range| range.parse::<RangeHeader>().ok());
    let Some(RangeHeader::Bytes(ranges)) = range else { return Asked::Whole };
    // Several parts may be answered by the whole.
    let [range] = ranges.as_slice() else { return Asked::Whole };
    match (range, range.to_satisfiable_range(size)) {
        (ByteRangeSpec::FromTo(from, to), _) if from > to => Asked::Whole,
        (_, Some((from, to))) => Asked::Part(from..to + 1),
        (_, None) => Asked::Beyond,
    }
}

impl Answer {
    /// Bytes of which there are `size`, or the part that the request asks for, or that it has them already;
    /// `read` gives those of a range. `etag`: without quotes, as strong as a digest.
    pub async fn content<F, S>(
        request: &Request,
        size: u64,
        etag: &str,
        read: impl FnOnce(Range<u64>) -> F,
    ) -> Result<Self>
    where
        F: Future<Output = Result<S>>,
        S: Stream<Item = std::io::Result<Bytes>> + 'static,
    {
        let (status, range) = match asked(&request.headers, size, etag) {
            Asked::Nothing => (304, 0..0),
            Asked::Beyond => (416, 0..0),
            Asked::Whole => (200, 0..size),
            Asked::Part(range) => (206, range),
        };
        let length = range.end - range.start;
        let body = match length {
            0 if !matches!(status, 200 | 206) => Body::empty(),
            _ if request.method == actix_web::http::Method::HEAD || length == 0 => {
                Body::Content { length, bytes: Box::pin(futures_util::stream::empty()) }
            }
            _ => Body::Content { length, bytes: Box::pin(read(range.clone()).await?) },
        };
        let answer = Self::new(status, body).header("etag", format!("\"{etag}\"")).header("accept-ranges", "bytes");
        Ok(match status {
            206 => answer.header("content-range", format!("bytes {}-{}/{size}", range.start, range.end - 1)),
            416 => answer.header("content-range", format!("bytes */{size}")),
            _ => answer,
        })
    }
}

#[cfg(test)]
mod tests {
    use actix_web::http::header::{HeaderName, HeaderValue};

    use super::*;

    #[test]
    fn a_request_is_answered_whole_in_part_or_not_again() {
        let of = |headers: &[(&'static str, &'static str)]| {
            let headers =
                headers.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
            asked(&headers.collect::<HeaderMap>(), 10, "abc")
        };
        for (range, expected) in [
            ("bytes=0-3", Asked::Part(0..4)),
            ("bytes=4-", Asked::Part(4..10)),
            ("bytes=-3", Asked::Part(7..10)),
            ("bytes=-30", Asked::Part(0..10)),
            ("bytes=8-99", Asked::Part(8..10)),
            ("bytes=10-", Asked::Beyond),
            ("bytes=-0", Asked::Beyond),
            ("bytes=5-2", Asked::Whole),
            ("bytes=0-1,4-5", Asked::Whole),
            ("items=0-1", Asked::Whole),
            ("bytes=x", Asked::Whole),
        ] {
            assert_eq!(of(&[("range", range)]), expected, "{range}");
        }
        assert_eq!(of(&[]), Asked::Whole);
        assert_eq!(of(&[("range", "bytes=0-3"), ("if-range", "\"abc\"")]), Asked::Part(0..4));
        assert_eq!(of(&[("range", "bytes=0-3"), ("if-range", "\"old\"")]), Asked::Whole);
        for tags in ["\"abc\"", "\"x\", W/\"abc\"", "*"] {
            assert_eq!(of(&[("if-none-match", tags), ("range", "bytes=0-3")]), Asked::Nothing, "{tags}");
        }
        assert_eq!(of(&[("if-none-match", "\"x\"")]), Asked::Whole);
    }
}
