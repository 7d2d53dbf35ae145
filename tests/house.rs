//! The walls: which crate may use which, where `wgpu` and `unsafe` may stand, how long files are.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

crate::suite![
    plain: crates_use_only_what_they_may, files_are_short, wgpu_and_unsafe_stay_inside, kernels_have_headers,
        functions_join_conditions_without_jumps, loops_in_functions_are_known;
    device:
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the workspace").to_owned()
}

/// What each package may use, of the workspace and of the field. Other packages of the field are free.
const MAY_USE: &[(&str, &[&str])] = &[
    ("wgrad-graph", &[]),
    ("wgrad-wgsl", &[]),
    ("wgrad-profile", &["wgrad-graph"]),
    ("wgrad-autograd", &["wgrad-graph", "wgrad-profile", "slotmap", "tracing"]),
    ("wgrad-cpu", &["wgrad-graph"]),
    ("wgrad-wgpu", &["wgrad-graph", "wgrad-wgsl", "wgpu", "naga", "slotmap", "pollster", "tracing"]),
    ("wgrad-pipeline", &["wgrad-graph", "wgrad-autograd", "wgrad-nn", "tracing"]),
    ("wgrad-nn", &["wgrad-graph", "wgrad-autograd", "tracing"]),
];

/// Packages that not every crate may use.
const GUARDED: &[&str] = &["wgpu", "naga", "slotmap", "pollster", "tracing"];

fn crates_use_only_what_they_may() {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo writes JSON");
    let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for package in metadata["packages"].as_array().expect("packages") {
        let name = package["name"].as_str().expect("a name").to_owned();
        for dependency in package["dependencies"].as_array().expect("dependencies") {
            if dependency["kind"].is_null() {
                let dependency = dependency["name"].as_str().expect("a name").to_owned();
                uses.entry(name.clone()).or_default().insert(dependency);
            }
        }
        uses.entry(name).or_default();
    }
    for (name, used) in &uses {
        let Some((_, may)) = MAY_USE.iter().find(|(n, _)| n == name) else { continue };
        for dependency in used {
            let guarded = dependency.starts_with("wgrad") || GUARDED.contains(&dependency.as_str());
            assert!(!guarded || may.contains(&dependency.as_str()), "{name} may not use {dependency}");
        }
    }
    for crate_name in ["graph", "profile", "autograd", "cpu", "wgpu", "nn", "pipeline"] {
        assert!(uses.contains_key(&format!("wgrad-{crate_name}")), "wgrad-{crate_name} is missing");
    }
}

/// The files with this ending below `folder`.
fn files(folder: &Path, ending: &str, found: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries {
        let path = entry.expect("a readable folder").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        if path.is_dir() {
            if name != "target" && !name.starts_with('.') {
                files(&path, ending, found);
            }
        } else if name.ends_with(ending) {
            found.push(path);
        }
    }
}

fn sources(ending: &str) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    files(&root(), ending, &mut found);
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).expect("source text");
        (path.strip_prefix(root()).expect("below the root").to_owned(), text)
    };
    found.into_iter().map(read).collect()
}

fn files_are_short() {
    let all = sources(".rs");
    assert!(all.len() > 40, "only {} Rust files were found", all.len());
    for (path, text) in all {
        let lines = text.lines().count();
        assert!(lines <= 600, "{} has {lines} lines; the wall is 600", path.display());
    }
    for (path, text) in sources(".wgsl") {
        let lines = text.lines().count();
        assert!(lines <= 150, "{} has {lines} lines; the wall is 150", path.display());
    }
}

fn wgpu_and_unsafe_stay_inside() {
    let mut unsafe_files: BTreeMap<String, BTreeSet<PathBuf>> = BTreeMap::new();
    for (path, text) in sources(".rs") {
        let inside = path.starts_with("crates/wgpu");
        let this = path.ends_with("tests/house.rs");
        for (number, line) in text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            let names_wgpu = code.replace("wgrad_wgpu::", "").contains("wgpu::");
            assert!(inside || this || !names_wgpu, "{}:{} names wgpu", path.display(), number + 1);
            let is_unsafe = ["unsafe {", "unsafe fn", "unsafe impl"].iter().any(|u| code.contains(u));
            if is_unsafe && !this {
                let folder =
                    path.components().take(2).map(|c| c.as_os_str().to_string_lossy()).collect::<Vec<_>>();
                unsafe_files.entry(folder.join("/")).or_default().insert(path.clone());
            }
        }
        if text.contains("unsafe {") && !this {
            assert!(text.contains("SAFETY:"), "{} has unsafe code without a SAFETY line", path.display());
        }
    }
    for (folder, files) in unsafe_files {
        let most = match folder.as_str() {
            "crates/wgpu" => usize::MAX,
            "crates/cpu" | "crates/nn" => 1,
            _ => 0,
        };
        assert!(files.len() <= most, "{folder} has unsafe code in {files:?}");
    }
}

fn kernels_have_headers() {
    let all = sources(".wgsl");
    assert!(!all.is_empty(), "no WGSL file was found");
    for (path, text) in all {
        for word in ["math", "shapes", "dispatch", "numerics", "cost", "source"] {
            let header = text.lines().take_while(|l| l.starts_with("//") || l.is_empty());
            let says = |l: &str| l.trim_start_matches('/').trim_start().to_lowercase().starts_with(word);
            let has = header.into_iter().any(says);
            assert!(has, "{}: the header does not say `{word}`", path.display());
        }
    }
}

/// A jump for each `&&` of a text that is repeated takes drivers on CPUs minutes to compile.
fn functions_join_conditions_without_jumps() {
    let files = sources(".wgsl");
    let of_functions = files.iter().filter(|(_, text)| !text.contains("@compute"));
    let mut functions = 0;
    for (path, text) in of_functions {
        functions += text.matches("fn wg_").count();
        for (number, line) in text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            // What returns early is a jump as it is.
            let jumps = code.contains("&&") || code.contains("||");
            assert!(!jumps || code.trim_start().starts_with("if "), "{}:{}", path.display(), number + 1);
        }
    }
    assert!(functions > 100, "only {functions} functions were found");
}

/// What runs along many elements on llvmpipe counts the loops of the functions that it calls: `loop_rounds` in
/// `crates/wgpu/src/emit/body.rs` has to know each.
fn loops_in_functions_are_known() {
    let mut found = Vec::new();
    for (_, text) in sources(".wgsl").iter().filter(|(_, text)| !text.contains("@compute")) {
        let mut function = "";
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("fn ") {
                function = rest.split('(').next().unwrap_or_default();
            }
            let code = line.trim_start();
            if ["for ", "loop ", "while "].iter().any(|word| code.starts_with(word)) {
                found.push(function.to_owned());
            }
        }
    }
    found.sort();
    assert_eq!(found, ["wg_ipow_u32", "wg_philox", "wg_pow_i64", "wg_quotient"]);
}
