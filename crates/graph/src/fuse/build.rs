//! One kernel for each stored value: the expression over its space, down to what is stored.

use std::collections::HashMap;

use smallvec::SmallVec;

use super::MAX_EXPRS;
use super::cut::Cut;
use super::draft::Draft;
use crate::{
    Acc, AccKind, Binary, DType, Expr, ExprId, Graph, Index, Kind, NodeId, Op, Result, Shape, Steps, Val,
    View, bail,
};

/// Why a kernel was not built.
pub(crate) enum Stop {
    /// It has too many expressions; storing this node helps.
    Large(NodeId),
}

/// Builds the kernel of one stored node.
struct Builder<'a, 'c> {
    cut: &'c Cut<'a>,
    draft: Draft,
    /// The node whose kernel this is.
    root: NodeId,
    seen: HashMap<(Val, u16), ExprId>,
    /// How often each node was evaluated under different indices.
    copies: HashMap<NodeId, u32>,
}

/// The kernels of stored node `id`, one or (concatenation of many) several, in order.
pub(crate) fn kernels(cut: &Cut<'_>, id: NodeId) -> Result<Vec<Draft>, Stop> {
    let node = cut.graph.node(id);
    let out = node.outs[0];
    let start = |kind: Kind, dims: &[usize], reduced: usize| Builder {
        cut,
        draft: Draft::new(kind, dims, reduced),
        root: id,
        seen: HashMap::new(),
        copies: HashMap::new(),
    };
    let anchor = cut.is_anchor(id);
    let val = Val::of(id);
    match node.op {
        Op::Reduce { axes, .. } => reduce(start, id, &|axis| axes.has(axis)),
        Op::ArgReduce { axis, .. } => reduce(start, id, &|a| a == usize::from(axis)),
        Op::MatMul => {
            let (a, b, dims) = matmul_indices(cut.graph, id);
            let mut k = start(Kind::Pointwise, &dims, 1);
            let [a, b] = [(node.inputs[0], &a), (node.inputs[1], &b)].map(|(val, index)| {
                let (base, at) = cut.factor(val, index);
                (k.draft.operand(base), k.draft.index(&at))
            });
            k.draft.group.kind = Kind::MatMul { a, b };
            k.draft.group.accs.push(Acc { kind: AccKind::Reduce(crate::Reduce::Sum), x: 0 });
            let x = k.draft.expr(Expr::Acc { acc: 0 }, out.dtype);
            k.draft.store(val, x, &Index::identity(&dims[..dims.len() - 1]), None);
            Ok(vec![k.done()])
        }
        Op::Scatter { axis, kind } => {
            let axis = usize::from(axis);
            let (dims, index) = scatter_index(cut.graph.out(node.inputs[0]).shape, axis);
            let mut k = start(Kind::Pointwise, &dims, 1);
            let at = k.strided(node.inputs[0], &index);
            let src = k.strided(node.inputs[1], &index);
            let places = out.shape.strides();
            let columns: SmallVec<[usize; 8]> = (0..out.shape.rank()).filter(|a| *a != axis).collect();
            k.draft.group.kind = Kind::Scatter { at, src, stride: places[axis], size: out.shape[axis], kind };
            let first = Index::of(View {
                dims: columns.iter().map(|a| out.shape[*a]).collect(),
                strides: columns.iter().map(|a| places[*a]).collect(),
                offset: 0,
                valid: None,
                dynamic: SmallVec::new(),
            });
            k.draft.store(val, 0, &first, None);
            Ok(vec![k.done()])
        }
        op if op.attend().is_some() => {
            let mut k = start(Kind::Pointwise, &[], 0);
            let mut ins = SmallVec::new();
            for v in &node.inputs {
                ins.push(k.strided(*v, &Index::identity(cut.graph.out(*v).shape.dims())));
            }
            k.draft.group.kind = Kind::Attention(op, ins);
            k.outputs();
            Ok(vec![k.done()])
        }
        op if matches!(op, Op::Custom(_)) || op.is_whole() => {
            let kind = match op {
                Op::Custom(custom) => Kind::Custom(custom),
                op => Kind::Whole(op),
            };
            let mut k = start(kind, &[], 0);
            k.draft.group.operands = node.inputs.iter().map(|v| cut.whole(*v)).collect();
            k.outputs();
            Ok(vec![k.done()])
        }
        Op::SliceAssign(_) | Op::SliceAssignAt { .. } if anchor => {
            let part = cut.graph.out(node.inputs[1]).shape;
            let mut k = start(Kind::Pointwise, part.dims(), 0);
            let x = k.eval(node.inputs[1], Index::identity(part.dims()))?;
            let mut scalar = 0;
            let movement = match node.op {
                Op::SliceAssign(steps) => Op::Slice(steps),
                Op::SliceAssignAt { axis } => {
                    scalar = k.scalar(node.inputs[2]);
                    Op::SliceAt { axis }
                }
                other => other,
            };
            let view = View::of_movement(&movement, out.shape, part, scalar);
            k.draft.store(val, x, &Index::of(view), Some(cut.canon(node.inputs[0])));
            Ok(vec![k.done()])
        }
        Op::Concat { axis } if anchor && !cut.packed(out.dtype) => {
            let mut parts = Vec::new();
            let mut first = 0;
            for v in &node.inputs {
                let part = cut.graph.out(*v).shape;
                let mut k = start(Kind::Pointwise, part.dims(), 0);
                let x = k.eval(*v, Index::identity(part.dims()))?;
                let mut steps = Steps::ALL;
                steps.start[usize::from(axis)] = first;
                first += part[usize::from(axis)] as i64;
                let view = View::of_movement(&Op::Slice(steps), out.shape, part, 0);
                let base = (!parts.is_empty()).then_some(val);
                k.draft.store(val, x, &Index::of(view), base);
                parts.push(k.done());
            }
            Ok(parts)
        }
        Op::Concat { axis } if anchor => {
            // Words are shared by neighbours: each kernel writes everything, a few parts new.
            let dims = out.shape.dims();
            let mut parts = Vec::new();
            let few = cut.caps.max_buffers.saturating_sub(2).clamp(1, super::MAX_PARTS);
            for chunk in 0..node.inputs.len().div_ceil(few) {
                let mut k = start(Kind::Pointwise, dims, 0);
                let all = Index::identity(dims);
                let rest = if chunk == 0 {
                    k.zero(out.dtype)
                } else {
                    let (operand, index) = (k.draft.operand(val), k.draft.index(&all));
                    k.draft.expr(Expr::Load { operand, index }, out.dtype)
                };
                let range = chunk * few..((chunk + 1) * few).min(node.inputs.len());
                let x = k.concat(id, usize::from(axis), range, &all, Some(rest))?;
                k.draft.store(val, x, &all, None);
                parts.push(k.done());
            }
            Ok(parts)
        }
        _ => {
            let dims = out.shape.dims();
            let mut k = start(Kind::Pointwise, dims, 0);
            let x = k.node(id, Index::identity(dims))?;
            k.draft.store(val, x, &Index::identity(dims), None);
            Ok(vec![k.done()])
        }
    }
}

fn reduce<'a: 'c, 'c>(
    start: impl Fn(Kind, &[usize], usize) -> Builder<'a, 'c>,
    id: NodeId,
    reduced: &dyn Fn(usize) -> bool,
) -> Result<Vec<Draft>, Stop> {
    let probe = start(Kind::Reduce, &[], 0);
    let node = probe.cut.graph.node(id);
    let from = probe.cut.graph.out(node.inputs[0]).shape;
    let mut axes: SmallVec<[usize; 8]> = (0..from.rank()).filter(|a| !reduced(*a)).collect();
    let outer = axes.len();
    axes.extend((0..from.rank()).filter(|a| reduced(*a)));
    let dims: SmallVec<[usize; 8]> = axes.iter().map(|a| from[*a]).collect();
    let places = from.strides();
    let index = Index::of(View {
        dims: dims.clone(),
        strides: axes.iter().map(|a| places[*a]).collect(),
        offset: 0,
        valid: None,
        dynamic: SmallVec::new(),
    });
    let mut k = start(Kind::Reduce, &dims, dims.len() - outer);
    let x = k.eval(node.inputs[0], index)?;
    let kind = match node.op {
        Op::ArgReduce { max, .. } => AccKind::Arg { max },
        Op::Reduce { kind, .. } => AccKind::Reduce(kind),
        _ => AccKind::Reduce(crate::Reduce::Sum),
    };
    k.draft.group.accs.push(Acc { kind, x });
    let x = k.draft.expr(Expr::Acc { acc: 0 }, node.outs[0].dtype);
    k.draft.store(Val::of(id), x, &Index::identity(&dims[..outer]), None);
    Ok(vec![k.done()])
}

impl Builder<'_, '_> {
    fn done(mut self) -> Draft {
        let nodes = &mut self.draft.group.nodes;
        nodes.push(self.root);
        nodes.sort_unstable();
        nodes.dedup();
        self.draft.compact();
        self.draft
    }

    /// Row-major stores of all results.
    fn outputs(&mut self) {
        for (i, o) in self.cut.graph.node(self.root).outs.iter().enumerate() {
            let val = Val { node: self.root, out: i as u32 };
            self.draft.store(val, 0, &Index::identity(o.shape.dims()), None);
        }
    }

    fn strided(&mut self, val: Val, index: &Index) -> (u16, u16) {
        let (base, at) = self.cut.strided(val, index);
        (self.draft.operand(base), self.draft.index(&at))
    }

    fn scalar(&mut self, val: Val) -> u16 {
        let node = self.cut.start(val);
        let limit = self.cut.starts.get(&node).copied();
        self.draft.scalar(node, limit)
    }

    fn zero(&mut self, dtype: DType) -> ExprId {
        let dims = self.draft.group.dims.clone();
        let index = self.draft.index(&Index::constant(&dims, 0));
        self.draft.expr(Expr::Coord { index }, dtype)
    }

    fn then(&self, index: &Index, view: &View) -> Index {
        index.then(view, &self.draft.limits)
    }

    /// Element of `val` where `index` leads.
    fn eval(&mut self, val: Val, mut index: Index) -> Result<ExprId, Stop> {
        let mut val = self.cut.canon(val);
        loop {
            let graph = self.cut.graph;
            let node = graph.node(val.node);
            let dtype = graph.out(val).dtype;
            if node.op == Op::Scalar {
                let scalar = self.scalar(val);
                return Ok(self.draft.expr(Expr::Scalar { scalar }, dtype));
            }
            if self.cut.in_memory(val) {
                let (operand, index) = (self.draft.operand(val), self.draft.index(&index));
                return Ok(self.draft.expr(Expr::Load { operand, index }, dtype));
            }
            if !node.op.is_movement() {
                let at = self.draft.index(&index);
                if let Some(x) = self.seen.get(&(val, at)) {
                    return Ok(*x);
                }
                let x = self.node(val.node, index)?;
                self.seen.insert((val, at), x);
                return Ok(x);
            }
            (val, index) = self.moved(val.node, &index);
        }
    }

    /// A movement node under an index: its operand and the index to that.
    fn moved(&mut self, id: NodeId, index: &Index) -> (Val, Index) {
        let node = self.cut.graph.node(id);
        self.draft.group.nodes.push(id);
        let start = match node.op {
            Op::SliceAt { .. } => self.scalar(node.inputs[1]),
            _ => 0,
        };
        let from = self.cut.graph.out(node.inputs[0]).shape;
        let view = View::of_movement(&node.op, from, node.outs[0].shape, start);
        (self.cut.canon(node.inputs[0]), self.then(index, &view))
    }

    /// The operation of node `id` where `index` leads.
    fn node(&mut self, id: NodeId, index: Index) -> Result<ExprId, Stop> {
        let graph = self.cut.graph;
        let node = graph.node(id);
        let out = node.outs[0];
        self.draft.group.nodes.push(id);
        *self.copies.entry(id).or_default() += 1;
        if self.draft.group.body.exprs.len() > MAX_EXPRS
            && let Some(victim) = self.victim()
        {
            return Err(Stop::Large(victim));
        }
        let inputs = &node.inputs;
        let expr = match node.op {
            Op::Input => {
                let (operand, index) = (self.draft.operand(Val::of(id)), self.draft.index(&index));
                Expr::Load { operand, index }
            }
            Op::Scalar => Expr::Scalar { scalar: self.scalar(Val::of(id)) },
            Op::Iota { axis } => {
                let mut strides: SmallVec<[i64; 8]> = SmallVec::from_elem(0, out.shape.rank());
                strides[usize::from(axis)] = 1;
                let view = View {
                    dims: out.shape.dims().into(),
                    strides,
                    offset: 0,
                    valid: None,
                    dynamic: SmallVec::new(),
                };
                let index = self.then(&index, &view);
                Expr::Coord { index: self.draft.index(&unguarded(index)) }
            }
            Op::Random => {
                let per_row = out.shape.dims().iter().skip(1).product::<usize>() as u32;
                let mut scalars = [0; 4];
                for (s, v) in scalars.iter_mut().zip(inputs) {
                    *s = self.scalar(*v);
                }
                Expr::Random { index: self.draft.index(&unguarded(index)), per_row, scalars }
            }
            Op::Unary(op) => Expr::Unary { op, x: self.eval(inputs[0], index)? },
            Op::Binary(op) => {
                let x = self.eval(inputs[0], index.clone())?;
                Expr::Binary { op, x, w: self.eval(inputs[1], index)? }
            }
            Op::Select => {
                let c = self.eval(inputs[0], index.clone())?;
                let x = self.eval(inputs[1], index.clone())?;
                Expr::Select { c, x, w: self.eval(inputs[2], index)? }
            }
            Op::Cast => Expr::Cast { x: self.eval(inputs[0], index)? },
            Op::Pad { .. } => {
                let from = graph.out(inputs[0]).shape;
                let inner = self.then(&index, &View::of_movement(&node.op, from, out.shape, 0));
                let x = self.eval(inputs[0], inner.clone())?;
                return Ok(self.guarded(&inner, x, None, out.dtype));
            }
            Op::Concat { axis } => {
                return self.concat(id, usize::from(axis), 0..inputs.len(), &index, None);
            }
            Op::Gather { axis } => return self.gather(id, usize::from(axis), &index),
            Op::SliceAssign(steps) => {
                let part = graph.out(inputs[1]).shape;
                let inner = self.unsliced(&index, out.shape, part, &steps);
                let w = self.eval(inputs[0], index)?;
                if part.elems() == 0 {
                    return Ok(w);
                }
                let x = self.eval(inputs[1], inner.clone())?;
                return Ok(self.guarded(&inner, x, Some(w), out.dtype));
            }
            Op::SliceAssignAt { axis } => return self.assign_at(id, usize::from(axis), &index),
            _ => {
                let (val, index) = self.moved(id, &index);
                return self.eval(val, index);
            }
        };
        Ok(self.draft.expr(expr, out.dtype))
    }

    /// The node that is evaluated most often, and of those the latest.
    fn victim(&self) -> Option<NodeId> {
        let others = self.copies.iter().filter(|(id, _)| **id != self.root);
        others.max_by_key(|(id, copies)| (**copies, **id)).map(|(id, _)| *id)
    }

    /// `x` where `index` has an element, else `w` or zero.
    fn guarded(&mut self, index: &Index, x: ExprId, w: Option<ExprId>, dtype: DType) -> ExprId {
        if index.views.iter().all(|v| v.valid.is_none()) {
            return x;
        }
        if w.is_none()
            && matches!(self.draft.group.body.exprs[x as usize].0, Expr::Load { .. } | Expr::Gather { .. })
        {
            return x;
        }
        let index = self.draft.index(index);
        let c = self.draft.expr(Expr::Valid { index }, DType::Bool);
        if w.is_none() && dtype == DType::Bool {
            return self.draft.expr(Expr::Binary { op: Binary::And, x: c, w: x }, dtype);
        }
        let w = w.unwrap_or_else(|| self.zero(dtype));
        self.draft.expr(Expr::Select { c, x, w }, dtype)
    }

    fn concat(
        &mut self,
        id: NodeId,
        axis: usize,
        range: std::ops::Range<usize>,
        index: &Index,
        rest: Option<ExprId>,
    ) -> Result<ExprId, Stop> {
        let graph = self.cut.graph;
        let node = graph.node(id);
        let out = node.outs[0];
        let size = |v: &Val| graph.out(*v).shape[axis];
        let mut first: usize = node.inputs[..range.start].iter().map(size).sum();
        let mut parts = Vec::new();
        for v in &node.inputs[range] {
            let mut lo = [0; crate::MAX_RANK];
            lo[axis] = first as u32;
            first += size(v);
            let from = graph.out(*v).shape;
            if from.elems() == 0 {
                continue;
            }
            let inner = self.then(index, &View::of_movement(&Op::Pad { lo }, from, out.shape, 0));
            parts.push((self.eval(*v, inner.clone())?, inner));
        }
        let mut acc = rest;
        for (x, inner) in parts.into_iter().rev() {
            acc = Some(match acc {
                None => x,
                Some(w) => self.guarded(&inner, x, Some(w), out.dtype),
            });
        }
        Ok(match acc {
            Some(x) => x,
            None => self.zero(out.dtype),
        })
    }

    fn gather(&mut self, id: NodeId, axis: usize, index: &Index) -> Result<ExprId, Stop> {
        let graph = self.cut.graph;
        let node = graph.node(id);
        let x = graph.out(node.inputs[0]).shape;
        let (base, at) = self.cut.strided(node.inputs[0], &Index::identity(x.dims()));
        let mut view = at.views[0].clone();
        let stride = view.strides[axis];
        view.strides[axis] = 0;
        view.dims = node.outs[0].shape.dims().into();
        let first = self.then(index, &view);
        let at = self.eval(node.inputs[1], index.clone())?;
        let (operand, index) = (self.draft.operand(base), self.draft.index(&first));
        Ok(self.draft.expr(Expr::Gather { operand, index, at, stride, size: x[axis] }, node.outs[0].dtype))
    }

    /// The index of a strided part's element under coordinates of the whole; valid inside the part.
    fn unsliced(&self, index: &Index, whole: Shape, part: Shape, steps: &Steps) -> Index {
        let places = part.strides();
        let mut outer = View::linear(whole.dims());
        let mut inner = View { dims: SmallVec::new(), ..View::linear(&[]) };
        let mut outer_valid: SmallVec<[std::ops::Range<usize>; 8]> = SmallVec::new();
        let mut inner_valid: SmallVec<[std::ops::Range<usize>; 8]> = SmallVec::new();
        // Position times |step| first, then its quotient where the remainder is 0.
        let mut place: i64 = (0..whole.rank()).map(|a| part[a] as i64 * steps.step[a].abs()).product();
        outer.offset = 0;
        for axis in 0..whole.rank() {
            let (start, step, size) = (steps.start[axis], steps.step[axis], part[axis] as i64);
            place /= size.max(1) * step.abs();
            let last = start + (size - 1) * step;
            outer_valid.push(start.min(last).max(0) as usize..start.max(last) as usize + 1);
            outer.strides[axis] = step.signum() * place;
            outer.offset -= step.signum() * start * place;
            inner.dims.extend([part[axis], step.unsigned_abs() as usize]);
            inner.strides.extend([places[axis], 0]);
            inner_valid.extend([0..part[axis], 0..1]);
        }
        if part.elems() == 0 {
            return index.clone();
        }
        outer.valid = Some(outer_valid);
        inner.valid = Some(inner_valid);
        let index = self.then(index, &outer);
        self.then(&index, &inner)
    }

    /// `slice_assign_at` over the whole of a value whose words hold several elements.
    fn assign_at(&mut self, id: NodeId, axis: usize, index: &Index) -> Result<ExprId, Stop> {
        let graph = self.cut.graph;
        let node = graph.node(id);
        let (whole, part) = (node.outs[0].shape, graph.out(node.inputs[1]).shape);
        let dtype = node.outs[0].dtype;
        let w = self.eval(node.inputs[0], index.clone())?;
        if part.elems() == 0 {
            return Ok(w);
        }
        let mut along = View::linear(whole.dims());
        along.strides = SmallVec::from_elem(0, whole.rank());
        along.strides[axis] = 1;
        let along = unguarded(self.then(index, &along));
        let along = self.draft.index(&along);
        let at = self.draft.expr(Expr::Coord { index: along }, DType::I32);
        let scalar = self.scalar(node.inputs[2]);
        let start = self.draft.expr(Expr::Scalar { scalar }, DType::U32);
        let start = self.draft.expr(Expr::Cast { x: start }, DType::I32);
        let dims = self.draft.group.dims.clone();
        let int = |d: &mut Draft, n: i64| {
            let index = d.index(&Index::constant(&dims, n));
            d.expr(Expr::Coord { index }, DType::I32)
        };
        let last = int(&mut self.draft, part[axis] as i64 - 1);
        let zero = int(&mut self.draft, 0);
        let mut binary = |op, x, w, dtype| self.draft.expr(Expr::Binary { op, x, w }, dtype);
        let at = binary(Binary::Sub, at, start, DType::I32);
        let low = binary(Binary::Ge, at, zero, DType::Bool);
        let high = binary(Binary::Le, at, last, DType::Bool);
        let c = binary(Binary::And, low, high, DType::Bool);
        let at = binary(Binary::Maximum, at, zero, DType::I32);
        let at = binary(Binary::Minimum, at, last, DType::I32);
        let base = self.cut.canon(node.inputs[1]);
        let mut view = View::linear(part.dims());
        let stride = view.strides[axis];
        view.strides[axis] = 0;
        view.dims = whole.dims().into();
        let first = self.then(index, &view);
        let (operand, index) = (self.draft.operand(base), self.draft.index(&first));
        let x = self.draft.expr(Expr::Gather { operand, index, at, stride, size: part[axis] }, dtype);
        Ok(self.draft.expr(Expr::Select { c, x, w }, dtype))
    }
}

/// The index without ranges, where a number outside does no harm.
fn unguarded(mut index: Index) -> Index {
    if index.views.len() == 1 {
        index.views[0].valid = None;
    }
    index
}

/// Indices of the operands of a matrix product over `[batch.., m, n, k]`, and that space.
pub(crate) fn matmul_indices(graph: &Graph, id: NodeId) -> (Index, Index, SmallVec<[usize; 8]>) {
    let node = graph.node(id);
    let (a, b) = (graph.out(node.inputs[0]).shape, graph.out(node.inputs[1]).shape);
    let rank = a.rank();
    let mut dims: SmallVec<[usize; 8]> = node.outs[0].shape.dims().into();
    dims.push(a[rank - 1]);
    let view = |places: &[i64], m: i64, n: i64, k: i64| {
        let mut strides: SmallVec<[i64; 8]> = places[..rank - 2].into();
        strides.extend([m, n, k]);
        Index::of(View { dims: dims.clone(), strides, offset: 0, valid: None, dynamic: SmallVec::new() })
    };
    let (pa, pb) = (a.strides(), b.strides());
    let a = view(&pa, pa[rank - 2], 0, pa[rank - 1]);
    let b = view(&pb, 0, pb[rank - 1], pb[rank - 2]);
    (a, b, dims)
}

/// The space of a scatter, `[columns.., i]`, and the index of its operands.
pub(crate) fn scatter_index(from: Shape, axis: usize) -> (SmallVec<[usize; 8]>, Index) {
    let mut axes: SmallVec<[usize; 8]> = (0..from.rank()).filter(|a| *a != axis).collect();
    axes.push(axis);
    let places = from.strides();
    let dims: SmallVec<[usize; 8]> = axes.iter().map(|a| from[*a]).collect();
    let strides = axes.iter().map(|a| places[*a]).collect();
    let index =
        Index::of(View { dims: dims.clone(), strides, offset: 0, valid: None, dynamic: SmallVec::new() });
    (dims, index)
}

/// Checks the sizes that kernels can address.
pub(crate) fn addressable(cut: &Cut<'_>, draft: &Draft) -> Result<()> {
    let group = &draft.group;
    for s in &group.stores {
        let out = cut.graph.out(s.val);
        let bytes = cut.caps.value_bytes(out.shape.elems(), out.dtype);
        if bytes > cut.caps.max_value_bytes || out.shape.elems() > u32::MAX as usize {
            let name = cut.graph.node(s.val.node).op.name();
            bail!(
                Limit,
                name,
                "{out:?} takes {bytes} bytes, the device has {} for one value",
                cut.caps.max_value_bytes
            );
        }
    }
    Ok(())
}
