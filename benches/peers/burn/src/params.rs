//! Parameters in the benchmarks' order, as a module that Burn's optimizers visit.

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor, TensorData};
use wgrad_benches::ParamSpec;

/// Parameters by rank.
#[derive(Module, Debug)]
pub(crate) struct Params {
    one: Vec<Param<Tensor<1>>>,
    two: Vec<Param<Tensor<2>>>,
    four: Vec<Param<Tensor<4>>>,
}

impl Params {
    pub(crate) fn new(specs: &[ParamSpec], device: &Device) -> Params {
        let mut all = Params { one: Vec::new(), two: Vec::new(), four: Vec::new() };
        for (i, spec) in specs.iter().enumerate() {
            let data = TensorData::new(spec.values(i), spec.dims.clone());
            match spec.dims.len() {
                1 => all.one.push(Param::from_data(data, device)),
                2 => all.two.push(Param::from_data(data, device)),
                _ => all.four.push(Param::from_data(data, device)),
            }
        }
        all
    }

    /// From the first on.
    pub(crate) fn next(&self) -> Next<'_> {
        Next { params: self, at: [0; 3] }
    }
}

/// Takes parameters in order.
pub(crate) struct Next<'a> {
    params: &'a Params,
    at: [usize; 3],
}

impl Next<'_> {
    pub(crate) fn one(&mut self) -> Tensor<1> {
        self.at[0] += 1;
        self.params.one[self.at[0] - 1].val()
    }

    pub(crate) fn two(&mut self) -> Tensor<2> {
        self.at[1] += 1;
        self.params.two[self.at[1] - 1].val()
    }

    pub(crate) fn four(&mut self) -> Tensor<4> {
        self.at[2] += 1;
        self.params.four[self.at[2] - 1].val()
    }
}
