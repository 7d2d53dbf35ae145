//! A group while it is made: expressions are interned, so equal ones are one.

use smallvec::SmallVec;

use crate::{Acc, Body, DType, Expr, ExprId, Graph, Group, Index, IndexId, Kind, NodeId, Store, Val};

/// A group that is being built or merged.
#[derive(Clone, Debug)]
pub(crate) struct Draft {
    /// The group so far.
    pub(crate) group: Group,
    /// The largest value of each of the group's scalars, where it serves as an offset.
    pub(crate) limits: Vec<i64>,
}

impl Draft {
    pub(crate) fn new(kind: Kind, dims: &[usize], reduced: usize) -> Draft {
        let group = Group {
            kind,
            dims: dims.into(),
            reduced,
            operands: Vec::new(),
            scalars: Vec::new(),
            body: Body::default(),
            accs: Vec::new(),
            stores: Vec::new(),
            nodes: Vec::new(),
        };
        Draft { group, limits: Vec::new() }
    }

    pub(crate) fn expr(&mut self, expr: Expr, dtype: DType) -> ExprId {
        // Bodies are short: comparing is faster than hashing.
        let exprs = &mut self.group.body.exprs;
        let known = exprs.iter().rposition(|(e, d)| *d == dtype && *e == expr);
        known.unwrap_or_else(|| {
            exprs.push((expr, dtype));
            exprs.len() - 1
        }) as ExprId
    }

    pub(crate) fn index(&mut self, index: &Index) -> IndexId {
        intern(&mut self.group.body.indices, index)
    }

    pub(crate) fn operand(&mut self, val: Val) -> u16 {
        intern(&mut self.group.operands, &val)
    }

    /// The group's number of a scalar; `limit` is its largest value where it serves as an offset.
    pub(crate) fn scalar(&mut self, node: NodeId, limit: Option<i64>) -> u16 {
        let scalar = intern(&mut self.group.scalars, &node);
        self.limits.resize(self.group.scalars.len(), i64::MAX);
        if let Some(limit) = limit {
            self.limits[usize::from(scalar)] = limit;
        }
        scalar
    }

    pub(crate) fn store(&mut self, val: Val, x: ExprId, index: &Index, base: Option<Val>) {
        let index = self.index(index);
        self.group.stores.push(Store { val, x, index, base });
    }

    /// Words that the kernel's scalars take.
    pub(crate) fn words(&self, graph: &Graph) -> usize {
        self.group.scalars.iter().map(|s| graph.node(*s).outs[0].dtype.bytes().div_ceil(4)).sum()
    }

    /// Buffers that the kernel binds.
    pub(crate) fn buffers(&self) -> usize {
        self.group.operands.len() + self.group.stores.len()
    }

    /// Copies expression `id` of `from` and what it needs; `load` says what an operand's element is
    /// here, given the operand and the index in `from`; `index` moves the other indices.
    pub(crate) fn transplant(
        &mut self,
        from: &Group,
        roots: &[ExprId],
        index: &dyn Fn(&Index, &mut Draft) -> Index,
        load: &dyn Fn(Val) -> Option<ExprId>,
        limits: &[i64],
    ) -> Vec<ExprId> {
        let mut used = vec![false; from.body.exprs.len()];
        roots.iter().for_each(|r| used[*r as usize] = true);
        for id in (0..used.len()).rev() {
            if used[id] {
                from.body.exprs[id].0.operands(|x| used[x as usize] = true);
            }
        }
        let mut map = vec![0; used.len()];
        let moved = |id: IndexId, draft: &mut Draft| {
            let old = renumber(&from.body.indices[usize::from(id)], |s| {
                draft.scalar(from.scalars[usize::from(s)], limit_of(limits, s))
            });
            let new = index(&old, draft);
            draft.index(&new)
        };
        for id in (0..used.len()).filter(|id| used[*id]) {
            let (expr, dtype) = &from.body.exprs[id];
            let at = |x: ExprId| map[x as usize];
            let scalar = |s: u16, d: &mut Draft| d.scalar(from.scalars[usize::from(s)], limit_of(limits, s));
            let new = match *expr {
                Expr::Load { operand, index } => {
                    let val = from.operands[usize::from(operand)];
                    if let Some(x) = load(val) {
                        map[id] = x;
                        continue;
                    }
                    Expr::Load { index: moved(index, self), operand: self.operand(val) }
                }
                Expr::Gather { operand, index, at: x, stride, size } => Expr::Gather {
                    index: moved(index, self),
                    operand: self.operand(from.operands[usize::from(operand)]),
                    at: at(x),
                    stride,
                    size,
                },
                Expr::Scalar { scalar: s } => Expr::Scalar { scalar: scalar(s, self) },
                Expr::Coord { index } => Expr::Coord { index: moved(index, self) },
                Expr::Random { index, per_row, scalars } => Expr::Random {
                    index: moved(index, self),
                    per_row,
                    scalars: scalars.map(|s| scalar(s, self)),
                },
                Expr::Valid { index } => Expr::Valid { index: moved(index, self) },
                Expr::Unary { op, x } => Expr::Unary { op, x: at(x) },
                Expr::Binary { op, x, w } => Expr::Binary { op, x: at(x), w: at(w) },
                Expr::Select { c, x, w } => Expr::Select { c: at(c), x: at(x), w: at(w) },
                Expr::Cast { x } => Expr::Cast { x: at(x) },
                Expr::Acc { acc } => Expr::Acc { acc },
            };
            map[id] = self.expr(new, *dtype);
        }
        roots.iter().map(|r| map[*r as usize]).collect()
    }

    /// Index `id` of another group, with its scalars numbered as here.
    pub(crate) fn adopt(&mut self, from: &Group, id: IndexId, limits: &[i64]) -> Index {
        renumber(&from.body.indices[usize::from(id)], |s| {
            self.scalar(from.scalars[usize::from(s)], limit_of(limits, s))
        })
    }

    /// Adds the stores of a reduction over the same space, whose accumulators follow the first
    /// `first` here.
    pub(crate) fn shift_accs(&mut self, from: &Group, first: u16, limits: &[i64]) {
        let mut from = from.clone();
        for (expr, _) in &mut from.body.exprs {
            if let Expr::Acc { acc } = expr {
                *acc += first;
            }
        }
        let roots: Vec<ExprId> = from.stores.iter().map(|s| s.x).collect();
        let xs = self.transplant(&from, &roots, &|index, _| index.clone(), &|_| None, limits);
        for (s, x) in from.stores.iter().zip(xs) {
            let index = self.adopt(&from, s.index, limits);
            self.store(s.val, x, &index, s.base);
        }
    }

    /// Drops what no store, accumulator or kind needs, and numbers the rest in order of use.
    pub(crate) fn compact(&mut self) {
        let old = std::mem::replace(&mut self.group, Draft::new(Kind::Pointwise, &[], 0).group);
        let limits = std::mem::take(&mut self.limits);
        self.group.dims = old.dims.clone();
        self.group.reduced = old.reduced;
        self.group.nodes = old.nodes.clone();
        let operand = |draft: &mut Draft, (o, index): (u16, IndexId)| {
            let index = renumber(&old.body.indices[usize::from(index)], |s| {
                draft.scalar(old.scalars[usize::from(s)], limit_of(&limits, s))
            });
            (draft.operand(old.operands[usize::from(o)]), draft.index(&index))
        };
        self.group.kind = match &old.kind {
            Kind::MatMul { a, b } => Kind::MatMul { a: operand(self, *a), b: operand(self, *b) },
            Kind::Attention(op, ins) => Kind::Attention(*op, ins.iter().map(|i| operand(self, *i)).collect()),
            Kind::Scatter { at, src, stride, size, kind } => {
                let (at, src) = (operand(self, *at), operand(self, *src));
                Kind::Scatter { at, src, stride: *stride, size: *size, kind: *kind }
            }
            Kind::Whole(_) | Kind::Custom(_) => {
                self.group.operands.clone_from(&old.operands);
                old.kind.clone()
            }
            Kind::Pointwise | Kind::Reduce | Kind::Row => old.kind.clone(),
        };
        let bodied = !matches!(
            old.kind,
            Kind::Scatter { .. } | Kind::Whole(_) | Kind::Attention(..) | Kind::Custom(_)
        );
        let mut roots: Vec<ExprId> = Vec::new();
        if bodied {
            if matches!(old.kind, Kind::Reduce | Kind::Row) {
                roots.extend(old.accs.iter().map(|a| a.x));
            }
            roots.extend(old.stores.iter().map(|s| s.x));
        }
        let new = self.transplant(&old, &roots, &|index, _| index.clone(), &|_| None, &limits);
        let mut new = new.into_iter();
        let mut next = |old: ExprId| if bodied { new.next().unwrap_or(old) } else { old };
        self.group.accs = match old.kind {
            Kind::Reduce | Kind::Row => old.accs.iter().map(|a| Acc { kind: a.kind, x: next(a.x) }).collect(),
            _ => old.accs.clone(),
        };
        for s in &old.stores {
            let index = renumber(&old.body.indices[usize::from(s.index)], |i| {
                self.scalar(old.scalars[usize::from(i)], limit_of(&limits, i))
            });
            let x = next(s.x);
            self.store(s.val, x, &index, s.base);
        }
    }
}

impl Expr {
    /// Calls `f` with each expression that this one refers to.
    pub(crate) fn operands(&self, mut f: impl FnMut(ExprId)) {
        match *self {
            Expr::Gather { at: x, .. } | Expr::Unary { x, .. } | Expr::Cast { x } => f(x),
            Expr::Binary { x, w, .. } => [x, w].into_iter().for_each(f),
            Expr::Select { c, x, w } => [c, x, w].into_iter().for_each(f),
            _ => {}
        }
    }
}

fn limit_of(limits: &[i64], scalar: u16) -> Option<i64> {
    limits.get(usize::from(scalar)).copied().filter(|l| *l != i64::MAX)
}

fn intern<T: Clone + PartialEq>(all: &mut Vec<T>, one: &T) -> u16 {
    let at = all.iter().position(|x| x == one).unwrap_or_else(|| {
        all.push(one.clone());
        all.len() - 1
    });
    at as u16
}

/// The index with its scalars numbered anew.
fn renumber(index: &Index, mut scalar: impl FnMut(u16) -> u16) -> Index {
    let mut index = index.clone();
    for view in &mut index.views {
        let dynamic: SmallVec<[crate::Dynamic; 1]> =
            view.dynamic.iter().map(|d| crate::Dynamic { scalar: scalar(d.scalar), ..*d }).collect();
        view.dynamic = dynamic;
    }
    index
}
