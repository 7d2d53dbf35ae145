//! Sums of products by a formula.

use super::cast;
use super::contract::{Label, Labels, Named, contract};
use crate::autocast;
use crate::{Result, Tensor};

/// The first label of the axes under an ellipsis, counted from the last of them; letters are below.
const DOTS: Label = 128;

/// One comma-separated part of a formula: letters, and where the ellipsis stands.
#[derive(Debug, Default)]
struct Part {
    letters: Vec<Label>,
    dots: Option<usize>,
}

impl Part {
    #[track_caller]
    fn parse(formula: &str, text: &str) -> Result<Part> {
        let mut part = Part::default();
        let mut rest = text.trim_start();
        while let Some(c) = rest.chars().next() {
            if let Some(after) = rest.strip_prefix("...") {
                if part.dots.is_some() {
                    refuse!(Argument, "einsum", "`{formula}`: `{text}` has two ellipses");
                }
                part.dots = Some(part.letters.len());
                rest = after.trim_start();
            } else if c.is_ascii_alphabetic() {
                part.letters.push(c as Label);
                rest = rest[1..].trim_start();
            } else {
                refuse!(
                    Argument,
                    "einsum",
                    "`{formula}`: `{c}` in `{text}` is no letter, comma, arrow or ellipsis"
                );
            }
        }
        Ok(part)
    }

    /// The label of each axis of a tensor of rank `rank`; `None` if the rank does not fit.
    fn labels(&self, rank: usize) -> Option<Labels> {
        let under = rank.checked_sub(self.letters.len())?;
        let at = match self.dots {
            Some(at) => at,
            None if under == 0 => 0,
            None => return None,
        };
        let dots = (0..under).rev().map(|i| DOTS + i as Label);
        let letters = |range: &[Label]| range.to_vec();
        Some(
            letters(&self.letters[..at])
                .into_iter()
                .chain(dots)
                .chain(letters(&self.letters[at..]))
                .collect(),
        )
    }
}

/// The elements of `named` at which axes of one name have one index.
#[track_caller]
fn diagonals(formula: &str, x: Tensor, axes: Labels) -> Result<Named> {
    let (mut x, mut axes) = (x, axes);
    let repeated = |axes: &Labels| {
        (0..axes.len()).find_map(|j| Some((axes[..j].iter().position(|l| *l == axes[j])?, j)))
    };
    while let Some((i, j)) = repeated(&axes) {
        let from = x.try_out()?.shape;
        let (n, label) = (from[i], axes[j]);
        if n != from[j] {
            let c = char::from(label);
            refuse!([x] Shape, "einsum", "`{formula}`: `{c}` is repeated for one operand with sizes {n} and {}", from[j]);
        }
        x = x.try_diagonal(0, i as i32, j as i32)?;
        axes.remove(j);
        axes.remove(i);
        axes.push(label);
    }
    Ok(Named { x, axes })
}

#[track_caller]
fn einsum(formula: &str, operands: &[Tensor]) -> Result<Tensor> {
    let _policy = operands.first().map(|x| autocast::method("einsum", x));
    if let Some(half) = autocast::half(operands)? {
        let pass = super::pass_of_all(operands)?;
        let _products = autocast::pause();
        let mut factors = Vec::with_capacity(operands.len());
        for x in operands {
            factors.push(autocast::rounded(*x, half, pass)?);
        }
        return cast(einsum(formula, &factors)?, half);
    }
    let (left, right) = match formula.split_once("->") {
        Some((left, right)) => (left, Some(Part::parse(formula, right)?)),
        None => (formula, None),
    };
    let texts: Vec<&str> = left.split(',').collect();
    if texts.len() != operands.len() {
        refuse!(
            Argument,
            "einsum",
            "`{formula}` is for {} operands, {} were given",
            texts.len(),
            operands.len()
        );
    }
    let mut dtype = operands[0].try_out()?.dtype;
    for x in operands {
        dtype = dtype.promote(x.try_out()?.dtype);
    }
    let mut named = Vec::with_capacity(operands.len());
    let mut sizes = [1usize; 256];
    let mut count = [0usize; 256];
    for (i, (x, text)) in operands.iter().zip(&texts).enumerate() {
        let from = x.try_out()?.shape;
        let Some(axes) = Part::parse(formula, text)?.labels(from.rank()) else {
            refuse!([*x] Shape, "einsum", "`{formula}`: `{}` does not name the axes of operand {i}, {from}", text.trim());
        };
        for (axis, label) in axes.iter().enumerate() {
            let (known, size) = (&mut sizes[usize::from(*label)], from[axis]);
            if *known != 1 && size != 1 && *known != size {
                let name = if *label < DOTS { char::from(*label).to_string() } else { "...".to_owned() };
                refuse!([*x] Shape, "einsum", "`{formula}`: `{name}` has size {size} in operand {i}, {from}, and {known} before");
            }
            *known = if size == 1 { *known } else { size };
            count[usize::from(*label)] += 1;
        }
        named.push(diagonals(formula, cast(*x, dtype)?, axes)?);
    }
    let under = (DOTS..=Label::MAX).rev().filter(|l| count[usize::from(*l)] > 0);
    let out: Labels = match right {
        Some(part) => {
            let dots: Vec<Label> = if part.dots.is_some() { under.collect() } else { Vec::new() };
            let labels = part.labels(part.letters.len() + dots.len()).expect("as many axes as labels");
            for (i, label) in labels.iter().enumerate() {
                let c = char::from(*label);
                if count[usize::from(*label)] == 0 {
                    refuse!(Argument, "einsum", "`{formula}`: `{c}` of the result is in no operand");
                }
                if labels[..i].contains(label) {
                    refuse!(Argument, "einsum", "`{formula}`: `{c}` is twice in the result");
                }
            }
            labels
        }
        None => under.chain((0..DOTS).filter(|l| count[usize::from(*l)] == 1)).collect(),
    };
    contract("einsum", named, &out)
}

impl Tensor {
    /// The sum of products that `formula` names, as in NumPy and PyTorch: `"ij,jk->ik"` is the matrix
    /// product, `"ii->i"` the diagonal, `"...ij->...ji"` the transpose, `"b i d, b j d -> b i j"` scores.
    ///
    /// Shape: a letter for each axis of each operand, parts separated by commas; spaces do not count;
    /// `...` stands for the axes without a letter, which broadcast from the right. A letter twice in one
    /// part takes the diagonal. Letters not in the result are summed over; without `->` the result has the
    /// axes under `...`, then the letters that stand once, in the order of the alphabet (capitals first).
    /// An axis of size 1 broadcasts. Axes under `...` that an explicit result leaves out are summed over.
    /// Gradient: the sum of products with the others.
    /// Cost: two operands meet in one (batched) matrix product; of more, the pair that frees the most
    /// elements goes first.
    ///
    /// # Panics
    /// When the formula does not fit the operands; the message quotes it.
    #[track_caller]
    pub fn einsum(formula: &str, operands: &[Tensor]) -> Tensor {
        super::or_panic(einsum(formula, operands))
    }

    /// As [`Tensor::einsum`].
    ///
    /// # Errors
    /// Where the other panics.
    #[track_caller]
    pub fn try_einsum(formula: &str, operands: &[Tensor]) -> Result<Tensor> {
        einsum(formula, operands)
    }
}
