//! How the elements of the operands of a product are reached: sums over digits, as text.

use std::fmt::Write as _;

use wgrad_graph::{DType, IndexId, Line, Result, bail};

use super::super::kernel::{Cx, Kernel};
use super::{Sizes, Tiles};

/// One operand of the product: how its elements are reached. `mn` is its axis beside K.
pub(super) struct Side {
    pub(super) name: &'static str,
    pub(super) operand: u16,
    pub(super) batch: Vec<Line>,
    pub(super) mn: Line,
    pub(super) k: Line,
    pub(super) offset: i64,
    /// Whether neighbours in memory lie along K.
    pub(super) along_k: bool,
    /// Whether four neighbours are an aligned vector.
    pub(super) vector: bool,
    /// In what it lies in memory: f32 or halves.
    pub(super) dtype: DType,
}

impl Side {
    /// Element `at`, as f32.
    pub(super) fn load(&self, k: &Kernel<'_>, at: &str) -> String {
        self.widened(&k.load(self.operand, at), "")
    }

    /// The four elements from `at` on, as f32.
    pub(super) fn load_quad(&self, k: &Kernel<'_>, at: &str) -> String {
        self.widened(&k.load_quad(self.operand, at), "_quad")
    }

    fn widened(&self, bits: &str, ending: &str) -> String {
        match self.dtype {
            DType::F16 => format!("wg_from_f16{ending}({bits})"),
            DType::BF16 => format!("wg_from_bf16{ending}({bits})"),
            _ => bits.to_owned(),
        }
    }
}

pub(super) fn sides(cx: Cx<'_>, a: (u16, IndexId), b: (u16, IndexId), sizes: Sizes) -> Result<[Side; 2]> {
    let group = &cx.step.group;
    let rank = group.dims.len();
    let side = |name, (operand, index): (u16, IndexId), axis: usize, size: usize| {
        let Some(digits) = group.body.indices[usize::from(index)].digits() else {
            bail!(Argument, "matmul", "operand {name} is no sum over digits");
        };
        let (mn, k) = (digits.axes[axis].clone(), digits.axes[rank - 1].clone());
        let batch = digits.axes[..rank - 3].to_vec();
        let multiple = |line: &Line| line.iter().all(|(_, stride)| stride % 4 == 0);
        let fours = digits.offset % 4 == 0 && batch.iter().all(multiple);
        // Four neighbours from a multiple of four on: of an axis of one digit, or within its last.
        let quads = |line: &Line, size: usize| match &line[..] {
            [(_, 1)] => size.is_multiple_of(4),
            [rest @ .., (last, 1)] => last % 4 == 0 && rest.iter().all(|(_, stride)| stride % 4 == 0),
            _ => false,
        };
        let rows = quads(&k, sizes.k) && multiple(&mn);
        let columns = quads(&mn, size) && multiple(&k);
        // Neighbours in memory, as many as follow each other.
        let run = |line: &Line| line.last().filter(|digit| digit.1 == 1).map_or(0, |digit| digit.0);
        Ok(Side {
            name,
            operand,
            along_k: if rows || columns { !columns } else { run(&k) > run(&mn) },
            vector: fours && (rows || columns),
            batch,
            mn,
            k,
            offset: digits.offset,
            dtype: cx.graph.out(group.operands[usize::from(operand)]).dtype,
        })
    };
    Ok([side("a", a, rank - 3, sizes.m)?, side("b", b, rank - 2, sizes.n)?])
}

impl Tiles<'_> {
    /// The batch coordinates of `z`: text and names.
    pub(super) fn batch_coords(&self, k: &mut Kernel<'_>, z: &str) -> (String, Vec<String>) {
        let axes = self.rank() - 3;
        let mut text = String::new();
        let mut names = vec![String::new(); axes];
        let mut rest = z.to_owned();
        for axis in (1..axes).rev() {
            let size = k.dim(axis);
            let above = k.quotient(&rest, &size);
            let _ = writeln!(text, "let zq{axis} = {above};\nlet z{axis} = {rest} - zq{axis} * {size};");
            names[axis] = format!("z{axis}");
            rest = format!("zq{axis}");
        }
        if let Some(first) = names.first_mut() {
            *first = rest;
        }
        (text, names)
    }

    /// `let {name}z = ` the element of `side` at row or column 0 and k 0 of the batch.
    pub(super) fn origin(&self, k: &mut Kernel<'_>, side: &Side, coords: &[String]) -> String {
        let name = side.name;
        let mut terms = Vec::new();
        if side.offset != 0 {
            terms.push(k.word(&format!("{name}0"), side.offset));
        }
        let mut text = String::new();
        for (axis, line) in side.batch.iter().enumerate() {
            let words = format!("{name}z{axis}");
            terms.extend(self.digits(k, &words, &words, &coords[axis], line, &mut text));
        }
        let sum = if terms.is_empty() { "0u".to_owned() } else { terms.join(" + ") };
        format!("{text}let {name}z = {sum};\n")
    }

    /// The sum of the digits of `coord` times their strides, unless it is 0; what it needs goes to `text`.
    /// Sizes and strides are the words `words`, names begin with `prefix`.
    fn digits(
        &self,
        k: &mut Kernel<'_>,
        words: &str,
        prefix: &str,
        coord: &str,
        line: &Line,
        text: &mut String,
    ) -> Option<String> {
        let times = |k: &mut Kernel<'_>, digit: usize, coord: &str| match line[digit].1 {
            0 => None,
            1 => Some(coord.to_owned()),
            stride if line.len() == 1 => Some(format!("{coord} * {}", k.word(words, stride))),
            stride => Some(format!("{coord} * {}", k.word(&format!("{words}s{digit}"), stride))),
        };
        let mut terms = Vec::new();
        let mut rest = coord.to_owned();
        for digit in (1..line.len()).rev() {
            let size = k.word(&format!("{words}d{digit}"), line[digit].0 as i64);
            let above = k.quotient(&format!("({rest})"), &size);
            let _ = writeln!(
                text,
                "let {prefix}q{digit} = {above};\n\
                 let {prefix}r{digit} = ({rest}) - {prefix}q{digit} * {size};"
            );
            terms.extend(times(k, digit, &format!("{prefix}r{digit}")));
            rest = format!("{prefix}q{digit}");
        }
        if !line.is_empty() {
            terms.extend(times(k, 0, &rest));
        }
        (!terms.is_empty()).then(|| terms.join(" + "))
    }

    /// What coordinate `text` of `side` beside K (or along K) adds to the element; what it needs goes to
    /// `out`, under names that begin with `prefix`.
    pub(super) fn term(
        &self,
        k: &mut Kernel<'_>,
        side: &Side,
        of_k: bool,
        prefix: &str,
        coord: &str,
        out: &mut String,
    ) -> String {
        let (axis, line) = if of_k { ("k", &side.k) } else { ("m", &side.mn) };
        let words = format!("{}{axis}", side.name);
        self.digits(k, &words, prefix, coord, line, out).unwrap_or_else(|| "0u".to_owned())
    }
}
