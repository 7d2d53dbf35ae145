//! Recurrent state that is carried over passes: truncated back-propagation through time.

use wgrad::Result;
use wgrad::prelude::*;

use super::{close, plain, values, weights_close};
use crate::Subject;

crate::suite![plain: ; device: lstm];

const BATCH: usize = 3;
const WINDOW: usize = 4;
const INPUTS: usize = 2;
const HIDDEN: usize = 5;

/// A long short-term memory; its gates are input, forget, cell, output.
struct Lstm {
    gates: Linear,
}

impl Lstm {
    /// `[b, t, inputs]` and the state `[b, hidden]` give the outputs `[b, t, hidden]` and the next state.
    fn forward(&self, x: Tensor, h: Tensor, c: Tensor) -> (Tensor, Tensor, Tensor) {
        let (mut h, mut c, mut ys) = (h, c, Vec::new());
        for t in 0..x.shape()[1] {
            let xh = Tensor::cat(&[x.select_index(1, t as i32), h], -1);
            let gates = self.gates.forward(xh).chunk(-1, 4);
            c = gates[1].sigmoid() * c + gates[0].sigmoid() * gates[2].tanh();
            h = gates[3].sigmoid() * c.tanh();
            ys.push(h);
        }
        (Tensor::stack(&ys, 1), h, c)
    }
}

fn lstm(subject: &Subject) {
    run(subject).expect("the program runs");
}

fn run(subject: &Subject) -> Result<()> {
    let ctx = subject.context();
    let lstm = Lstm { gates: Linear::new(&ctx, "lstm", INPUTS + HIDDEN, 4 * HIDDEN, Rng::seed(1))? };
    let head = Linear::new(&ctx, "head", HIDDEN, 1, Rng::seed(1))?;
    let params: ParamSet = lstm.gates.params().into_iter().chain(head.params()).collect();
    let mut opt = Sgd::new(params.clone(), SgdConfig { lr: 0.2, ..Default::default() })?;
    let mut w = values(&params)?;
    let (mut state, mut want, mut losses) =
        ([vec![0.0; BATCH * HIDDEN], vec![0.0; BATCH * HIDDEN]], vec![], vec![]);

    let (h, c) = (Kept::zeros(&ctx, [BATCH, HIDDEN])?, Kept::zeros(&ctx, [BATCH, HIDDEN])?);
    for window in 0..6 {
        let (x, y) =
            (plain::noise(window, BATCH * WINDOW * INPUTS), plain::noise(100 + window, BATCH * WINDOW));
        let (inputs, targets) =
            (HostTensor::new([BATCH, WINDOW, INPUTS], &x)?, HostTensor::new([BATCH, WINDOW, 1], &y)?);

        let loss = ctx.pass(|p| {
            let (y, h1, c1) = lstm.forward(p.input(&inputs)?, h.t(), c.t());
            let loss = head.forward(y).mse(p.input(&targets)?);
            opt.step(&loss.backward()?)?;
            h.set(h1);
            c.set(c1);
            Ok(loss.deferred::<f64>())
        })?;

        losses.push(loss);
        want.push(step(&mut w, &mut state, &plain::wide(&x), &plain::wide(&y)));
    }
    let losses = losses.iter().map(Deferred::get).collect::<Result<Vec<f64>>>()?;
    close(subject, "losses", &losses, &want, 1e-5);
    close(subject, "h", &h.t().to_vec::<f64>()?, &state[0], 1e-4);
    close(subject, "c", &c.t().to_vec::<f64>()?, &state[1], 1e-4);
    weights_close(subject, &params, &w, 1e-4);
    Ok(())
}

/// One time step of the plain reimplementation: what its gradient needs.
struct Cell {
    xh: Vec<f64>,
    /// After their nonlinearities, `[b, 4 * hidden]`.
    gates: Vec<f64>,
    c_before: Vec<f64>,
    c: Vec<f64>,
    h: Vec<f64>,
}

/// One window: updates weights and state, gives the loss.
fn step(w: &mut plain::Weights, state: &mut [Vec<f64>; 2], x: &[f64], y: &[f64]) -> f64 {
    let (wide, n) = (INPUTS + HIDDEN, BATCH as f64 * WINDOW as f64);
    let mut cells: Vec<Cell> = Vec::new();
    let (mut loss, mut dys) = (0.0, Vec::new());
    for t in 0..WINDOW {
        let mut xh = Vec::new();
        for b in 0..BATCH {
            xh.extend(&x[(b * WINDOW + t) * INPUTS..][..INPUTS]);
            xh.extend(&state[0][b * HIDDEN..][..HIDDEN]);
        }
        let mut gates = plain::linear(&xh, &w[0], &w[1], [BATCH, wide]);
        for (i, g) in gates.iter_mut().enumerate() {
            *g = if i % (4 * HIDDEN) / HIDDEN == 2 { g.tanh() } else { plain::sigmoid(*g) };
        }
        let (mut c, mut h) = (vec![0.0; BATCH * HIDDEN], vec![0.0; BATCH * HIDDEN]);
        for b in 0..BATCH {
            for j in 0..HIDDEN {
                let gate = |k: usize| gates[b * 4 * HIDDEN + k * HIDDEN + j];
                let i = b * HIDDEN + j;
                c[i] = gate(1) * state[1][i] + gate(0) * gate(2);
                h[i] = gate(3) * c[i].tanh();
            }
        }
        let out = plain::linear(&h, &w[2], &w[3], [BATCH, HIDDEN]);
        let mut dy = vec![0.0; BATCH];
        for b in 0..BATCH {
            let away = out[b] - y[b * WINDOW + t];
            loss += away * away / n;
            dy[b] = 2.0 * away / n;
        }
        dys.push(dy);
        let c_before = std::mem::replace(&mut state[1], c.clone());
        state[0].clone_from(&h);
        cells.push(Cell { xh, gates, c_before, c, h });
    }
    let mut grads: plain::Weights = w.iter().map(|w| vec![0.0; w.len()]).collect();
    let (mut dh_next, mut dc_next) = (vec![0.0; BATCH * HIDDEN], vec![0.0; BATCH * HIDDEN]);
    for (cell, dy) in cells.iter().zip(&dys).rev() {
        let [mut dh, dw, db] = plain::linear_back(&cell.h, &w[2], dy, [BATCH, HIDDEN, 1]);
        plain::add_to(&mut grads[2], &dw);
        plain::add_to(&mut grads[3], &db);
        plain::add_to(&mut dh, &dh_next);
        let mut dgates = vec![0.0; BATCH * 4 * HIDDEN];
        for b in 0..BATCH {
            for j in 0..HIDDEN {
                let (i, at) = (b * HIDDEN + j, |k: usize| b * 4 * HIDDEN + k * HIDDEN + j);
                let [ig, fg, gg, og] = [0, 1, 2, 3].map(|k| cell.gates[at(k)]);
                let tc = cell.c[i].tanh();
                let dc = dc_next[i] + dh[i] * og * (1.0 - tc * tc);
                dgates[at(0)] = dc * gg * ig * (1.0 - ig);
                dgates[at(1)] = dc * cell.c_before[i] * fg * (1.0 - fg);
                dgates[at(2)] = dc * ig * (1.0 - gg * gg);
                dgates[at(3)] = dh[i] * tc * og * (1.0 - og);
                dc_next[i] = dc * fg;
            }
        }
        let [dxh, dw, db] = plain::linear_back(&cell.xh, &w[0], &dgates, [BATCH, wide, 4 * HIDDEN]);
        plain::add_to(&mut grads[0], &dw);
        plain::add_to(&mut grads[1], &db);
        for b in 0..BATCH {
            dh_next[b * HIDDEN..][..HIDDEN].copy_from_slice(&dxh[b * wide + INPUTS..][..HIDDEN]);
        }
    }
    for (w, g) in w.iter_mut().zip(&grads) {
        *w = plain::zip(w, g, |w, g| w - 0.2 * g);
    }
    loss
}
