//! Recurrent layers: long short-term memory and gated recurrent units.
//!
//! Weights lie as in [`Linear`](crate::Linear): `[inputs, outputs]`; names are PyTorch's.

use wgrad_autograd::{Context, Param, Tensor};
use wgrad_graph::{Result, Shape};

use crate::{Init, Mode, Module, ParamSet, Rng};

/// Weights of one layer in one direction.
#[derive(Clone, Debug)]
struct Gates {
    /// `[inputs, gates * hidden]` and `[hidden, gates * hidden]`.
    weights: [Param; 2],
    /// `[gates * hidden]` each.
    biases: [Param; 2],
    hidden: usize,
}

impl Gates {
    /// Uniform in `(-a, a)` with `a = 1 / sqrt(hidden)`, all of them.
    fn new(
        ctx: &Context,
        names: [String; 4],
        inputs: usize,
        hidden: usize,
        gates: usize,
        rng: Rng,
    ) -> Result<Gates> {
        let init = Init::Uniform(1.0 / (hidden.max(1) as f64).sqrt());
        let wide = gates * hidden;
        let make = |name: &str, shape: Shape| Param::new(ctx, name, init.draw(rng.at(name), shape, 1, 1));
        let [weight_ih, weight_hh, bias_ih, bias_hh] = names;
        Ok(Gates {
            weights: [
                make(&weight_ih, Shape::from([inputs, wide]))?,
                make(&weight_hh, Shape::from([hidden, wide]))?,
            ],
            biases: [make(&bias_ih, Shape::from([wide]))?, make(&bias_hh, Shape::from([wide]))?],
            hidden,
        })
    }

    fn params(&self) -> impl Iterator<Item = Param> {
        self.weights.clone().into_iter().chain(self.biases.clone())
    }

    /// What the input gives to the gates.
    #[track_caller]
    fn of_input(&self, x: Tensor) -> Tensor {
        self.biases[0].t().addmm(x, self.weights[0].t())
    }

    /// What the state gives to the gates.
    #[track_caller]
    fn of_state(&self, h: Tensor) -> Tensor {
        self.biases[1].t().addmm(h, self.weights[1].t())
    }

    /// The gates, one by one.
    #[track_caller]
    fn gates<const N: usize>(&self, all: Tensor) -> [Tensor; N] {
        let mut gates = [all; N];
        for (i, gate) in gates.iter_mut().enumerate() {
            *gate = all.narrow(-1, i * self.hidden, self.hidden);
        }
        gates
    }

    /// The next state of a long short-term memory.
    #[track_caller]
    fn lstm(&self, of_input: Tensor, [h, c]: [Tensor; 2]) -> [Tensor; 2] {
        let all = of_input + self.of_state(h);
        let [i, f, g, o] = self.gates(all);
        let c = f.sigmoid() * c + i.sigmoid() * g.tanh();
        [o.sigmoid() * c.tanh(), c]
    }

    /// The next state of a gated recurrent unit: the reset acts on what the state gives, its bias included.
    #[track_caller]
    fn gru(&self, of_input: Tensor, h: Tensor) -> Tensor {
        let ([xr, xz, xn], [hr, hz, hn]) = (self.gates(of_input), self.gates(self.of_state(h)));
        let (reset, update) = ((xr + hr).sigmoid(), (xz + hz).sigmoid());
        let new = (xn + reset * hn).tanh();
        new + update * (h - new)
    }
}

fn cell_names(name: &str) -> [String; 4] {
    ["weight_ih", "weight_hh", "bias_ih", "bias_hh"].map(|part| format!("{name}.{part}"))
}

fn layer_names(name: &str, layer: usize, reverse: bool) -> [String; 4] {
    let end = if reverse { "_reverse" } else { "" };
    ["weight_ih", "weight_hh", "bias_ih", "bias_hh"].map(|part| format!("{name}.{part}_l{layer}{end}"))
}

/// One step of a long short-term memory (Hochreiter and Schmidhuber 1997, with a forget gate):
/// `i, f, g, o = x W + h U + b`, `c' = sigmoid(f) c + sigmoid(i) tanh(g)`, `h' = sigmoid(o) tanh(c')`.
///
/// Shape: inputs `[N, inputs]`, states `[N, hidden]`; gates lie in the order `i, f, g, o`.
#[derive(Clone, Debug)]
pub struct LstmCell(Gates);

impl LstmCell {
    /// Weights and biases uniform up to `1 / sqrt(hidden)`, called `NAME.weight_ih`, `NAME.weight_hh`,
    /// `NAME.bias_ih` and `NAME.bias_hh`.
    ///
    /// # Errors
    /// What the device meets when the parameters are written.
    pub fn new(ctx: &Context, name: &str, inputs: usize, hidden: usize, rng: Rng) -> Result<LstmCell> {
        Ok(LstmCell(Gates::new(ctx, cell_names(name), inputs, hidden, 4, rng)?))
    }

    /// The next `[h, c]`.
    #[track_caller]
    pub fn step(&self, x: Tensor, state: [Tensor; 2]) -> [Tensor; 2] {
        self.0.lstm(self.0.of_input(x), state)
    }

    /// The parameters, in order of creation.
    pub fn params(&self) -> ParamSet {
        self.0.params().collect()
    }
}

/// One step of a gated recurrent unit (Cho et al. 2014, with the reset after the product):
/// `r, z = sigmoid(x W + b + h U + d)`, `n = tanh(x W + b + r (h U + d))`, `h' = (1 - z) n + z h`.
///
/// Shape: inputs `[N, inputs]`, states `[N, hidden]`; gates lie in the order `r, z, n`.
#[derive(Clone, Debug)]
pub struct GruCell(Gates);

impl GruCell {
    /// Weights and biases uniform up to `1 / sqrt(hidden)`, called `NAME.weight_ih`, `NAME.weight_hh`,
    /// `NAME.bias_ih` and `NAME.bias_hh`.
    ///
    /// # Errors
    /// What the device meets when the parameters are written.
    pub fn new(ctx: &Context, name: &str, inputs: usize, hidden: usize, rng: Rng) -> Result<GruCell> {
        Ok(GruCell(Gates::new(ctx, cell_names(name), inputs, hidden, 3, rng)?))
    }

    /// The next `h`.
    #[track_caller]
    pub fn step(&self, x: Tensor, h: Tensor) -> Tensor {
        self.0.gru(self.0.of_input(x), h)
    }

    /// The parameters, in order of creation.
    pub fn params(&self) -> ParamSet {
        self.0.params().collect()
    }
}

/// Layers of one kind, each with one direction or two.
#[derive(Clone, Debug)]
struct Stack {
    name: String,
    /// Layer by layer, forwards first.
    layers: Vec<Gates>,
    directions: usize,
    hidden: usize,
    dropout: f64,
    mode: Mode,
}

/// How many layers a recurrent module has, and of what kind.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Recurrent {
    /// Layers one above the other.
    pub layers: usize,
    /// Whether each layer also reads the sequence backwards; its outputs lie behind the others.
    pub bidirectional: bool,
    /// Dropout between layers, in [`Mode::Train`].
    pub dropout: f64,
}

impl Default for Recurrent {
    fn default() -> Recurrent {
        Recurrent { layers: 1, bidirectional: false, dropout: 0.0 }
    }
}

impl Stack {
    fn new(
        ctx: &Context,
        name: &str,
        [inputs, hidden, gates]: [usize; 3],
        options: Recurrent,
        rng: Rng,
    ) -> Result<Stack> {
        let Recurrent { layers: count, bidirectional, dropout } = options;
        if count == 0 || !(0.0..1.0).contains(&dropout) {
            wgrad_graph::bail!(
                Argument,
                name,
                "{count} layers with dropout {dropout}: 1 at least, in [0, 1)"
            );
        }
        let directions = 1 + usize::from(bidirectional);
        let mut layers = Vec::new();
        for layer in 0..count {
            let inputs = if layer == 0 { inputs } else { directions * hidden };
            for reverse in [false, true].into_iter().take(directions) {
                let names = layer_names(name, layer, reverse);
                layers.push(Gates::new(ctx, names, inputs, hidden, gates, rng)?);
            }
        }
        Ok(Stack { name: name.to_owned(), layers, directions, hidden, dropout, mode: Mode::Train })
    }

    /// A state of zeros for `n` sequences.
    #[track_caller]
    fn zeros(&self, gates: &Gates, n: usize) -> Tensor {
        gates.biases[0].t().narrow(0, 0, self.hidden).zeros_like().expand([n, self.hidden])
    }

    /// Runs all layers over `[N, T, inputs]`. `state` is the state of each layer and direction, whose first
    /// part is the output; `step` makes the next from what the input gives and the state before.
    #[track_caller]
    fn run<const S: usize>(
        &self,
        x: Tensor,
        state: Option<[Tensor; S]>,
        step: fn(&Gates, Tensor, [Tensor; S]) -> [Tensor; S],
    ) -> (Tensor, [Tensor; S]) {
        let shape = x.shape();
        assert!(shape.rank() == 3, "{}: {shape} is not [N, T, inputs]", self.name);
        let (n, steps) = (shape[0], shape[1]);
        let mut x = x;
        let mut last: [Vec<Tensor>; S] = [const { Vec::new() }; S];
        for (layer, both) in self.layers.chunks(self.directions).enumerate() {
            let mut sides = Vec::new();
            for (side, gates) in both.iter().enumerate() {
                let of_input = gates.of_input(x);
                let at = (layer * self.directions + side) as i32;
                let mut now = [self.zeros(gates, n); S];
                if let Some(state) = &state {
                    for (now, state) in now.iter_mut().zip(state) {
                        *now = state.select_index(0, at);
                    }
                }
                let mut out = Vec::with_capacity(steps);
                for i in 0..steps {
                    let t = if side == 1 { steps - 1 - i } else { i };
                    now = step(gates, of_input.select_index(1, t as i32), now);
                    out.push(now[0]);
                }
                if side == 1 {
                    out.reverse();
                }
                if steps == 0 {
                    sides.push(of_input.narrow(-1, 0, self.hidden));
                } else {
                    sides.push(Tensor::stack(&out, 1));
                }
                for (last, now) in last.iter_mut().zip(now) {
                    last.push(now);
                }
            }
            x = Tensor::cat(&sides, -1);
            let above = (layer + 1) * self.directions < self.layers.len();
            if above && self.dropout > 0.0 && self.mode == Mode::Train {
                x = x.dropout(&self.name, self.dropout);
            }
        }
        let mut ends = [x; S];
        for (end, last) in ends.iter_mut().zip(&last) {
            *end = Tensor::stack(last, 0);
        }
        (x, ends)
    }
}

macro_rules! recurrent {
    ($(#[$doc:meta])* $name:ident, $gates:literal, $parts:literal, $step:expr, $state:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name(Stack);

        impl $name {
            /// One layer that reads forwards. Weights and biases are uniform up to `1 / sqrt(hidden)`, called
            /// `NAME.weight_ih_l0`, `NAME.weight_hh_l0`, `NAME.bias_ih_l0` and `NAME.bias_hh_l0`.
            ///
            /// # Errors
            /// What the device meets when the parameters are written.
            pub fn new(ctx: &Context, name: &str, inputs: usize, hidden: usize, rng: Rng) -> Result<Self> {
                Self::with(ctx, name, inputs, hidden, Recurrent::default(), rng)
            }

            /// Layers as `options` says; those that read backwards are called `NAME.weight_ih_l0_reverse`
            /// and so on.
            ///
            /// # Errors
            /// `Argument` for no layer or a dropout outside `[0, 1)`; what the device meets when the
            /// parameters are written.
            pub fn with(
                ctx: &Context,
                name: &str,
                inputs: usize,
                hidden: usize,
                options: Recurrent,
                rng: Rng,
            ) -> Result<Self> {
                Ok(Self(Stack::new(ctx, name, [inputs, hidden, $gates], options, rng)?))
            }

            #[doc = concat!("Outputs of the last layer, and the last ", $state, " of every layer.")]
            ///
            /// Shape: `[N, T, inputs]` gives `[N, T, D * hidden]`; states are `[layers * D, N, hidden]`,
            /// zeros where none is given; `D` is 2 for layers of both directions, else 1.
            ///
            /// # Panics
            /// When shapes do not fit.
            #[track_caller]
            pub fn run(&self, x: Tensor, state: Option<[Tensor; $parts]>) -> (Tensor, [Tensor; $parts]) {
                self.0.run(x, state, $step)
            }
        }

        impl Module for $name {
            #[track_caller]
            fn forward(&self, x: Tensor) -> Tensor {
                self.run(x, None).0
            }

            fn params(&self) -> ParamSet {
                self.0.layers.iter().flat_map(Gates::params).collect()
            }

            fn set_mode(&mut self, mode: Mode) {
                self.0.mode = mode;
            }
        }
    };
}

recurrent! {
    /// Layers of long short-term memory; each step as in [`LstmCell`].
    Lstm, 4, 2, Gates::lstm, "`[h, c]`"
}

recurrent! {
    /// Layers of gated recurrent units; each step as in [`GruCell`].
    Gru, 3, 1, |gates, x, [h]| [gates.gru(x, h)], "`[h]`"
}
