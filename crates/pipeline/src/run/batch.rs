//! Batches and their micro-batches.

use std::ops::Range;

use wgrad_graph::{HostTensor, Result, Shape, bail};

use crate::schedule::split_batch;

/// The data of one step: inputs and, to learn from, targets. Rows are the first axis of all of them.
///
/// # Example
/// ```
/// use wgrad_graph::HostTensor;
/// use wgrad_pipeline::Batch;
/// # fn main() -> wgrad_graph::Result<()> {
/// let x = HostTensor::new([7, 2], &[0.5f32; 14])?;
/// let batch = Batch::new(&x).sizes([3, 3, 1]);
/// assert_eq!(batch.rows()?, 7);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Batch {
    inputs: Vec<HostTensor>,
    targets: Option<HostTensor>,
    sizes: Option<Vec<usize>>,
    /// Micro-batches that were given one by one; then the rest is empty.
    given: Vec<Batch>,
}

impl Batch {
    /// A batch with one input, which stages call [`Source::Batch(0)`](crate::Source::Batch).
    pub fn new(input: &HostTensor) -> Self {
        Self { inputs: vec![input.clone()], targets: None, sizes: None, given: Vec::new() }
    }

    /// The batch of these micro-batches, which may differ in all axes: sequences of several lengths.
    ///
    /// # Example
    /// ```
    /// use wgrad_graph::HostTensor;
    /// use wgrad_pipeline::Batch;
    /// # fn main() -> wgrad_graph::Result<()> {
    /// let words = |rows, length| HostTensor::new([rows, length], &vec![7i32; rows * length]);
    /// let batch = Batch::of([Batch::new(&words(4, 12)?), Batch::new(&words(2, 31)?)]);
    /// assert_eq!(batch.rows()?, 6);
    /// # Ok(())
    /// # }
    /// ```
    pub fn of(micro_batches: impl IntoIterator<Item = Batch>) -> Self {
        let whole = |b: Batch| if b.given.is_empty() { vec![b] } else { b.given };
        let given = micro_batches.into_iter().flat_map(whole).collect();
        Self { inputs: Vec::new(), targets: None, sizes: None, given }
    }

    /// The same with one more input.
    #[must_use]
    pub fn and(mut self, input: &HostTensor) -> Self {
        self.inputs.push(input.clone());
        self
    }

    /// The same with targets for the loss.
    #[must_use]
    pub fn targets(mut self, targets: &HostTensor) -> Self {
        self.targets = Some(targets.clone());
        self
    }

    /// The same with micro-batches of these sizes, in place of equal ones (one more row in the first where
    /// the batch does not divide).
    #[must_use]
    pub fn sizes(mut self, sizes: impl Into<Vec<usize>>) -> Self {
        self.sizes = Some(sizes.into());
        self
    }

    /// The number of rows.
    ///
    /// # Errors
    /// `Shape` when inputs and targets differ in it, or one of them has no axes; `Argument` without any input.
    pub fn rows(&self) -> Result<usize> {
        match (&self.given[..], self.inputs.is_empty() && self.targets.is_none()) {
            ([], true) => bail!(Argument, "Batch", "no micro-batches"),
            ([], false) => {}
            (given, true) => return given.iter().map(Batch::rows).sum(),
            _ => {
                bail!(Argument, "Batch", "micro-batches are given one by one; inputs and targets go to each")
            }
        }
        let rows = |x: &HostTensor| x.shape().dims().first().copied();
        let all: Vec<Option<usize>> = self.inputs.iter().chain(&self.targets).map(rows).collect();
        match all[0] {
            Some(first) if all.iter().all(|r| *r == Some(first)) => Ok(first),
            _ => {
                let shapes: Vec<String> =
                    self.inputs.iter().chain(&self.targets).map(|x| x.shape().to_string()).collect();
                bail!(Shape, "Batch", "{} differ in their first axis, the rows", shapes.join(", "))
            }
        }
    }

    /// Whether it says what its micro-batches are.
    pub(crate) fn is_divided(&self) -> bool {
        self.sizes.is_some() || !self.given.is_empty()
    }

    /// The rows of each of `count` micro-batches.
    pub(crate) fn ranges(&self, count: usize) -> Result<Vec<Range<usize>>> {
        let rows = self.rows()?;
        let given = self.given.iter().map(Batch::rows).collect::<Result<Vec<_>>>()?;
        let sizes = match (!given.is_empty()).then_some(&given).or(self.sizes.as_ref()) {
            None => split_batch(rows, count)?,
            Some(sizes) => {
                if sizes.len() != count || sizes.iter().sum::<usize>() != rows || sizes.contains(&0) {
                    bail!(
                        Argument,
                        "Batch",
                        "micro-batches of {sizes:?} rows: {count} of one row or more with {rows} in all are wanted"
                    );
                }
                sizes.clone()
            }
        };
        let mut start = 0;
        let range = |size: &usize| {
            start += size;
            start - size..start
        };
        Ok(sizes.iter().map(range).collect())
    }

    /// Inputs and targets of each micro-batch.
    pub(crate) fn parts(&self, ranges: &[Range<usize>]) -> Result<Vec<Part>> {
        if !self.given.is_empty() {
            let part = |(range, given): (&Range<usize>, &Batch)| Part {
                start: range.start,
                inputs: given.inputs.clone(),
                targets: given.targets.clone(),
            };
            return Ok(ranges.iter().zip(&self.given).map(part).collect());
        }
        let part = |range: &Range<usize>| {
            let inputs = self.inputs.iter().map(|x| rows_of(x, range)).collect::<Result<_>>()?;
            let targets = self.targets.as_ref().map(|x| rows_of(x, range)).transpose()?;
            Ok(Part { start: range.start, inputs, targets })
        };
        ranges.iter().map(part).collect()
    }

    pub(super) fn has_targets(&self) -> bool {
        match &self.given[..] {
            [] => self.targets.is_some(),
            given => given.iter().all(Batch::has_targets),
        }
    }

    /// The number of inputs that every micro-batch has.
    pub(super) fn inputs(&self) -> usize {
        self.given.iter().map(Batch::inputs).min().unwrap_or(self.inputs.len())
    }
}

/// One micro-batch.
#[derive(Clone)]
pub(crate) struct Part {
    /// Its first row in the batch.
    pub(super) start: usize,
    pub(super) inputs: Vec<HostTensor>,
    pub(crate) targets: Option<HostTensor>,
}

impl Part {
    /// How many rows it has.
    pub(super) fn rows(&self) -> usize {
        let first = self.inputs.iter().chain(&self.targets).next();
        first.and_then(|x| x.shape().dims().first().copied()).unwrap_or(0)
    }
}

/// The shape with `rows` as first axis before `rest`.
pub(super) fn with_rows(rows: usize, rest: Shape) -> Shape {
    Shape::from(&[&[rows], rest.dims()].concat())
}

fn rows_of(x: &HostTensor, range: &Range<usize>) -> Result<HostTensor> {
    let rest = Shape::new(&x.shape().dims()[1..]);
    let row = rest.elems() * x.dtype().bytes();
    let bytes = &x.bytes()[range.start * row..range.end * row];
    HostTensor::from_bytes(with_rows(range.len(), rest), x.dtype(), bytes)
}

/// The micro-batches' results one after the other.
pub(crate) fn joined(parts: &[HostTensor]) -> Result<HostTensor> {
    let first = &parts[0];
    let rest = Shape::new(first.shape().dims().get(1..).unwrap_or_default());
    let (mut rows, mut bytes) = (0, Vec::new());
    for part in parts {
        if part.shape().dims().get(1..) != first.shape().dims().get(1..) || part.dtype() != first.dtype() {
            bail!(Shape, "forward", "micro-batches gave {} and {}", first.shape(), part.shape());
        }
        rows += part.shape()[0];
        bytes.extend_from_slice(part.bytes());
    }
    HostTensor::from_bytes(with_rows(rows, rest), first.dtype(), bytes)
}
