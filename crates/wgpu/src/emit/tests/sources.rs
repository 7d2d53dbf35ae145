//! The files of `wgsl/`: functions together, kernels each on its own.

use super::validate;

#[test]
fn every_file_is_valid_and_has_its_header() {
    validate(&wgrad_wgsl::FUNCTIONS.concat());
    for (name, source) in wgrad_wgsl::ALL {
        if !wgrad_wgsl::FUNCTIONS.contains(&source) {
            validate(source);
        }
        assert!(source.lines().count() <= 150, "{name} is too long");
        let head: String = source.lines().take_while(|l| l.starts_with("//")).collect();
        for part in ["Math:", "Shapes:", "Dispatch:", "Numerics:", "Cost:", "Source:"] {
            assert!(head.contains(part), "{name} lacks {part}");
        }
    }
}

#[test]
fn no_return_stands_before_a_barrier() {
    for (name, source) in wgrad_wgsl::ALL {
        // `sync` is a function that waits at a barrier.
        let main = &source[source.find("fn main").unwrap_or(source.len())..];
        if let Some(last) = main.rfind("workgroupBarrier").max(main.rfind("sync()")) {
            assert!(!main[..last].contains("return"), "{name}");
        }
    }
}
