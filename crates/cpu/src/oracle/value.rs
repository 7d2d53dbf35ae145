//! A value of the oracle: floats as f64, integers and truth values exact in i64.

use rayon::prelude::*;
use wgrad_graph::{DType, Out, Result, bail};

use crate::pool;

/// Terms from which threads share the work.
const SHARED: usize = 1 << 14;

/// `f` of all below `n`, each of so many terms. Each is computed alone, so that threads do not show in results.
pub(super) fn each<T: Send>(n: usize, terms: usize, f: impl Fn(usize) -> T + Send + Sync) -> Vec<T> {
    let least = (SHARED / terms.max(1)).max(1);
    if n <= least {
        return (0..n).map(f).collect();
    }
    pool::among(|| (0..n).into_par_iter().with_min_len(least).map(f).collect())
}

#[derive(Clone, Debug)]
pub(super) enum Data {
    Float(Vec<f64>),
    Int(Vec<i64>),
}

#[derive(Clone, Debug)]
pub(super) struct Value {
    pub(super) out: Out,
    pub(super) data: Data,
}

/// `x` wrapped to the range of an integer dtype.
pub(super) fn wrap(x: i64, dtype: DType) -> i64 {
    match dtype {
        DType::Bool => x & 1,
        DType::U8 => i64::from(x as u8),
        DType::U32 => i64::from(x as u32),
        DType::I32 => i64::from(x as i32),
        DType::I64 | DType::F16 | DType::BF16 | DType::F32 | DType::F64 => x,
    }
}

impl Value {
    pub(super) fn floats(out: Out, data: Vec<f64>) -> Value {
        Value { out, data: Data::Float(data) }
    }

    /// Floats, those of 16 bits rounded to the dtype.
    pub(super) fn rounded(out: Out, mut data: Vec<f64>) -> Value {
        if out.dtype.is_half() {
            data.iter_mut().for_each(|x| *x = out.dtype.round(*x));
        }
        Value::floats(out, data)
    }

    /// Integers, wrapped to the dtype.
    pub(super) fn ints(out: Out, mut data: Vec<i64>) -> Value {
        data.iter_mut().for_each(|x| *x = wrap(*x, out.dtype));
        Value { out, data: Data::Int(data) }
    }

    pub(super) fn scalar(out: Out, x: f64) -> Value {
        match out.dtype {
            _ if out.dtype.is_float() => Value::rounded(out, vec![x]),
            DType::Bool => Value::ints(out, vec![i64::from(x != 0.0)]),
            _ => Value::ints(out, vec![x as i64]),
        }
    }

    /// The elements of `out` from bytes in storage dtype.
    pub(super) fn from_bytes(out: Out, bytes: &[u8]) -> Result<Value> {
        let stored = if out.dtype.is_float() { DType::F64 } else { out.dtype };
        let size = out.shape.elems() * stored.bytes();
        let Some(bytes) = bytes.get(..size) else {
            bail!(Argument, "input", "{out:?} takes {size} bytes, {} were given", bytes.len());
        };
        let ints = |f: fn(&[u8]) -> i64| bytes.chunks_exact(stored.bytes()).map(f).collect();
        let word = |b: &[u8]| u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
        Ok(match stored {
            DType::F64 => {
                Value::floats(out, bytes.chunks_exact(8).map(bytemuck::pod_read_unaligned::<f64>).collect())
            }
            DType::Bool | DType::U8 => Value::ints(out, ints(|b| i64::from(b[0]))),
            DType::I64 => {
                Value::ints(out, bytes.chunks_exact(8).map(bytemuck::pod_read_unaligned::<i64>).collect())
            }
            DType::U32 => Value::ints(out, bytes.chunks_exact(4).map(|b| i64::from(word(b))).collect()),
            _ => Value::ints(out, bytes.chunks_exact(4).map(|b| i64::from(word(b) as i32)).collect()),
        })
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        match (&self.data, self.out.dtype) {
            (Data::Float(x), _) => bytemuck::cast_slice(x).to_vec(),
            (Data::Int(x), DType::Bool | DType::U8) => x.iter().map(|x| *x as u8).collect(),
            (Data::Int(x), DType::I64) => bytemuck::cast_slice(x).to_vec(),
            (Data::Int(x), _) => x.iter().flat_map(|x| (*x as u32).to_le_bytes()).collect(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.out.shape.elems()
    }

    /// Element `i` as an integer; floats truncate.
    pub(super) fn int(&self, i: usize) -> i64 {
        match &self.data {
            Data::Float(x) => x[i] as i64,
            Data::Int(x) => x[i],
        }
    }

    /// Every element as f64.
    pub(super) fn to_f64(&self) -> Vec<f64> {
        match &self.data {
            Data::Float(x) => x.clone(),
            Data::Int(x) => x.iter().map(|x| *x as f64).collect(),
        }
    }

    /// The value of `out` whose element `i` is element `from(i)` of this one, or 0 where `None`.
    pub(super) fn pick(&self, out: Out, from: impl Fn(usize) -> Option<usize> + Send + Sync) -> Value {
        let n = out.shape.elems();
        let data = match &self.data {
            Data::Float(x) => Data::Float(each(n, 4, |i| from(i).map_or(0.0, |j| x[j]))),
            Data::Int(x) => Data::Int(each(n, 4, |i| from(i).map_or(0, |j| x[j]))),
        };
        Value { out, data }
    }

    /// This value with element `at(i)` replaced by element `i` of `part`.
    pub(super) fn put(&self, part: &Value, at: impl Fn(usize) -> usize) -> Value {
        let mut whole = self.clone();
        match (&mut whole.data, &part.data) {
            (Data::Float(to), Data::Float(from)) => {
                from.iter().enumerate().for_each(|(i, x)| to[at(i)] = *x);
            }
            (Data::Int(to), Data::Int(from)) => {
                from.iter().enumerate().for_each(|(i, x)| to[at(i)] = *x);
            }
            _ => unreachable!("one dtype, checked when recorded"),
        }
        whole
    }
}
