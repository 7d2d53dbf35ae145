//! The families of schedules by name, with what is known of them without making one.

use std::fmt;
use std::str::FromStr;

use wgrad_graph::{Error, ErrorKind, Result};

use super::{Schedule, eager_one_f_one_b, forward_only, gpipe, interleaved, one_f_one_b, zb_h1};

/// A kind of schedule: what a user names, and what the partition needs to know.
///
/// # Example
/// ```
/// use wgrad_pipeline::Family;
/// # fn main() -> wgrad_graph::Result<()> {
/// let family: Family = "interleaved:2".parse()?;
/// assert_eq!(family, Family::Interleaved { chunks: 2 });
/// assert_eq!(family.make(4, 8)?.stages(), 8);
/// # Ok(())
/// # }
/// ```
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// [`forward_only`].
    Forward,
    /// [`gpipe`].
    GPipe,
    /// [`one_f_one_b`].
    OneFOneB,
    /// [`eager_one_f_one_b`].
    EagerOneFOneB,
    /// [`interleaved`].
    Interleaved {
        /// Stages a device.
        chunks: usize,
    },
    /// [`zb_h1`].
    ZbH1,
}

impl Family {
    /// The families that train with one stage a device.
    pub const LINES: [Family; 4] = [Family::GPipe, Family::OneFOneB, Family::EagerOneFOneB, Family::ZbH1];

    /// The schedule of this family for `devices` devices.
    ///
    /// # Errors
    /// `Argument` for 0 devices, chunks or micro-batches.
    pub fn make(self, devices: usize, micro_batches: usize) -> Result<Schedule> {
        match self {
            Family::Forward => forward_only(devices, micro_batches),
            Family::GPipe => gpipe(devices, micro_batches),
            Family::OneFOneB => one_f_one_b(devices, micro_batches),
            Family::EagerOneFOneB => eager_one_f_one_b(devices, micro_batches),
            Family::Interleaved { chunks } => interleaved(devices, chunks, micro_batches),
            Family::ZbH1 => zb_h1(devices, micro_batches),
        }
    }

    /// Stages a device.
    pub fn chunks(self) -> usize {
        match self {
            Family::Interleaved { chunks } => chunks,
            _ => 1,
        }
    }

    /// The most micro-batches (times chunks) whose activations device `r` of `devices` holds at once: the
    /// peak stash of the schedule, without making it.
    pub fn stash(self, devices: usize, micro_batches: usize, r: usize) -> usize {
        let (s, m) = (devices, micro_batches);
        match self {
            Family::Forward => 1,
            Family::GPipe => m,
            Family::OneFOneB => m.min(s - r),
            Family::EagerOneFOneB => m.min(2 * (s - r) - 1),
            Family::Interleaved { chunks } => {
                let round = m.div_ceil((m / s).max(1));
                (chunks * m).min(2 * (s - r - 1) + (chunks - 1) * round + 1)
            }
            Family::ZbH1 => m.min(s),
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Family::Forward => f.write_str("forward"),
            Family::GPipe => f.write_str("gpipe"),
            Family::OneFOneB => f.write_str("1f1b"),
            Family::EagerOneFOneB => f.write_str("eager-1f1b"),
            Family::Interleaved { chunks } => write!(f, "interleaved:{chunks}"),
            Family::ZbH1 => f.write_str("zb-h1"),
        }
    }
}

impl FromStr for Family {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let chunks = text.strip_prefix("interleaved:").and_then(|v| v.parse().ok()).filter(|&v| v > 0);
        Ok(match text {
            "forward" => Family::Forward,
            "gpipe" => Family::GPipe,
            "1f1b" => Family::OneFOneB,
            "eager-1f1b" => Family::EagerOneFOneB,
            "zb-h1" => Family::ZbH1,
            _ => match chunks {
                Some(chunks) => Family::Interleaved { chunks },
                None => {
                    let known = "forward, gpipe, 1f1b, eager-1f1b, zb-h1, interleaved:<chunks>";
                    let detail = format!("`{text}` is no schedule; there are {known}");
                    return Err(Error::new(ErrorKind::Argument, "Family", detail));
                }
            },
        })
    }
}
