//! Migrations are compiled in: a changed one rebuilds this crate and renames the tests' template database.
use std::{
    collections::BTreeSet,
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    path::Path,
};

fn main() {
    let root = Path::new("../../migrations");
    println!("cargo:rerun-if-changed={}", root.display());
    let mut hasher = DefaultHasher::new();
    let folders: BTreeSet<_> = fs::read_dir(root).expect("migrations/").map(|e| e.expect("entry").path()).collect();
    for folder in folders {
        println!("cargo:rerun-if-changed={}", folder.display());
        folder.hash(&mut hasher);
        fs::read_to_string(folder.join("up.sql")).expect("up.sql").hash(&mut hasher);
    }
    println!("cargo:rustc-env=MIGRATIONS_HASH={:016x}", hasher.finish());
}
