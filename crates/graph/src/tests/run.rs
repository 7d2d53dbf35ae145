//! Every step of a plan, on f64: one number for each byte of memory, so that overlaps show.

use crate::{AccKind, DType, Expr, ExprId, Group, Home, Index, Kind, Loc, Plan, Val};

use super::direct;

struct Memory {
    workspace: Vec<f64>,
    leaves: Vec<Vec<f64>>,
    outs: Vec<Vec<f64>>,
    /// First byte of each leaf that lies in the workspace, and of each slot.
    uploads: Vec<Option<usize>>,
    slots: Vec<(usize, usize)>,
}

impl Memory {
    fn cell(&mut self, loc: Loc, element: usize, dtype: DType) -> &mut f64 {
        let at = element * dtype.bytes();
        match loc {
            Loc::Slot(s) => {
                let (offset, bytes) = self.slots[s as usize];
                assert!(at < bytes, "element {element} is outside slot {s}");
                &mut self.workspace[offset + at]
            }
            Loc::Leaf(l) => match self.uploads[l as usize] {
                Some(offset) => &mut self.workspace[offset + at],
                None => &mut self.leaves[l as usize][at],
            },
            Loc::Out(o) => &mut self.outs[o as usize][at],
        }
    }
}

/// The outputs' elements.
pub(crate) fn run(plan: &Plan, leaves: &[Vec<f64>], scalars: &[f64]) -> Vec<Vec<f64>> {
    let graph = &plan.graph;
    let room = |val: Val| {
        let out = graph.out(val);
        vec![f64::NAN; (out.shape.elems() * out.dtype.bytes()).max(1)]
    };
    let mut memory = Memory {
        workspace: vec![f64::NAN; plan.workspace_bytes],
        leaves: plan.leaves.iter().map(|l| room(Val::of(l.node))).collect(),
        outs: plan.outputs.iter().map(|o| room(o.val)).collect(),
        uploads: plan
            .leaves
            .iter()
            .map(|l| (l.kind == crate::LeafKind::Upload).then_some(l.offset_bytes))
            .collect(),
        slots: plan.slots.iter().map(|s| (s.offset_bytes, s.bytes)).collect(),
    };
    for (i, (leaf, data)) in plan.leaves.iter().zip(leaves).enumerate() {
        let dtype = graph.out(Val::of(leaf.node)).dtype;
        data.iter().enumerate().for_each(|(n, x)| *memory.cell(Loc::Leaf(i as u32), n, dtype) = *x);
    }
    for step in &plan.steps {
        let numbers: Vec<f64> = step
            .group
            .scalars
            .iter()
            .map(|s| scalars[plan.scalars.iter().position(|p| p == s).unwrap()])
            .collect();
        Point { plan, group: &step.group, reads: &step.reads, scalars: &numbers }
            .run(&step.writes, &mut memory);
    }
    let mut outputs = Vec::new();
    for (i, output) in plan.outputs.iter().enumerate() {
        let out = graph.out(output.val);
        let loc = match output.home {
            Home::New { .. } => Loc::Out(i as u32),
            Home::InPlace(leaf) => Loc::Leaf(leaf),
        };
        outputs.push((0..out.shape.elems()).map(|n| *memory.cell(loc, n, out.dtype)).collect());
    }
    outputs
}

struct Point<'a> {
    plan: &'a Plan,
    group: &'a Group,
    reads: &'a [Loc],
    scalars: &'a [f64],
}

impl Point<'_> {
    fn index(&self, id: u16) -> &Index {
        &self.group.body.indices[usize::from(id)]
    }

    fn load(&self, operand: u16, element: i64, m: &mut Memory) -> f64 {
        let out = self.plan.graph.out(self.group.operands[usize::from(operand)]);
        assert!(element >= 0 && (element as usize) < out.shape.elems(), "{}: {element}", self.group);
        *m.cell(self.reads[usize::from(operand)], element as usize, out.dtype)
    }

    fn expr(&self, id: ExprId, c: &[usize], accs: &[f64], memo: &mut [Option<f64>], m: &mut Memory) -> f64 {
        if let Some(x) = memo[id as usize] {
            return x;
        }
        let (expr, dtype) = &self.group.body.exprs[id as usize];
        let of = |x: ExprId| self.group.body.exprs[x as usize].1;
        let element = |i: u16| {
            let index = self.index(i);
            let rank = index.views[0].dims.len();
            let once = self.group.kind == Kind::Row && rank == self.group.outer().len();
            assert!(once || rank == c.len(), "{}: rank of index {i}", self.group);
            index.element(&c[..rank], self.scalars)
        };
        let x = match *expr {
            Expr::Load { operand, index } => match element(index) {
                Some(e) => self.load(operand, e, m),
                None => 0.0,
            },
            Expr::Gather { operand, index, at, stride, size } => {
                let at = self.expr(at, c, accs, memo, m);
                match element(index) {
                    Some(e) if at >= 0.0 && at < size as f64 => self.load(operand, e + at as i64 * stride, m),
                    _ => 0.0,
                }
            }
            Expr::Scalar { scalar } => self.scalars[usize::from(scalar)],
            Expr::Coord { index } => direct::wrap(element(index).unwrap_or(0) as f64, *dtype),
            Expr::Random { index, per_row, scalars } => {
                let [a, b, step, row] = scalars.map(|s| self.scalars[usize::from(s)]);
                direct::random(row * f64::from(per_row) + element(index).unwrap_or(0) as f64, [a, b, step])
            }
            Expr::Valid { index } => f64::from(u8::from(element(index).is_some())),
            Expr::Unary { op, x } => direct::unary(op, self.expr(x, c, accs, memo, m), of(x), *dtype),
            Expr::Binary { op, x, w } => {
                let from = of(x);
                let x = self.expr(x, c, accs, memo, m);
                direct::binary(op, x, self.expr(w, c, accs, memo, m), from, *dtype)
            }
            Expr::Select { c: cond, x, w } => {
                if self.expr(cond, c, accs, memo, m) != 0.0 {
                    self.expr(x, c, accs, memo, m)
                } else {
                    self.expr(w, c, accs, memo, m)
                }
            }
            Expr::Cast { x } => direct::cast(self.expr(x, c, accs, memo, m), of(x), *dtype),
            Expr::Acc { acc } => accs[usize::from(acc)],
        };
        memo[id as usize] = Some(x);
        x
    }

    fn run(&self, writes: &[Loc], m: &mut Memory) {
        let group = self.group;
        let out = |i: usize| self.plan.graph.out(group.stores[i].val);
        if let Kind::Attention(op, places) = &group.kind {
            let node = self.plan.graph.node(group.stores[0].val.node);
            let one = |(place, val): (&(u16, u16), &Val)| {
                let from = self.plan.graph.out(*val);
                let at = |n| self.index(place.1).element(&direct::coords(from.shape.dims(), n), &[]).unwrap();
                let x: Vec<f64> = (0..from.shape.elems()).map(|n| self.load(place.0, at(n), m)).collect();
                (x, from)
            };
            let ins: Vec<_> = places.iter().zip(&node.inputs).map(one).collect();
            let ins: Vec<_> = ins.iter().map(|(x, from)| (x.as_slice(), *from)).collect();
            let outs = direct::whole(*op, &ins, &node.outs);
            for (i, data) in outs.iter().enumerate() {
                data.iter().enumerate().for_each(|(n, x)| *m.cell(writes[i], n, out(i).dtype) = *x);
            }
            return;
        }
        if let Kind::Custom(_) | Kind::Whole(_) = group.kind {
            let ins: Vec<Vec<f64>> = (0..group.operands.len())
                .map(|o| {
                    let n = self.plan.graph.out(group.operands[o]).shape.elems();
                    (0..n).map(|e| self.load(o as u16, e as i64, m)).collect()
                })
                .collect();
            let ins: Vec<&[f64]> = ins.iter().map(Vec::as_slice).collect();
            let to: Vec<_> = (0..writes.len()).map(out).collect();
            let outs = match group.kind {
                Kind::Custom(id) => {
                    let mut outs: Vec<Vec<f64>> = to.iter().map(|o| vec![0.0; o.shape.elems()]).collect();
                    (self.plan.graph.custom(id).unwrap().cpu)(&ins, &mut outs);
                    outs
                }
                Kind::Whole(op) => {
                    // Operands may lie under another shape of as many elements.
                    let node = self.plan.graph.node(group.stores[0].val.node);
                    let from = node.inputs.iter().map(|v| self.plan.graph.out(*v));
                    direct::whole(op, &ins.into_iter().zip(from).collect::<Vec<_>>(), &to)
                }
                _ => unreachable!("matched above"),
            };
            for (i, data) in outs.iter().enumerate() {
                data.iter().enumerate().for_each(|(n, x)| *m.cell(writes[i], n, out(i).dtype) = *x);
            }
            return;
        }
        let outer = group.outer().to_vec();
        let inner = group.dims[outer.len()..].to_vec();
        let whole = |n: usize, k: usize| {
            let mut c = direct::coords(&outer, n);
            c.extend(direct::coords(&inner, k));
            c
        };
        if let Kind::Scatter { kind, .. } = group.kind {
            let none = direct::neutral(kind, out(0).dtype);
            (0..out(0).shape.elems()).for_each(|e| *m.cell(writes[0], e, out(0).dtype) = none);
        }
        for n in 0..outer.iter().product() {
            let c = direct::coords(&outer, n);
            let mut accs = Vec::new();
            let steps: usize = inner.iter().product();
            match group.kind {
                Kind::MatMul { a, b } => {
                    let sum = (0..steps).fold(0.0, |sum, k| {
                        let c = whole(n, k);
                        let at = |i: u16| self.index(i).element(&c, self.scalars).unwrap();
                        sum + self.load(a.0, at(a.1), m) * self.load(b.0, at(b.1), m)
                    });
                    accs.push(sum);
                }
                Kind::Scatter { at, src, stride, size, kind } => {
                    for k in 0..steps {
                        let c2 = whole(n, k);
                        let element = |i: u16| self.index(i).element(&c2, self.scalars).unwrap();
                        let pos = self.load(at.0, element(at.1), m);
                        let x = self.load(src.0, element(src.1), m);
                        if pos >= 0.0 && pos < size as f64 {
                            let first = self.index(group.stores[0].index).element(&c, self.scalars).unwrap();
                            let cell =
                                m.cell(writes[0], (first + pos as i64 * stride) as usize, out(0).dtype);
                            *cell = direct::combine(kind, *cell, x, out(0).dtype);
                        }
                    }
                    continue;
                }
                Kind::Row => {
                    self.row(&c, steps, &whole, n, writes, m);
                    continue;
                }
                _ => {
                    let dtype = |x: ExprId| group.body.exprs[x as usize].1;
                    for a in &group.accs {
                        accs.push(match a.kind {
                            AccKind::Reduce(kind) => direct::neutral(kind, dtype(a.x)),
                            AccKind::Arg { .. } => 0.0,
                        });
                    }
                    let mut best = vec![f64::NAN; accs.len()];
                    for k in 0..steps * usize::from(group.reduced > 0) {
                        let c = whole(n, k);
                        let mut memo = vec![None; group.body.exprs.len()];
                        for (i, a) in group.accs.iter().enumerate() {
                            let x = self.expr(a.x, &c, &[], &mut memo, m);
                            match a.kind {
                                AccKind::Reduce(kind) => {
                                    accs[i] = direct::combine(kind, accs[i], x, dtype(a.x));
                                }
                                AccKind::Arg { max } => {
                                    if k == 0 || direct::better(max, x, best[i]) {
                                        (best[i], accs[i]) = (x, k as f64);
                                    }
                                }
                            }
                        }
                    }
                }
            }
            let mut memo = vec![None; group.body.exprs.len()];
            let values: Vec<f64> =
                group.stores.iter().map(|s| self.expr(s.x, &c, &accs, &mut memo, m)).collect();
            for (i, x) in values.into_iter().enumerate() {
                let e = self.index(group.stores[i].index).element(&c, self.scalars).unwrap();
                *m.cell(writes[i], usize::try_from(e).unwrap(), out(i).dtype) = x;
            }
        }
    }

    /// A row of a row program: accumulators one after the other, then the stores.
    fn row(
        &self,
        c: &[usize],
        steps: usize,
        whole: &dyn Fn(usize, usize) -> Vec<usize>,
        n: usize,
        writes: &[Loc],
        m: &mut Memory,
    ) {
        let group = self.group;
        let out = |i: usize| self.plan.graph.out(group.stores[i].val);
        let mut accs: Vec<f64> = Vec::new();
        for a in &group.accs {
            let AccKind::Reduce(kind) = a.kind else { panic!("{group}: an argument") };
            let dtype = group.body.exprs[a.x as usize].1;
            let mut sum = direct::neutral(kind, dtype);
            for k in 0..steps {
                let mut memo = vec![None; group.body.exprs.len()];
                let x = self.expr(a.x, &whole(n, k), &accs, &mut memo, m);
                sum = direct::combine(kind, sum, x, dtype);
            }
            accs.push(sum);
        }
        let space = |i: usize| -> Vec<Vec<usize>> {
            if group.stores_rows(&group.stores[i]) {
                (0..steps).map(|k| whole(n, k)).collect()
            } else {
                vec![c.to_vec()]
            }
        };
        // All values of a point before its stores; what is stored once a row comes last.
        let mut later = Vec::new();
        for k in 0..steps {
            let mut memo = vec![None; group.body.exprs.len()];
            let mut here = Vec::new();
            for (i, s) in group.stores.iter().enumerate() {
                if let Some(at) = space(i).get(k).filter(|_| group.stores_rows(s) || k == 0) {
                    let mut own = vec![None; group.body.exprs.len()];
                    let memo = if group.stores_rows(s) { &mut memo } else { &mut own };
                    let x = self.expr(s.x, at, &accs, memo, m);
                    let e = self.index(s.index).element(at, self.scalars).unwrap();
                    (if group.stores_rows(s) { &mut here } else { &mut later }).push((i, e, x));
                }
            }
            for (i, e, x) in here {
                *m.cell(writes[i], usize::try_from(e).unwrap(), out(i).dtype) = x;
            }
        }
        for (i, e, x) in later {
            *m.cell(writes[i], usize::try_from(e).unwrap(), out(i).dtype) = x;
        }
    }
}
