//! PDFs whose index of objects is wrong, as transfers and editors leave them: the objects are looked for themselves.

use std::collections::BTreeMap;

use pdf_extract::Document;

/// Objects that are looked for.
const MAX_OBJECTS: usize = 1 << 20;

/// A document whose index cannot be read, with another one; `None` where it is not the index that is wrong.
pub(super) fn repaired(bytes: &[u8]) -> Option<Document> {
    // What is encrypted says how in its trailer, which may be anywhere.
    if find_last(bytes, b"/Encrypt").is_some() {
        return None;
    }
    let objects = objects(bytes);
    let root = root(bytes, &objects)?;
    let mut with_index = bytes.to_vec();
    with_index.push(b'\n');
    let begins = with_index.len();
    let size = u64::from(*objects.keys().last()?) + 1;
    let entries =
        objects.iter().map(|(number, (generation, offset))| format!("{number} 1\n{offset:010} {generation:05} n \n"));
    let entries: String = entries.collect();
    let (number, generation) = root;
    let index = format!(
        "xref\n0 1\n0000000000 65535 f \n{entries}trailer\n<< /Size {size} /Root {number} {generation} R >>\nstartxref\n{begins}\n%%EOF\n"
    );
    with_index.extend(index.into_bytes());
    Document::load_mem(&with_index).ok()
}

/// Where objects begin (`12 0 obj`), with their generation; of those that stand there twice, the last counts.
fn objects(bytes: &[u8]) -> BTreeMap<u32, (u16, usize)> {
    let mut objects = BTreeMap::new();
    for at in (0..bytes.len()).filter(|at| bytes[*at..].starts_with(b" obj")).take(MAX_OBJECTS) {
        let Some((generation, before)) = number_before(bytes, at) else { continue };
        let Some((number, begins)) = before.checked_sub(1).and_then(|before| number_before(bytes, before)) else {
            continue;
        };
        if let (Ok(number), Ok(generation)) = (u32::try_from(number), u16::try_from(generation)) {
            objects.insert(number, (generation, begins));
        }
    }
    objects
}

/// The number that ends there, and where it begins.
fn number_before(bytes: &[u8], end: usize) -> Option<(u64, usize)> {
    let digits = bytes[..end].iter().rev().take_while(|byte| byte.is_ascii_digit()).take(10).count();
    let number = std::str::from_utf8(&bytes[end - digits..end]).ok()?;
    Some((number.parse().ok()?, end - digits))
}

/// The catalog: as a trailer names it, else what says that it is one.
fn root(bytes: &[u8], objects: &BTreeMap<u32, (u16, usize)>) -> Option<(u32, u16)> {
    let named = find_last(bytes, b"/Root").and_then(|at| {
        let said = std::str::from_utf8(bytes.get(at + 5..at + 25)?).ok()?;
        let mut words = said.split_ascii_whitespace();
        Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
    });
    named.or_else(|| {
        let at = find_last(bytes, b"/Type /Catalog").or_else(|| find_last(bytes, b"/Type/Catalog"))?;
        let of = objects.iter().filter(|(_, (_, begins))| *begins < at).max_by_key(|(_, (_, begins))| *begins)?;
        Some((*of.0, of.1.0))
    })
}

fn find_last(bytes: &[u8], text: &[u8]) -> Option<usize> {
    bytes.windows(text.len()).rposition(|window| window == text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_is_read_whatever_its_index_says() {
        let whole = b"%PDF-1.4\n1 0 obj\n<< /Type /Catalog /Pages 2 0 R >>\nendobj\n\
            2 0 obj\n<< /Type /Pages /Kids [3 0 R] /Count 1 >>\nendobj\n\
            3 0 obj\n<< /Type /Page /Parent 2 0 R /MediaBox [0 0 9 9] >>\nendobj\n";
        let trailer = b"trailer\n<< /Size 4 /Root 1 0 R >>\nstartxref\n7\n%%EOF\n";
        for bytes in [whole.to_vec(), [&whole[..], trailer].concat(), [&whole[..], &[b'\n'; 2000]].concat()] {
            assert!(Document::load_mem(&bytes).is_err());
            assert_eq!(repaired(&bytes).map(|document| document.get_pages().len()), Some(1));
        }
        assert!(repaired(b"%PDF-1.4\n obj 1 obj x 99999999999 0 obj").is_none());
        assert!(repaired(&[whole, &b"trailer\n<< /Encrypt 9 0 R >>"[..]].concat()).is_none());
    }
}
