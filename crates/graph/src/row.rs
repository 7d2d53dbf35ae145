//! Row programs: when and where each expression is evaluated.

use crate::{AccKind, Expr, Group, Kind, Store};

/// When and where an expression of a row program is evaluated.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RowStage {
    /// Levels of accumulators that have to be complete before: 0 where it depends on none.
    pub level: usize,
    /// Whether it changes along the row; else it is evaluated once a row.
    pub whole: bool,
}

impl Group {
    /// For each expression of a row program when and where it is evaluated. The level of an accumulator's
    /// result is one more than that of what it accumulates.
    pub fn row_stages(&self) -> Vec<RowStage> {
        let mut stages: Vec<RowStage> = Vec::with_capacity(self.body.exprs.len());
        for (expr, _) in &self.body.exprs {
            let mut stage = RowStage { level: 0, whole: self.spans_row(expr) };
            if let Expr::Acc { acc } = expr {
                stage.level = stages[self.accs[usize::from(*acc)].x as usize].level + 1;
            }
            expr.operands(|x| {
                let of = stages[x as usize];
                stage.level = stage.level.max(of.level);
                stage.whole |= of.whole;
            });
            stages.push(stage);
        }
        stages
    }

    /// How many levels of accumulators a row program has: each takes one run along the row.
    pub fn row_levels(&self) -> usize {
        if self.kind != Kind::Row {
            return usize::from(!self.accs.is_empty());
        }
        let stages = self.row_stages();
        self.accs.iter().map(|a| stages[a.x as usize].level + 1).max().unwrap_or(0)
    }

    /// Whether the store is over the whole space of a row program.
    pub fn stores_rows(&self, store: &Store) -> bool {
        self.kind == Kind::Row && self.rank(store.index) == self.dims.len()
    }

    /// The space of a store.
    pub fn store_space(&self, store: &Store) -> &[usize] {
        if self.stores_rows(store) { &self.dims } else { self.outer() }
    }

    /// Whether the store may lie in the place of the operand: that is read only where the store writes. Along a row
    /// every element is read and written by one invocation, written last. Once a row the first of several
    /// invocations writes, after the last accumulator is complete: what others need along the row afterwards
    /// may not come from there.
    pub(crate) fn row_in_place(&self, store: &Store, operand: u16) -> bool {
        let exprs = &self.body.exprs;
        let own = exprs.iter().all(|(expr, _)| match expr {
            Expr::Load { operand: o, index } => *o != operand || *index == store.index,
            Expr::Gather { operand: o, .. } => *o != operand,
            _ => true,
        });
        if !own || self.stores_rows(store) {
            return own;
        }
        let stages = self.row_stages();
        let mut needed: Vec<bool> = stages.iter().map(|s| s.whole).collect();
        self.stores.iter().filter(|s| self.stores_rows(s)).for_each(|s| needed[s.x as usize] = true);
        for id in (0..exprs.len()).rev() {
            if needed[id] {
                exprs[id].0.operands(|x| needed[x as usize] = true);
            }
        }
        let reads = |id: usize| matches!(exprs[id].0, Expr::Load { operand: o, .. } if o == operand);
        (0..exprs.len()).all(|id| !needed[id] || !reads(id))
    }

    fn rank(&self, index: u16) -> usize {
        self.body.indices[usize::from(index)].views[0].dims.len()
    }

    /// Whether the expression looks at the position in the row itself.
    fn spans_row(&self, expr: &Expr) -> bool {
        match expr {
            Expr::Load { index, .. }
            | Expr::Gather { index, .. }
            | Expr::Coord { index }
            | Expr::Random { index, .. }
            | Expr::Valid { index } => self.rank(*index) == self.dims.len(),
            _ => false,
        }
    }

    /// What must hold of a row program beside what holds of every group.
    ///
    /// # Errors
    /// The rule that is broken.
    pub(crate) fn check_rows(&self) -> Result<(), String> {
        if self.reduced == 0 || self.accs.is_empty() {
            return Err(format!("{self}: a row program without rows or accumulators"));
        }
        for (i, (expr, _)) in self.body.exprs.iter().enumerate() {
            if let Expr::Acc { acc } = expr
                && self.accs[usize::from(*acc)].x as usize >= i
            {
                return Err(format!("{self}: expression {i} uses an accumulator of a later one"));
            }
        }
        if self.accs.iter().any(|a| matches!(a.kind, AccKind::Arg { .. })) {
            return Err(format!("{self}: an index of an extreme in a row program"));
        }
        let stages = self.row_stages();
        let narrow = |(id, (expr, _)): (usize, &(Expr, crate::DType))| matches!(expr, Expr::Gather { index, .. } if stages[id].whole && self.rank(*index) < self.dims.len());
        if self.body.exprs.iter().enumerate().any(narrow) {
            return Err(format!("{self}: a gather along the row by an index that knows no row"));
        }
        let outer = |s: &Store| !self.stores_rows(s) && stages[s.x as usize].whole;
        match self.stores.iter().find(|s| outer(s)) {
            Some(s) => Err(format!("{self}: {:?} is stored once a row and changes along it", s.val)),
            None => Ok(()),
        }
    }
}
