//! Rules of the house that a machine can check.

use std::{collections::HashMap, process::Command};

use serde_json::Value;

#[test]
fn dependencies_point_down_the_floors() {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo metadata");
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    let floor = |package: &Value| package["metadata"]["platform"]["floor"].clone();
    let floors: HashMap<&str, Value> =
        packages.iter().map(|package| (package["name"].as_str().expect("a name"), floor(package))).collect();
    for package in packages {
        let name = package["name"].as_str().expect("a name");
        let Some(own) = floors[name].as_u64() else {
            assert_eq!(floors[name], "dev", "{name} does not say its floor");
            continue;
        };
        for dependency in package["dependencies"].as_array().expect("dependencies") {
            if !dependency["kind"].is_null() {
                continue;
            }
            let Some(below) = dependency["name"].as_str().and_then(|name| floors.get(name)) else { continue };
            let below = below.as_u64().expect("nothing depends on test crates");
            assert!(below < own, "{name} (floor {own}) depends on {} (floor {below})", dependency["name"]);
        }
    }
}
