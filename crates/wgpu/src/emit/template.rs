//! Kernel text from the files of `wgsl/`: regions replaced, functions taken by name.

use std::collections::BTreeSet;
use std::sync::OnceLock;

/// The text of `file` without comments, each region `//[ name` .. `//]` replaced by the text that
/// `regions` gives for its name (its own text where none is given).
pub(super) fn fill(file: &str, regions: &[(&str, &str)]) -> String {
    let mut out = String::with_capacity(file.len());
    let mut lines = file.lines();
    while let Some(line) = lines.next() {
        let code = line.trim_start();
        if let Some(name) = code.strip_prefix("//[ ") {
            let given = regions.iter().find(|(n, _)| *n == name);
            let own = lines.by_ref().take_while(|l| l.trim_start() != "//]");
            match given {
                Some((_, text)) => {
                    own.for_each(drop);
                    out.push_str(text);
                    if !text.is_empty() && !text.ends_with('\n') {
                        out.push('\n');
                    }
                }
                None => own.for_each(|l| push(&mut out, l)),
            }
        } else {
            push(&mut out, line);
        }
    }
    out
}

fn push(out: &mut String, line: &str) {
    if !line.trim_start().starts_with("//") && !line.is_empty() {
        out.push_str(line);
        out.push('\n');
    }
}

/// A function of the prelude.
struct Function {
    name: String,
    text: String,
    calls: BTreeSet<String>,
}

fn functions() -> &'static [Function] {
    static ALL: OnceLock<Vec<Function>> = OnceLock::new();
    ALL.get_or_init(|| {
        let mut all = Vec::new();
        for file in wgrad_wgsl::FUNCTIONS {
            let code = fill(file, &[]);
            for text in code.split("\nfn ").map(|t| t.strip_prefix("fn ").unwrap_or(t)) {
                let name = text.split('(').next().unwrap_or_default().to_owned();
                let mut calls = called(text);
                calls.remove(&name);
                all.push(Function { name, text: format!("fn {}\n", text.trim_end()), calls });
            }
        }
        all
    })
}

/// Whether the prelude has this function.
pub(super) fn has(name: &str) -> bool {
    functions().iter().any(|f| f.name == name)
}

/// The names of the form `wg_*` in `text`.
fn called(text: &str) -> BTreeSet<String> {
    words(text).filter(|w| w.starts_with("wg_")).map(str::to_owned).collect()
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).filter(|w| !w.is_empty())
}

/// The prelude functions that `text` calls, and those that they call, in one fixed order.
pub(super) fn prelude(text: &str) -> String {
    let mut wanted = called(text);
    loop {
        let more: Vec<String> = functions()
            .iter()
            .filter(|f| wanted.contains(&f.name))
            .flat_map(|f| f.calls.iter())
            .filter(|c| !wanted.contains(*c))
            .cloned()
            .collect();
        if more.is_empty() {
            break;
        }
        wanted.extend(more);
    }
    functions().iter().filter(|f| wanted.contains(&f.name)).map(|f| f.text.as_str()).collect()
}

/// `text` with the driver's own conversions of halves, of those that narrow too where `narrowing`.
pub(super) fn packed(text: &str, narrowing: bool) -> String {
    let names = ["wg_from_f16", "wg_from_f16_quad"];
    names
        .iter()
        .chain(narrowing.then_some(&"wg_to_f16"))
        .fold(text.to_owned(), |text, name| text.replace(&format!("{name}("), &format!("{name}_packed(")))
}

/// `text` with each whole word replaced by what `by` gives for it.
pub(super) fn substitute(text: &str, by: impl Fn(&str) -> Option<String>) -> String {
    let mut out = String::with_capacity(text.len() + 16);
    let mut word = String::new();
    let mut numeric = false;
    for c in text.chars().chain(std::iter::once('\0')) {
        if c.is_ascii_alphanumeric() || c == '_' || (c == '.' && numeric) {
            if word.is_empty() {
                numeric = c.is_ascii_digit();
            }
            word.push(c);
            continue;
        }
        if !word.is_empty() {
            match by(&word) {
                Some(new) => out.push_str(&new),
                None => out.push_str(&word),
            }
            word.clear();
            numeric = false;
        }
        if c != '\0' {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_replaced_and_comments_dropped() {
        let file = "// head\na\n//[ one\nb\n//]\n  //[ two\n  c\n  //]\nd\n";
        assert_eq!(fill(file, &[]), "a\nb\n  c\nd\n");
        assert_eq!(fill(file, &[("one", "x")]), "a\nx\n  c\nd\n");
        assert_eq!(fill(file, &[("one", ""), ("two", "y\n")]), "a\ny\nd\n");
    }

    #[test]
    fn the_prelude_holds_what_is_called_and_no_more() {
        let text = prelude("let y = wg_sin(x);");
        assert!(text.contains("fn wg_sin(") && text.contains("fn wg_turned_sin("));
        assert!(!text.contains("fn wg_cos("));
        assert_eq!(prelude("let y = x;"), "");
    }

    #[test]
    fn whole_words_are_replaced() {
        let by = |w: &str| (w == "x").then(|| "x12".to_owned());
        assert_eq!(substitute("max(x, 0.0) + xx", by), "max(x12, 0.0) + xx");
    }
}
