//! The user's line, while a method is made of others. `#[track_caller]` ends at closures and at functions
//! without it; the outermost method notes its caller here, and all that it records names that line.

use std::cell::Cell;
use std::panic::Location;

type At = &'static Location<'static>;

thread_local! {
    static LINE: Cell<Option<At>> = const { Cell::new(None) };
}

/// A method on its way.
pub(crate) struct Line {
    outermost: bool,
}

impl Line {
    /// Notes `at` unless a method is on its way already.
    pub(crate) fn enter(at: At) -> Line {
        let outermost = LINE.get().is_none();
        if outermost {
            LINE.set(Some(at));
        }
        Line { outermost }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if self.outermost {
            LINE.set(None);
        }
    }
}

/// The line that the outermost method was called from; `at` outside of methods.
pub(crate) fn or(at: At) -> At {
    LINE.get().unwrap_or(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outermost_line_counts_until_its_method_ends() {
        let (first, second): (At, At) = (Location::caller(), Location::caller());
        let line = Line::enter(first);
        drop(Line::enter(second));
        assert!(std::ptr::eq(or(second), first));
        drop(line);
        assert!(std::ptr::eq(or(second), second));
    }
}
