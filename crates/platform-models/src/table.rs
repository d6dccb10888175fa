//! Static embeddings (model2vec): the vector of a text is the mean of those of its tokens, which stand in a table.

use std::path::Path;

use half::f16;
use platform_core::sha256_hex;
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use tokenizers::Tokenizer;

use crate::embedding::normalise;

/// Tokens of a text that count.
const MAX_TOKENS: usize = 512;
/// Bytes of a text that are looked at.
const MAX_BYTES: usize = 16 * 1024;

/// A table of vectors, and how texts become tokens of it.
pub(crate) struct Table {
    tokenizer: Tokenizer,
    /// Token that stands for what is in no table.
    unknown: Option<u32>,
    dimensions: usize,
    /// Of its file.
    digest: String,
    /// Row by row.
    values: Vec<f32>,
    /// Row of each token, where that is not its own number.
    rows: Option<Vec<usize>>,
    /// How much each token counts; `None` = all the same.
    weights: Option<Vec<f32>>,
}

impl Table {
    /// Reads `tokenizer.json` and `model.safetensors` of a folder.
    pub fn load(folder: &Path) -> Result<Self, String> {
        let wrong = |name: &str, reason: String| format!("{}: {reason}", folder.join(name).display());
        let tokenizer = Tokenizer::from_file(folder.join("tokenizer.json"));
        let mut tokenizer = tokenizer.map_err(|error| wrong("tokenizer.json", error.to_string()))?;
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).map_err(|error| wrong("tokenizer.json", error.to_string()))?;
        let bytes = std::fs::read(folder.join("model.safetensors"));
        let bytes = bytes.map_err(|error| wrong("model.safetensors", error.to_string()))?;
        Self::read(tokenizer, &bytes).map_err(|reason| wrong("model.safetensors", reason))
    }

    fn read(tokenizer: Tokenizer, bytes: &[u8]) -> Result<Self, String> {
        let tensors = SafeTensors::deserialize(bytes).map_err(|error| error.to_string())?;
        let table = tensors.tensor("embeddings").map_err(|_| "there is no tensor `embeddings`".to_owned())?;
        let [_, dimensions] = *table.shape() else { return Err("`embeddings` is no table".to_owned()) };
        if dimensions == 0 {
            return Err("the vectors have no dimensions".to_owned());
        }
        let rows = tensors.tensor("mapping").ok().map(|rows| whole_numbers(&rows)).transpose()?;
        let weights = tensors.tensor("weights").ok().map(|weights| numbers(&weights)).transpose()?;
        let unknown = ["[UNK]", "<unk>"].into_iter().find_map(|name| tokenizer.token_to_id(name));
        let digest = sha256_hex(bytes)[..8].to_owned();
        Ok(Self { tokenizer, unknown, dimensions, digest, values: numbers(&table)?, rows, weights })
    }

    /// The vector of a text, and of how many tokens it is made.
    pub fn embed(&self, text: &str) -> Result<(Vec<f32>, usize), String> {
        let text = &text[..text.floor_char_boundary(MAX_BYTES)];
        let encoded = self.tokenizer.encode_fast(text, false).map_err(|error| error.to_string())?;
        let tokens = encoded.get_ids().iter().filter(|id| Some(**id) != self.unknown).take(MAX_TOKENS);
        let (mut sum, mut count) = (vec![0.0; self.dimensions], 0);
        for token in tokens {
            let token = usize::try_from(*token).unwrap_or(usize::MAX);
            let row = match &self.rows {
                Some(rows) => rows.get(token).copied(),
                None => Some(token),
            };
            let row = row.and_then(|row| self.values.get(row.checked_mul(self.dimensions)?..)?.get(..self.dimensions));
            let Some(row) = row else { continue };
            let weight = self.weights.as_ref().and_then(|weights| weights.get(token)).copied().unwrap_or(1.0);
            sum.iter_mut().zip(row).for_each(|(sum, value)| *sum += weight * value);
            count += 1;
        }
        normalise(&mut sum);
        Ok((sum, count))
    }

    /// Tells it from another table.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// Length of its vectors.
    pub fn dimensions(&self) -> usize {
        self.dimensions
    }
}

/// The numbers of a tensor, whatever their width.
fn numbers(tensor: &TensorView<'_>) -> Result<Vec<f32>, String> {
    let bytes = tensor.data();
    Ok(match tensor.dtype() {
        Dtype::F32 => bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
        #[expect(clippy::cast_possible_truncation, reason = "weights need no more")]
        Dtype::F64 => bytes.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes) as f32).collect(),
        Dtype::F16 => bytes.as_chunks().0.iter().map(|bytes| f16::from_le_bytes(*bytes).to_f32()).collect(),
        Dtype::I8 => bytes.iter().map(|byte| f32::from(byte.cast_signed())).collect(),
        other => return Err(format!("numbers of the kind {other:?} are not read here")),
    })
}

fn whole_numbers(tensor: &TensorView<'_>) -> Result<Vec<usize>, String> {
    let bytes = tensor.data();
    let numbers: Option<Vec<usize>> = match tensor.dtype() {
        Dtype::I64 => {
            bytes.as_chunks().0.iter().map(|bytes| usize::try_from(i64::from_le_bytes(*bytes)).ok()).collect()
        }
        Dtype::I32 => {
            bytes.as_chunks().0.iter().map(|bytes| usize::try_from(i32::from_le_bytes(*bytes)).ok()).collect()
        }
        other => return Err(format!("row numbers of the kind {other:?} are not read here")),
    };
    numbers.ok_or_else(|| "a row number is below 0".to_owned())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// Three words in a table of two dimensions; `extra`: more tensors, as name, kind, shape and bytes.
    fn folder(name: &str, extra: &[(&str, &str, usize, Vec<u8>)], table: &[f32]) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("table-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a folder");
        let tokenizer = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
            "normalizer": {"type": "Lowercase"}, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null,
            "decoder": null, "model": {"type": "WordLevel", "unk_token": "[UNK]",
            "vocab": {"[UNK]": 0, "cat": 1, "dog": 2, "car": 3}}}"#;
        std::fs::write(dir.join("tokenizer.json"), tokenizer).expect("written");
        let bytes: Vec<u8> = table.iter().flat_map(|value| value.to_le_bytes()).collect();
        let mut header = serde_json::json!({"embeddings":
            {"dtype": "F32", "shape": [table.len() / 2, 2], "data_offsets": [0, bytes.len()]}});
        let mut all = bytes;
        for (name, kind, count, bytes) in extra {
            header[name] = serde_json::json!({"dtype": kind, "shape": [count],
                "data_offsets": [all.len(), all.len() + bytes.len()]});
            all.extend(bytes);
        }
        let header = header.to_string();
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.as_bytes());
        file.extend(all);
        std::fs::write(dir.join("model.safetensors"), file).expect("written");
        dir
    }

    #[test]
    fn a_text_is_the_mean_of_its_words_and_what_no_table_has_counts_nothing() {
        let dir = folder("plain", &[], &[9.0, 9.0, 1.0, 0.0, 0.0, 1.0, -1.0, 0.0]);
        let table = Table::load(&dir).expect("a table");
        assert_eq!(table.dimensions(), 2);
        assert_eq!(table.embed("Cat unicorn").expect("a vector"), (vec![1.0, 0.0], 1));
        let (both, tokens) = table.embed("cat dog").expect("a vector");
        assert!((both[0] - both[1]).abs() < 1e-6 && (both[0] - 0.5_f32.sqrt()).abs() < 1e-6 && tokens == 2);
        assert_eq!(table.embed("").expect("no direction"), (vec![0.0, 0.0], 0));
    }

    #[test]
    fn tables_with_fewer_rows_than_words_and_with_weights_are_read() {
        let rows: Vec<u8> = [0_i64, 0, 1, 1].iter().flat_map(|row| row.to_le_bytes()).collect();
        let weights: Vec<u8> = [0.0_f32, 1.0, 3.0, 3.0].iter().flat_map(|weight| weight.to_le_bytes()).collect();
        let dir =
            folder("mapped", &[("mapping", "I64", 4, rows), ("weights", "F32", 4, weights)], &[1.0, 0.0, 0.0, 1.0]);
        let (vector, _) = Table::load(&dir).expect("a table").embed("cat dog").expect("a vector");
        assert!((vector[1] / vector[0] - 3.0).abs() < 1e-5, "{vector:?}");
    }

    #[test]
    fn a_folder_that_holds_none_says_which_file_is_wrong() {
        let dir = folder("wrong", &[], &[1.0, 0.0]);
        std::fs::write(dir.join("model.safetensors"), b"nothing").expect("written");
        let error = Table::load(&dir).err().expect("no table");
        assert!(error.contains("model.safetensors"), "{error}");
        assert!(Table::load(&dir.join("none")).err().expect("no folder").contains("tokenizer.json"));
    }
}
