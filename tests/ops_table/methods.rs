//! The methods that a user can call, as the sources have them.

use std::path::Path;

/// A public method, and what its documentation says of shapes.
pub(super) struct Method {
    pub(super) name: String,
    pub(super) shapes: Option<String>,
}

/// The methods of one file, and the file's first sentence.
pub(super) struct Area {
    pub(super) title: String,
    pub(super) methods: Vec<Method>,
}

/// The name of the method that begins on this line: an entry of `methods!`, or a function with a `try_` twin.
fn named<'a>(line: &'a str, text: &str) -> Option<&'a str> {
    let line = line.trim_start();
    if let Some(rest) = line.strip_prefix("pub fn ") {
        let name = rest.split('(').next()?;
        return text.contains(&format!("pub fn try_{name}(")).then_some(name);
    }
    let (name, rest) = line.split_once(" try_")?;
    let rest = rest.strip_prefix(name)?;
    let word = name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    (word && rest.starts_with('(')).then_some(name)
}

/// The sentence of a documentation that begins with `Shape: `.
fn shapes(doc: &[&str]) -> Option<String> {
    let text = doc.join(" ");
    let rest = text.split("Shape: ").nth(1)?;
    let sentence = rest.split(". ").next()?.split("  ").next()?.trim().trim_end_matches('.');
    Some(sentence.replace("[`Tensor::", "`").replace("`]", "`"))
}

fn area(text: &str) -> Area {
    let head: Vec<&str> = text.lines().take_while(|l| l.starts_with("//!")).map(|l| l[3..].trim()).collect();
    let title = head.join(" ").split(". ").next().unwrap_or_default().trim_end_matches('.').to_owned();
    let (mut methods, mut doc) = (Vec::new(), Vec::new());
    for line in text.lines() {
        if let Some(words) = line.trim_start().strip_prefix("///") {
            doc.push(words.trim());
        } else if !line.trim_start().starts_with("#[") {
            if let Some(name) = named(line, text) {
                methods.push(Method { name: name.to_owned(), shapes: shapes(&doc) });
            }
            doc.clear();
        }
    }
    Area { title, methods }
}

fn gather(folder: &Path, all: &mut Vec<Area>) {
    let mut paths: Vec<_> = std::fs::read_dir(folder)
        .expect("a folder of sources")
        .map(|e| e.expect("an entry").path())
        .collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            gather(&path, all);
        } else {
            all.push(area(&std::fs::read_to_string(&path).expect("a source")));
        }
    }
}

/// Every method that records, by files in order.
pub(super) fn areas() -> Vec<Area> {
    let mut all = Vec::new();
    gather(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/autograd/src/ops"), &mut all);
    all.retain(|area| !area.methods.is_empty());
    all
}

/// The variants of `Op`, each with the first sentence of its documentation.
pub(super) fn variants() -> Vec<(String, String)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/graph/src/op.rs");
    let text = std::fs::read_to_string(path).expect("a source");
    let body = text.split("pub enum Op {\n").nth(1).and_then(|t| t.split("\n}\n").next()).expect("the enum");
    let (mut all, mut doc) = (Vec::new(), Vec::new());
    for line in body.lines() {
        if let Some(words) = line.strip_prefix("    /// ") {
            doc.push(words);
        } else if line.starts_with("    ") && line[4..].starts_with(|c: char| c.is_ascii_uppercase()) {
            let name: String = line[4..].chars().take_while(char::is_ascii_alphanumeric).collect();
            let first = doc.join(" ");
            let first = first.split(". ").next().unwrap_or_default().trim_end_matches('.').to_owned();
            all.push((name, first));
            doc.clear();
        }
    }
    all
}
