//! A disk as pieces in the object store, each named by what is in it: what did not change is there already.

use std::{
    collections::HashSet,
    io::{self, Read, Write},
    sync::Arc,
};

use bytes::{Buf, Bytes};
use fastcdc::v2020::FastCDC;
use futures_util::{StreamExt, TryStreamExt, stream};
use platform_core::{AccountId, Error, Result, run_blocking, sha256_hex, spawn};
use platform_files::{Content, Store};
use platform_sandbox::Machine;
use tokio::sync::mpsc;

/// Sizes of pieces, in bytes: smallest, usual, largest. A change costs the pieces that it touches.
const PIECE: (usize, usize, usize) = (64 << 10, 256 << 10, 1 << 20);
/// No piece was ever larger.
const LARGEST: usize = 2 << 20;
/// Pieces that are under way at once.
const AT_ONCE: usize = 8;
/// As fast as the disk, and half the size of most files.
const LEVEL: i32 = 1;
/// Of a hash.
pub(super) const HASH_BYTES: usize = 32;

/// Where a piece is.
pub(super) fn key(account: &AccountId, hash: &str) -> String {
    format!("{}{}/{hash}", prefix(account), &hash[..2])
}

pub(super) fn prefix(account: &AccountId) -> String {
    format!("snapshots/{}/", account.as_str())
}

pub(super) fn hashes(pieces: &[u8]) -> impl Iterator<Item = String> {
    pieces.chunks(HASH_BYTES).map(platform_core::hex)
}

/// Saves the disk of a machine that has ended: its size, and the hashes of its pieces. `known`: what is there already.
pub(super) async fn save(
    store: &Store,
    account: &AccountId,
    machine: &Arc<dyn Machine>,
    known: HashSet<String>,
) -> Result<(i64, Vec<u8>)> {
    let (gives, given) = mpsc::channel(AT_ONCE);
    let packing = machine.save(Box::new(Cutter { buffer: Vec::with_capacity(2 * PIECE.2), gives }));
    let known = Arc::new(known);
    let taking = stream::unfold(given, |mut given| async move { Some((given.recv().await?, given)) })
        .map(|piece: Vec<u8>| {
            let (store, account, known) = (store.clone(), account.clone(), Arc::clone(&known));
            async move {
                let size = piece.len() as u64;
                let (hash, packed) = run_blocking(move || {
                    let hash = sha256_hex(&piece);
                    let packed = if known.contains(&hash) { None } else { Some(zstd::bulk::compress(&piece, LEVEL)) };
                    Ok((hash, packed.transpose().map_err(Error::internal)?))
                })
                .await?;
                if let Some(packed) = packed {
                    store.put(&key(&account, &hash), Content::Bytes(packed.into())).await?;
                }
                Ok::<_, Error>((hash, size))
            }
        })
        .buffered(AT_ONCE)
        .try_fold((0_u64, Vec::new()), |(size, mut hashes), (hash, more)| async move {
            let byte = |at: usize| u8::from_str_radix(&hash[2 * at..2 * at + 2], 16).unwrap_or(0);
            hashes.extend((0..HASH_BYTES).map(byte));
            Ok((size + more, hashes))
        });
    let (packed, taken) = tokio::join!(packing, taking);
    let (size, hashes) = taken?;
    packed.map_err(|error| Error::new(crate::code::SANDBOX_UNAVAILABLE, error.to_string()))?;
    Ok((i64::try_from(size).unwrap_or(i64::MAX), hashes))
}

/// Cuts what is written to it where its content says, so that what is put in somewhere moves no other cut.
struct Cutter {
    buffer: Vec<u8>,
    gives: mpsc::Sender<Vec<u8>>,
}

impl Cutter {
    fn cut(&mut self) -> io::Result<()> {
        let (least, usual, most) = PIECE;
        let length = FastCDC::new(&self.buffer, least, usual, most).next().map_or(0, |piece| piece.length);
        let rest = self.buffer.split_off(length);
        let piece = std::mem::replace(&mut self.buffer, rest);
        self.gives.blocking_send(piece).map_err(|_| io::Error::other("nobody takes the pieces any more"))
    }
}

impl Write for Cutter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.buffer.extend_from_slice(bytes);
        while self.buffer.len() >= 2 * PIECE.2 {
            self.cut()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        while !self.buffer.is_empty() {
            self.cut()?;
        }
        Ok(())
    }
}

/// The archive that pieces are of; they are fetched while it is read.
pub(super) fn read(store: &Store, account: &AccountId, pieces: &[u8]) -> Box<dyn Read + Send> {
    let (gives, given) = mpsc::channel(AT_ONCE);
    let (store, account, hashes) = (store.clone(), account.clone(), hashes(pieces).collect::<Vec<_>>());
    spawn("fetch a snapshot", async move {
        let fetch = |hash: String| {
            let (store, account) = (store.clone(), account.clone());
            async move {
                let lost = || io::Error::other(format!("a piece of the snapshot is lost: {hash}"));
                let found = store.read(&key(&account, &hash), 0..u64::MAX).await.map_err(io::Error::other)?;
                let packed: Vec<Bytes> = found.ok_or_else(lost)?.try_collect().await?;
                let piece =
                    run_blocking(move || zstd::bulk::decompress(&packed.concat(), LARGEST).map_err(Error::internal));
                Ok::<_, io::Error>(Bytes::from(piece.await.map_err(io::Error::other)?))
            }
        };
        let mut fetched = std::pin::pin!(stream::iter(hashes).map(fetch).buffered(AT_ONCE));
        while let Some(piece) = fetched.next().await {
            if gives.send(piece).await.is_err() {
                return;
            }
        }
    });
    Box::new(Pieces { given, piece: Bytes::new() })
}

struct Pieces {
    given: mpsc::Receiver<io::Result<Bytes>>,
    piece: Bytes,
}

impl Read for Pieces {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match self.given.blocking_recv() {
                Some(piece) => self.piece = piece?,
                None => return Ok(0),
            }
        }
        let length = into.len().min(self.piece.len());
        self.piece.copy_to_slice(&mut into[..length]);
        Ok(length)
    }
}
