//! A workload as data.

use serde::{Deserialize, Serialize};

use crate::models::Model;
use crate::values;

/// What the elements are.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// 32-bit floats.
    F32,
    /// 16-bit floats.
    F16,
    /// Whole numbers.
    I32,
    /// 32-bit floats, all 0.
    Zeros,
}

/// An operand. That of place `i` holds [`values::floats`] or [`values::ids`] of salt `i`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Input {
    /// Its shape.
    pub dims: Vec<usize>,
    /// What its elements are.
    pub kind: Kind,
    /// Whole numbers are below this; floats in plus and minus a half, where it is not 0 each row times a power of two
    /// of its own from so many.
    pub bound: usize,
}

impl Input {
    /// Number of elements.
    pub fn elems(&self) -> usize {
        self.dims.iter().product()
    }

    /// Number of bytes.
    pub fn bytes(&self) -> usize {
        self.elems() * if self.kind == Kind::F16 { 2 } else { 4 }
    }

    /// The elements of floats.
    pub fn floats(&self, salt: usize) -> Vec<f32> {
        match self.kind {
            Kind::Zeros => vec![0.0; self.elems()],
            _ => {
                let mut all = values::floats(self.elems(), salt as u64, 0.5);
                if self.bound > 0 {
                    let row = self.dims.last().copied().unwrap_or(1).max(1);
                    for (i, x) in all.iter_mut().enumerate() {
                        *x *= 2f32.powi(-((i / row * 7 % self.bound) as i32));
                    }
                }
                all
            }
        }
    }

    /// The elements of whole numbers.
    pub fn ids(&self, salt: usize) -> Vec<i32> {
        values::ids(self.elems(), salt as u64, self.bound)
    }
}

/// A workload of a table.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// Its name, by which it is chosen.
    pub name: String,
    /// What is computed; `step` for training steps.
    pub op: String,
    /// The operands.
    pub inputs: Vec<Input>,
    /// The largest difference allowed, relative to the largest number.
    pub tolerance: f64,
    /// The model of a training step.
    pub model: Option<Model>,
}

impl Row {
    /// Whether floats come in 16 bits.
    pub fn is_half(&self) -> bool {
        self.inputs.first().is_some_and(|input| input.kind == Kind::F16)
    }
}
