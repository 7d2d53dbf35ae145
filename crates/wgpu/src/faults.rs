//! Failures of a device as values: the lost flag, errors that no scope caught, and error scopes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wgrad_graph::{Error, ErrorKind, Result};

/// Locks a mutex whose data stay consistent even if a holder panicked.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is known to have gone wrong with a device.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    lost: AtomicBool,
    why: Mutex<Option<String>>,
    stray: Mutex<Option<Error>>,
}

impl Faults {
    /// Faults of `device`, which reports to them from now on.
    pub(crate) fn watch(device: &wgpu::Device) -> Arc<Faults> {
        let faults = Arc::new(Faults::default());
        let to = Arc::clone(&faults);
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
            tracing::error!(%error, "error outside every scope");
            lock(&to.stray).get_or_insert(convert("device", &error));
        }));
        let to = Arc::clone(&faults);
        device.set_device_lost_callback(move |reason, message| {
            to.lose(&format!("{reason:?}: {message}"));
        });
        faults
    }

    /// Marks the device as gone, for good.
    pub(crate) fn lose(&self, why: &str) {
        lock(&self.why).get_or_insert_with(|| why.to_owned());
        if !self.lost.swap(true, Ordering::AcqRel) {
            tracing::error!(why, "device lost");
        }
    }

    /// Whether the device is gone.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// The error of a device that is gone.
    pub(crate) fn lost_error(&self, op: &str) -> Error {
        let why = lock(&self.why).clone().unwrap_or_default();
        Error::new(ErrorKind::Lost, op, format!("the device is lost ({why})"))
    }

    /// Fails when the device is gone, or once for an error that no scope caught.
    pub(crate) fn check(&self, op: &str) -> Result<()> {
        if self.is_lost() {
            return Err(self.lost_error(op));
        }
        lock(&self.stray).take().map_or(Ok(()), Err)
    }

    /// Runs `f` with every error of the device caught, panics included.
    pub(crate) fn scoped<T>(&self, device: &wgpu::Device, op: &str, f: impl FnOnce() -> T) -> Result<T> {
        self.check(op)?;
        let scopes =
            [wgpu::ErrorFilter::Internal, wgpu::ErrorFilter::Validation, wgpu::ErrorFilter::OutOfMemory]
                .map(|filter| device.push_error_scope(filter));
        let out = catch_unwind(AssertUnwindSafe(f));
        let mut first = None;
        for scope in scopes.into_iter().rev() {
            if let Some(error) = pollster::block_on(scope.pop()) {
                first.get_or_insert(convert(op, &error));
            }
        }
        if self.is_lost() {
            return Err(self.lost_error(op));
        }
        match (out, first) {
            (_, Some(error)) => Err(error),
            (Ok(out), None) => Ok(out),
            (Err(panic), None) => Err(Error::new(
                ErrorKind::Kernel,
                op,
                format!("the driver layer panicked: {}", text(&*panic)),
            )),
        }
    }
}

/// The message of a panic.
pub(crate) fn text(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()))
        .unwrap_or_else(|| "no message".to_owned())
}

/// An error of wgpu as one of ours.
fn convert(op: &str, error: &wgpu::Error) -> Error {
    match error {
        wgpu::Error::OutOfMemory { .. } => {
            Error::new(ErrorKind::OutOfMemory, op, "the device has no room for it")
        }
        wgpu::Error::Validation { description, .. } | wgpu::Error::Internal { description, .. } => {
            Error::new(ErrorKind::Kernel, op, description.clone())
        }
    }
}
