//! Errors that say where in a pipeline they were met.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use wgrad_graph::{Error, ErrorKind, Result};

/// The error with the place in the pipeline that met it; the kind stays.
pub(crate) fn placed(place: &str, error: Error) -> Error {
    Error::new(error.kind(), "pipeline", format!("{place}: {error}")).because(error)
}

/// What a panic says.
pub(crate) fn panicked(payload: &(dyn Any + Send)) -> Error {
    // Layers cannot return errors; the ones that meet the world throw theirs.
    if let Some(error) = payload.downcast_ref::<Error>() {
        return error.clone();
    }
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("no message");
    Error::new(ErrorKind::User, "panic", text)
}

/// Runs `f`; a panic of the user's code is an error. Layers tell of wrong shapes by panics.
pub(crate) fn guarded<T>(f: impl FnOnce() -> Result<T>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(result) => result,
        Err(payload) => Err(panicked(&*payload)),
    }
}
