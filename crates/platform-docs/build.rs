//! Lists the project's own pages and pictures: name, text, and when it was last changed, in milliseconds.
use std::{env, fs, path::Path, time::UNIX_EPOCH};

#[expect(clippy::disallowed_methods, reason = "cargo says where to write")]
fn main() {
    let root = fs::canonicalize("../../docs").expect("docs/");
    println!("cargo:rerun-if-changed={}", root.display());
    let mut files: Vec<_> = fs::read_dir(root).expect("docs/").map(|entry| entry.expect("entry").path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "md" || extension == "svg"));
    files.sort();
    let listed = files.iter().map(|path| {
        println!("cargo:rerun-if-changed={}", path.display());
        let edited = fs::metadata(path).and_then(|file| file.modified()).expect("when it was changed");
        let edited = edited.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
        format!("({name:?}, include_str!({:?}), {edited}),\n", path.to_str().expect("text"))
    });
    let list = format!("&[{}]", listed.collect::<String>());
    fs::write(Path::new(&env::var("OUT_DIR").expect("set by cargo")).join("pages.rs"), list).expect("written");
}
