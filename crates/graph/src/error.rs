//! One opaque error for the whole workspace. It says what kind of failure it is, which operation met
//! it, what rule was broken, and where each operand was made.

use std::fmt;
use std::panic::Location;

/// What went wrong, as far as a program can act on it.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Shapes do not fit each other or the operation.
    Shape,
    /// An operand has a dtype that the operation does not take.
    DType,
    /// Operands belong to different contexts.
    Device,
    /// An argument is out of its range.
    Argument,
    /// A handle is used after its value ended, or outside the pass that it belongs to.
    Stale,
    /// An operation has no gradient rule.
    Gradient,
    /// No adapter fits what was asked.
    Adapter,
    /// The computation needs more than the device's limits allow.
    Limit,
    /// Device or budget has no room.
    OutOfMemory,
    /// The device is gone; its context is dead.
    Lost,
    /// A kernel did not compile or did not validate.
    Kernel,
    /// Data from outside (a file, a batch) is malformed.
    Data,
    /// A wait passed its deadline.
    Timeout,
    /// An error that the caller's own closure made.
    User,
}

/// A failure: kind, operation, the rule broken, and the operands with the lines that made them.
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    op: String,
    detail: String,
    at: Option<&'static Location<'static>>,
    operands: Vec<(String, Option<&'static Location<'static>>)>,
    source: Option<std::sync::Arc<dyn std::error::Error + Send + Sync>>,
}

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of `kind` met by operation `op`; `detail` says the rule that was broken.
    pub fn new(kind: ErrorKind, op: impl Into<String>, detail: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            kind,
            op: op.into(),
            detail: detail.into(),
            at: None,
            operands: Vec::new(),
            source: None,
        }))
    }

    /// The same error with the line of the operation that met it.
    #[must_use]
    pub fn at(mut self, at: &'static Location<'static>) -> Self {
        self.0.at.get_or_insert(at);
        self
    }

    /// The same error with one more operand: its description and the line that made it.
    #[must_use]
    pub fn operand(mut self, what: impl Into<String>, at: Option<&'static Location<'static>>) -> Self {
        self.0.operands.push((what.into(), at));
        self
    }

    /// The same error with the failure that caused it.
    #[must_use]
    pub fn because(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.0.source = Some(std::sync::Arc::new(source));
        self
    }

    /// What went wrong, as far as a program can act on it.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The operation that met the failure.
    pub fn op(&self) -> &str {
        &self.0.op
    }

    /// Whether the device is gone.
    pub fn is_lost(&self) -> bool {
        self.0.kind == ErrorKind::Lost
    }

    /// Whether device or budget had no room.
    pub fn is_out_of_memory(&self) -> bool {
        self.0.kind == ErrorKind::OutOfMemory
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0.op, self.0.detail)?;
        if let Some(at) = self.0.at {
            write!(f, "\n  at {at}")?;
        }
        for (what, at) in &self.0.operands {
            write!(f, "\n  {what}")?;
            if let Some(at) = at {
                write!(f, "  at {at}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} error: {self}", self.0.kind)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|s| s as _)
    }
}

/// Returns early with an [`Error`]: `bail!(Shape, "add", "shapes {a} and {b} do not broadcast")`.
#[macro_export]
macro_rules! bail {
    ($kind:ident, $op:expr, $($detail:tt)+) => {
        return Err($crate::Error::new($crate::ErrorKind::$kind, $op, format!($($detail)+)))
    };
}
