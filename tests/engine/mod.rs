//! The path from a recorded tensor to a submission as a whole: numbers, steady state, second
//! derivatives, and what plans do not do.

mod batch;
mod losses;
mod memory;
mod plans;
mod recorder;
mod repeat;
mod second;
mod segments;
mod steady;

pub(crate) use recorder::Recorder;

use crate::Test;

pub(crate) fn tests() -> Vec<Test> {
    [
        losses::tests(),
        steady::tests(),
        second::tests(),
        plans::tests(),
        memory::tests(),
        repeat::tests(),
        segments::tests(),
        batch::tests(),
    ]
    .into_iter()
    .flatten()
    .collect()
}
