//! Handovers in 16 bits: rounded on the device that gives, widened on the one that takes, with the error that the
//! rounding made.

use wgrad_autograd::{Pass, Tensor};
use wgrad_graph::{DType, Result, bail};

use super::Stages;
use super::lane::Made;
use super::worker::Worker;

impl Stages {
    /// Hands activations and gradients of f32 over to other devices in `dtype`: `F16` or `BF16`, which halve the
    /// bytes, or `F32`, as they are, which is so by default. Within a device nothing is rounded. The report tells the
    /// largest error ([`Report::handover_error`](crate::Report::handover_error)); small gradients may need the range of
    /// `BF16`.
    ///
    /// # Errors
    /// `DType` for any other dtype.
    pub fn set_handover(&mut self, dtype: DType) -> Result<()> {
        self.handover = match dtype {
            DType::F32 => None,
            DType::F16 | DType::BF16 => Some(dtype),
            _ => bail!(DType, "Stages::set_handover", "{dtype}: f32, f16 or bf16 are handed over"),
        };
        Ok(())
    }
}

/// A value that is handed on: as it is to stages of the device, and rounded to those of others.
#[derive(Copy, Clone)]
pub(super) struct Sending {
    plain: Option<Tensor>,
    /// The rounded value, and the largest error of an element relative to the largest element.
    narrow: Option<(Tensor, Tensor)>,
}

/// A [`Sending`] on its way to the host.
pub(super) struct Sent {
    plain: Option<Made>,
    narrow: Option<Made>,
}

impl Sending {
    /// `x`, recorded for takers on the same device if `local`, and for others in `dtype` if there are any.
    pub(super) fn new(pass: &Pass, x: Tensor, local: bool, dtype: Option<DType>) -> Result<Self> {
        let rounded = |dtype| {
            pass.within(|| -> Result<(Tensor, Tensor)> {
                let x = x.try_detach()?;
                let narrow = x.try_cast(dtype)?;
                let error = x.try_sub(narrow.try_cast(DType::F32)?)?.try_abs()?.try_max(..)?;
                // Where all are zeros there is no error.
                let scale = x.try_abs()?.try_max(..)?.try_maximum(f32::MIN_POSITIVE)?;
                Ok((narrow, error.try_div(scale)?))
            })
        };
        let narrow = dtype.map(rounded).transpose()?;
        Ok(Self { plain: (local || narrow.is_none()).then_some(x), narrow })
    }

    /// What has to be computed.
    pub(super) fn tensors(&self) -> impl Iterator<Item = Tensor> {
        self.plain.into_iter().chain(self.narrow.into_iter().flat_map(|(x, error)| [x, error]))
    }

    /// Begins to read it.
    pub(super) fn read(&self) -> Result<Sent> {
        let plain = self.plain.map(|x| Ok(Made::Coming(x.read_later()?, None))).transpose()?;
        let narrow =
            |(x, error): (Tensor, Tensor)| Ok(Made::Coming(x.read_later()?, Some(error.read_later()?)));
        Ok(Sent { plain, narrow: self.narrow.map(narrow).transpose()? })
    }
}

impl Sent {
    /// What a taker gets, on the same device or on another.
    pub(super) fn made(&self, local: bool) -> Result<Made> {
        let made =
            if local { &self.plain } else { self.narrow.as_ref().map_or(&self.plain, |_| &self.narrow) };
        match made {
            Some(made) => Ok(made.clone()),
            None => bail!(Data, "pipeline", "what a stage of the same device takes was not read"),
        }
    }
}

impl Worker<'_> {
    /// The dtype in which values of this dtype go from stage to stage, where they are rounded.
    pub(super) fn narrowed(&self, from: usize, to: usize, dtype: DType) -> Option<DType> {
        let devices = self.job.schedule.devices();
        self.job.stages.handover.filter(|_| devices[from] != devices[to] && dtype == DType::F32)
    }

    /// The outputs of a stage, each recorded as its takers take it.
    pub(super) fn sendings(&self, pass: &Pass, outputs: &[Tensor], s: usize) -> Result<Vec<Sending>> {
        let takers = |output| self.job.stages.takers(s, output);
        outputs.iter().enumerate().map(|(o, x)| self.sending(pass, *x, s, &takers(o))).collect()
    }

    /// A value recorded as the stages `to` take it.
    pub(super) fn sending(&self, pass: &Pass, x: Tensor, s: usize, to: &[usize]) -> Result<Sending> {
        let devices = self.job.schedule.devices();
        let dtype = x.try_out()?.dtype;
        let local = to.iter().any(|to| devices[*to] == devices[s]);
        Sending::new(pass, x, local, to.iter().find_map(|to| self.narrowed(s, *to, dtype)))
    }
}
