//! The benchmarks' workloads on meganeura; answers `compare.py`.
//!
//! It has products, convolutions and normalisations of f32, no gradient without a model, attention over one sequence only.

use meganeura::{Graph, Mode, NodeId, Session, SessionConfig};
use wgrad_benches::{Fault, Input, Kind, Model, Peer, Row, serve};

/// A graph that is built, and what is read after its first run.
struct Open {
    session: Session,
    read: Read,
}

enum Read {
    /// The graph's first output, of so many elements.
    Output(usize),
    /// Gradients of these parameters, of so many elements.
    Gradients(Vec<(String, usize)>),
    /// The loss, and, if wanted, gradients too.
    Loss(Vec<(String, usize)>),
    /// The losses of the first three steps.
    Losses,
}

struct Meganeura(Option<Open>);

fn build(graph: &Graph, mode: Mode) -> Session {
    meganeura::build(graph, SessionConfig { mode, tune: true, ..SessionConfig::default() }).0
}

fn name(i: usize) -> String {
    format!("x{i}")
}

/// `one` in row `t` of class `t`.
fn one_hot(classes: &[i32], width: usize) -> Vec<f32> {
    let mut hot = vec![0.0; classes.len() * width];
    for (row, class) in classes.iter().enumerate() {
        hot[row * width + *class as usize] = 1.0;
    }
    hot
}

/// Declares operand `i`: as a parameter where its gradient is wanted.
fn declare(g: &mut Graph, inputs: &[Input], i: usize, learns: bool, flat: bool) -> NodeId {
    let dims = if flat { vec![inputs[i].elems()] } else { inputs[i].dims.clone() };
    match (inputs[i].kind, learns) {
        (Kind::I32, _) => g.input_u32(&name(i), &dims),
        (_, true) => g.parameter(&name(i), &dims),
        (_, false) => g.input(&name(i), &dims),
    }
}

fn kernel(row: &Row) -> Result<Open, Fault> {
    if row.inputs.iter().any(|i| i.kind == Kind::F16) {
        return Err("its values are f32".into());
    }
    let (inputs, op) = (&row.inputs, row.op.as_str());
    let learnt = match op {
        "softmax_backward" | "embedding_backward" | "cross_entropy" => 1,
        "conv2d_backward" => 2,
        "layer_norm_backward" => 3,
        _ => 0,
    };
    let mut g = Graph::new();
    let flat = op.starts_with("conv2d");
    let hot = op == "cross_entropy";
    let x: Vec<NodeId> = (0..inputs.len())
        .map(|i| match hot && i == 1 {
            true => g.input(&name(1), &inputs[0].dims),
            false => declare(&mut g, inputs, i, i < learnt, flat),
        })
        .collect();
    let conv = |g: &mut Graph, x: &[NodeId]| {
        let [n, c, h, w] = [0, 1, 2, 3].map(|a| inputs[0].dims[a] as u32);
        g.conv2d(x[0], x[1], n, c, h, w, inputs[1].dims[0] as u32, 3, 3, 1, 1)
    };
    let y = match op {
        "matmul" if inputs[0].dims.len() == 2 => g.matmul(x[0], x[1]),
        "softmax" | "softmax_backward" => g.softmax(x[0]),
        "layer_norm" | "layer_norm_backward" => g.layer_norm(x[0], x[1], x[2], 1e-5),
        "sum" => g.sum_all(x[0]),
        "sum_columns" => g.sum_inner(x[0]),
        "transpose" => {
            let twice = g.add(x[0], x[0]);
            g.transpose(twice)
        }
        "embedding" => g.embedding(x[1], x[0]),
        "embedding_backward" => g.embedding(x[1], x[0]),
        "conv2d" | "conv2d_backward" => conv(&mut g, &x),
        "cross_entropy" => g.cross_entropy_loss(x[0], x[1]),
        other => return Err(format!("{other} is not there").into()),
    };
    let elems = g.node(y).ty.num_elements();
    let output = match (learnt, hot) {
        (0, _) | (_, true) => y,
        _ => {
            let weighed = g.mul(y, x[x.len() - 1]);
            g.sum_all(weighed)
        }
    };
    g.set_outputs(vec![output]);
    let mut session = build(&g, if learnt > 0 { Mode::Training } else { Mode::Inference });
    for (i, input) in inputs.iter().enumerate() {
        match input.kind {
            Kind::I32 if hot => session.set_input(&name(i), &one_hot(&input.ids(i), inputs[0].dims[1])),
            Kind::I32 => {
                let ids: Vec<u32> = input.ids(i).into_iter().map(|i| i as u32).collect();
                session.set_input_u32(&name(i), &ids);
            }
            _ if i < learnt => session.set_parameter(&name(i), &input.floats(i)),
            _ => session.set_input(&name(i), &input.floats(i)),
        }
    }
    let gradients = (0..learnt).map(|i| (name(i), inputs[i].elems())).collect();
    let read = match (learnt, hot) {
        (0, _) => Read::Output(elems),
        (_, true) => Read::Loss(gradients),
        _ => Read::Gradients(gradients),
    };
    Ok(Open { session, read })
}

fn step(model: &Model) -> Result<Open, Fault> {
    let Model::Mlp { sizes, batch } = model else {
        return Err("batch norm that learns and attention over a batch are not there".into());
    };
    let mut g = Graph::new();
    let classes = sizes[sizes.len() - 1];
    let (mut x, labels) = (g.input("x", &[*batch, sizes[0]]), g.input("labels", &[*batch, classes]));
    for (i, w) in sizes.windows(2).enumerate() {
        let (weight, bias) = (g.parameter(&name(2 * i), w), g.parameter(&name(2 * i + 1), &w[1..]));
        let product = g.matmul(x, weight);
        x = g.bias_add(product, bias);
        x = if i + 2 < sizes.len() { g.relu(x) } else { x };
    }
    let loss = g.cross_entropy_loss(x, labels);
    g.set_outputs(vec![loss]);
    let mut session = build(&g, Mode::Training);
    for (i, spec) in model.params().iter().enumerate() {
        session.set_parameter(&name(i), &spec.values(i));
    }
    session.set_input("x", &model.floats());
    session.set_input("labels", &one_hot(&model.targets(), classes));
    session.set_weight_decay(0.01);
    session.set_adam(1e-3, 0.9, 0.999, 1e-8);
    Ok(Open { session, read: Read::Losses })
}

impl Open {
    fn once(&mut self) {
        self.session.step();
    }

    fn results(&mut self) -> Vec<Vec<f32>> {
        self.once();
        self.session.wait();
        let session = &mut self.session;
        let gradients = |session: &Session, all: &[(String, usize)]| -> Vec<Vec<f32>> {
            let gradient = |(name, elems): &(String, usize)| {
                let mut out = vec![0.0; *elems];
                session.read_param_grad(name, &mut out);
                out
            };
            all.iter().map(gradient).collect()
        };
        match &self.read {
            Read::Output(elems) => {
                let mut out = vec![0.0; *elems];
                session.read_output_by_index(0, &mut out);
                vec![out]
            }
            Read::Gradients(all) => gradients(&*session, all),
            Read::Loss(all) => std::iter::once(vec![session.read_loss()]).chain(gradients(&*session, all)).collect(),
            Read::Losses => {
                let mut losses = vec![session.read_loss()];
                for _ in 1..3 {
                    session.step();
                    session.wait();
                    losses.push(session.read_loss());
                }
                vec![losses]
            }
        }
    }
}

impl Peer for Meganeura {
    fn open(&mut self, row: &Row) -> Result<Vec<Vec<f32>>, Fault> {
        self.close();
        let mut open = match &row.model {
            Some(model) => step(model)?,
            None => kernel(row)?,
        };
        let results = open.results();
        self.0 = Some(open);
        Ok(results)
    }

    fn run(&mut self, times: usize) -> Result<usize, Fault> {
        let open = self.0.as_mut().ok_or("no workload is open")?;
        for _ in 0..times {
            open.once();
        }
        open.session.wait();
        Ok(times)
    }

    fn close(&mut self) {
        self.0 = None;
    }
}

fn main() -> Result<(), Fault> {
    let gpu = meganeura::init_gpu_context().map_err(|e| format!("{e:?}"))?;
    let device = gpu.device_information().device_name.clone();
    drop(gpu);
    Ok(serve("meganeura 0.3.0", &device, &mut Meganeura(None))?)
}
