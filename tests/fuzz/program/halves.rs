//! Stretches of floats of 16 bits inside a program.

use wgrad::{DType, Result};

use super::{Program, V};

impl Program<'_> {
    /// Operations on halves of what f32 holds exactly: their exact results are rounded alike everywhere. No
    /// gradient passes, since those that arrive are not exact.
    pub(super) fn halves(&mut self, x: V) -> Result<()> {
        let dtype = self.dice.pick(&[DType::F16, DType::BF16]);
        let w = self.partner(x)?;
        let (t, u) = (x.t.try_detach()?.try_cast(dtype)?, w.t.try_detach()?.try_cast(dtype)?);
        let both = w.exact();
        let digits = x.digits.max(w.digits);
        let last = t.shape().rank().checked_sub(1).filter(|_| x.digits <= 8);
        let (name, y, size, digits) = match self.dice.below(9) {
            0 if both => ("add", t.try_add(u)?, x.size + w.size, digits),
            1 if both => ("mul", t.try_mul(u)?, x.size * w.size, x.digits + w.digits),
            2 if both => ("maximum", t.try_maximum(u)?, x.size.max(w.size), digits),
            3 if both => ("select", t.try_lt(u)?.try_select(t, u)?, x.size.max(w.size), digits),
            4 => ("number", t.try_mul(0.75)?.try_sub(1)?, x.size + 1.0, x.digits + 2),
            5 => ("relu", t.try_relu()?, x.size, x.digits),
            6 => match last {
                Some(axis) => {
                    let n = t.shape()[axis].max(1) as f64;
                    ("sum", t.try_sum_keepdim(axis as i32)?, n * x.size, x.digits)
                }
                None => ("neg", -t, x.size, x.digits),
            },
            7 => match last {
                Some(axis) => ("flip", t.try_flip(axis as i32)?, x.size, x.digits),
                None => ("abs", t.try_abs()?, x.size, x.digits),
            },
            _ => ("cast", t, x.size, x.digits),
        };
        self.log.push(format!("{dtype} {name}"));
        self.push(y.try_cast(DType::F32)?, 1.01 * size, digits)
    }
}
