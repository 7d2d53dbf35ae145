//! Sorting: runs are put in order by counting, then merged in pairs, a launch for each doubling. No
//! barriers, no workgroup memory, no padding; every launch fills the device. Many keys go by their digits.

use wgrad_graph::{DType, Lines, Result, bail};

use super::kernel::{Cx, Kernel, Touch};
use super::radix::{Ends, Radix};
use super::{fold, points};
use crate::choose;
use crate::launch::{Launch, Lowered};

pub(super) fn lower(cx: Cx<'_>, axis: u8, descending: bool) -> Result<Lowered> {
    let shape = cx.graph.out(cx.step.group.stores[0].val).shape;
    let count = points("argsort", shape.dims())?;
    if count == 0 {
        return Ok(Lowered::default());
    }
    let lines = Lines::new(shape, axis);
    let sort = Sort { cx, lines, count, descending };
    let bits = match cx.graph.out(cx.step.group.operands[0]).dtype {
        DType::Bool => 1,
        DType::U8 => 8,
        DType::I64 => 64,
        _ => 32,
    };
    if choose::radix(lines.n, count, bits, cx.caps) {
        let radix = Radix { cx, lines: lines.count(), n: lines.n, bits };
        let words = radix.words(false);
        let launches = radix.launches(&sort, false, words)?;
        return Ok(Lowered { launches, scratch_bytes: words * 4 });
    }
    let run = choose::sort_run(lines.n, cx.caps);
    let merges = lines.n.div_ceil(run).next_power_of_two().ilog2();
    // The last launch writes the result; those before it take turns with the scratch memory.
    let mut launches = vec![sort.rank(run, merges % 2 == 1)?];
    for i in 0..merges {
        launches.push(sort.merge(run << i, (merges - i) % 2 == 1)?);
    }
    Ok(Lowered { launches, scratch_bytes: if merges > 0 { count * 4 } else { 0 } })
}

#[derive(Copy, Clone)]
struct Sort<'a> {
    cx: Cx<'a>,
    lines: Lines,
    count: usize,
    descending: bool,
}

impl<'a> Sort<'a> {
    fn kernel(&self, scratch: Option<bool>) -> Kernel<'a> {
        let mut k = Kernel::new(self.cx);
        k.reads(0, Touch::Each);
        k.writes(0, Touch::Each);
        if let Some(written) = scratch {
            k.scratch(self.count, written, Touch::Each);
        }
        k
    }

    /// The declarations: workgroup, the element as a number in the same order, and which is before which.
    fn declare(&self, k: &Kernel<'_>) -> Result<String> {
        let wg = choose::pointwise_workgroup(self.cx.caps);
        let (ty, less) = match k.operand(0).dtype {
            DType::I64 => {
                ("vec2<u32>", "x.y < w.y || (x.y == w.y && (x.x < w.x || (x.x == w.x && earlier)))")
            }
            _ => ("u32", "x < w || (x == w && earlier)"),
        };
        Ok(format!(
            "const WG = {wg}u;\n{}fn before(x: {ty}, w: {ty}, earlier: bool) -> bool {{ return {less}; }}\n",
            self.number(k)?
        ))
    }

    /// The function that makes of an element a number in the same order.
    fn number(&self, k: &Kernel<'_>) -> Result<String> {
        let ty = if k.operand(0).dtype == DType::I64 { "vec2<u32>" } else { "u32" };
        let x = k.load(0, "at");
        let number = match k.operand(0).dtype {
            DType::Bool => format!("select(0u, 1u, {x})"),
            DType::U8 | DType::U32 => x,
            DType::I32 => format!("(bitcast<u32>({x}) ^ 0x80000000u)"),
            DType::I64 => format!("({x} ^ vec2<u32>(0u, 0x80000000u))"),
            DType::F32 | DType::F64 => format!("wg_order_f32({x})"),
            DType::F16 | DType::BF16 => bail!(DType, "argsort", "has no kernel for halves; they go as f32"),
        };
        let number = if self.descending { format!("~{number}") } else { number };
        Ok(format!("fn number(at: u32) -> {ty} {{ return {number}; }}\n"))
    }

    fn sizes(&self, k: &mut Kernel<'_>, run: usize) -> String {
        let words = [("count", self.count), ("n", self.lines.n), ("inner", self.lines.inner), ("run", run)];
        k.declare_words(&words)
    }

    fn finish(&self, k: Kernel<'_>, file: &str, regions: &[(&str, &str)], each: usize) -> Result<Launch> {
        let extra = self.declare(&k)?;
        let wg = u64::from(choose::pointwise_workgroup(self.cx.caps));
        let grid = fold((self.count as u64).div_ceil(wg), self.cx.caps)?;
        k.finish(file, &extra, regions, grid, (self.count * each) as u64)
    }

    /// Runs of `run` elements in order, to the scratch memory or to the result.
    fn rank(&self, run: usize, to_scratch: bool) -> Result<Launch> {
        let mut k = self.kernel(to_scratch.then_some(true));
        let sizes = self.sizes(&mut k, run);
        let store = match to_scratch {
            true => format!("{} = t;\n", k.scratch_word("to")),
            false => k.store(0, "to", "bitcast<i32>(t)"),
        };
        let regions = [("sizes", sizes.as_str()), ("store", &store)];
        self.finish(k, wgrad_wgsl::ARGSORT_RANK, &regions, run * 3)
    }

    /// Pairs of runs of `run` elements as one, from the scratch memory to the result or back.
    fn merge(&self, run: usize, to_result: bool) -> Result<Launch> {
        let mut k = self.kernel(Some(!to_result));
        let sizes = self.sizes(&mut k, run);
        let read = |at: &str| match to_result {
            true => k.scratch_word(at),
            false => format!("bitcast<u32>({})", k.stored(0, at)),
        };
        let own = format!("let t = {};", read("e"));
        let other = format!("let j = {};", read("first + (side + middle) * inner"));
        let store = match to_result {
            true => k.store(0, "to", "bitcast<i32>(t)"),
            false => format!("{} = t;\n", k.scratch_word("to")),
        };
        let regions = [("sizes", sizes.as_str()), ("own", &own), ("other", &other), ("store", &store)];
        self.finish(k, wgrad_wgsl::ARGSORT_MERGE, &regions, 6 * run.ilog2() as usize + 6)
    }
}

impl<'a> Ends<'a> for Sort<'a> {
    fn reads(&self, k: &mut Kernel<'a>) {
        k.reads(0, Touch::Each);
    }

    fn key(&self, k: &mut Kernel<'a>) -> Result<(String, String)> {
        let inner = k.word("inner", self.lines.inner as i64);
        let at = format!("(line / {inner}) * n * {inner} + line % {inner} + p * {inner}");
        Ok((self.number(k)?, format!("let key = number({at});\n")))
    }

    fn writes(&self, k: &mut Kernel<'a>) -> bool {
        k.writes(0, Touch::Each);
        true
    }

    fn store(&self, k: &mut Kernel<'a>) -> String {
        let inner = k.word("inner", self.lines.inner as i64);
        let at = format!("(line / {inner}) * n * {inner} + line % {inner} + to * {inner}");
        k.store(0, &at, "bitcast<i32>(value)")
    }
}
