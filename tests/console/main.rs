//! The console in a real browser, and what it is built from: `just console` installs what these tests take.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use platform_testing::{TestApp, TestDb};

const PROGRAM: &str = env!("CARGO_BIN_EXE_platform-under-test");

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("console")
}

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../bins/gateway/console")
}

/// Where Chromium is, as `which` says.
fn browser() -> String {
    let found = Command::new("which").arg("chromium").output().expect("which");
    String::from_utf8_lossy(&found.stdout).trim().to_owned()
}

/// Runs a program; what it said when it failed.
fn run(directory: &Path, program: &str, arguments: &[&str], environment: &[(&str, &str)]) -> Result<(), String> {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(directory).envs(environment.iter().copied()).stdin(Stdio::null());
    let output = command.output().map_err(|error| format!("{program}: {error}; `just console` installs it"))?;
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    println!("{said}");
    if output.status.success() { Ok(()) } else { Err(said) }
}

/// Files of a folder, unpacked: compressors differ, what they pack does not.
fn unpacked(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("a file").path());
    let unpack = |path: PathBuf| {
        let output = Command::new("gzip").args(["-dc"]).arg(&path).output().expect("gzip");
        assert!(output.status.success(), "{}", path.display());
        (path.file_name().expect("a name").to_string_lossy().into_owned(), output.stdout)
    };
    entries.map(unpack).collect()
}

#[test]
fn the_console_that_is_kept_is_the_one_that_its_sources_build() {
    let fresh = std::env::temp_dir().join(format!("console-{}", std::process::id()));
    let _ = fs::remove_dir_all(&fresh);
    run(&sources(), "node", &["build.mjs", fresh.to_str().expect("a path")], &[]).expect("it is built");
    let (kept, built) = (unpacked(&sources().join("dist")), unpacked(&fresh));
    assert_eq!(kept.keys().collect::<Vec<_>>(), built.keys().collect::<Vec<_>>());
    for (name, bytes) in &built {
        assert!(kept[name] == *bytes, "{name} is not what its sources say; run `just console-build`");
    }
    fs::remove_dir_all(&fresh).expect("gone");
}

#[test]
fn the_console_names_paths_and_fields_that_the_api_has() {
    let document = Command::new(PROGRAM).arg("openapi").env_clear().output().expect("the document");
    assert!(document.status.success());
    fs::write(sources().join("openapi.json"), document.stdout).expect("written");
    run(&sources(), "npm", &["run", "--silent", "types"], &[]).expect("types are made");
    run(&sources(), "npm", &["run", "--silent", "check"], &[]).expect("they fit");
}

#[tokio::test]
async fn a_person_goes_from_the_first_start_to_a_spent_quota() {
    // A test goes from page to page faster than a person.
    let app = TestApp::start(PROGRAM, &TestDb::new().await, &[("PLATFORM_RATE_RESTRICTED", "6000:1000")]);
    let environment = [
        ("CONSOLE_URL", app.url()),
        ("CONSOLE_LINK", app.log_in_link().expect("a first start")),
        ("CONSOLE_KEY", app.key()),
        ("CONSOLE_BROWSER", &browser()),
    ];
    run(&directory(), "node", &["journey.mjs"], &environment).expect("every step is done");
}
