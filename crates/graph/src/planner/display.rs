//! A plan as text: the same in logs, reports and golden tests.

use std::fmt;

use crate::{Home, LeafKind, Loc, Plan};

impl fmt::Display for Loc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Loc::Leaf(i) => write!(f, "leaf{i}"),
            Loc::Slot(i) => write!(f, "slot{i}"),
            Loc::Out(i) => write!(f, "out{i}"),
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "plan: {} steps, {} slots, workspace {} bytes of which {} uploaded",
            self.steps.len(),
            self.slots.len(),
            self.workspace_bytes,
            self.upload_bytes
        )?;
        for (i, leaf) in self.leaves.iter().enumerate() {
            let out = self.graph.node(leaf.node).outs[0];
            write!(f, "leaf{i} = %{} {out:?}", leaf.node)?;
            match leaf.kind {
                LeafKind::Buffer => writeln!(f)?,
                LeafKind::Donated => writeln!(f, " donated")?,
                LeafKind::Upload => writeln!(f, " upload at {}", leaf.offset_bytes)?,
            }
        }
        for (i, slot) in self.slots.iter().enumerate() {
            writeln!(
                f,
                "slot{i} = {} bytes at {}, steps {}..={}",
                slot.bytes, slot.offset_bytes, slot.born, slot.dies
            )?;
        }
        for (i, step) in self.steps.iter().enumerate() {
            write!(f, "step {i}")?;
            let beside =
                [i.checked_sub(1), Some(i + 1)].into_iter().flatten().filter_map(|n| self.steps.get(n));
            if beside.into_iter().any(|s| s.batch == step.batch) {
                write!(f, " batch {}", step.batch)?;
            }
            let places = |locs: &[Loc]| locs.iter().map(Loc::to_string).collect::<Vec<_>>().join(" ");
            let nodes: Vec<_> = step.group.nodes.iter().map(|n| self.graph.node(*n).op.name()).collect();
            writeln!(f, ": {} from [{}] to [{}]", step.group, places(&step.reads), places(&step.writes))?;
            writeln!(f, "    {}", nodes.join(" "))?;
        }
        for (i, output) in self.outputs.iter().enumerate() {
            match output.home {
                Home::New { bytes } => writeln!(f, "out{i} = {:?}, new, {bytes} bytes", output.val)?,
                Home::InPlace(leaf) => writeln!(f, "out{i} = {:?}, in place of leaf{leaf}", output.val)?,
            }
        }
        for note in &self.notes {
            writeln!(f, "note: {note}")?;
        }
        Ok(())
    }
}
