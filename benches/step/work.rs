//! The workloads.

use serde_json::json;
use wgrad_benches::{Model, Row};

use crate::peaks::Set;

/// A training step that is timed.
#[derive(Clone)]
pub(crate) struct Work {
    pub(crate) name: String,
    pub(crate) model: Model,
    /// A smaller model of the same kind, which is compared with the oracle instead where this one is too large.
    pub(crate) relative: Option<Model>,
}

impl Work {
    /// It as a line of JSON, with what programs that do not know the models have to know.
    pub(crate) fn listed(&self) -> String {
        let mut line = serde_json::to_value(self.row()).expect("numbers and texts are JSON");
        line["params"] = json!(self.model.params());
        line["batch"] = json!(self.model.input());
        line["labels"] = json!(self.model.labels());
        line["optim"] = json!(self.model.optim());
        line.to_string()
    }

    /// It as data, for peers.
    pub(crate) fn row(&self) -> Row {
        Row {
            name: self.name.clone(),
            op: "step".to_owned(),
            inputs: Vec::new(),
            tolerance: tolerance(&self.model),
            model: Some(self.model.clone()),
        }
    }
}

/// How far a loss may be from the oracle's, relative to it.
pub(crate) fn tolerance(model: &Model) -> f64 {
    match model {
        Model::Gpt { mixed: true, .. } => 2e-2,
        _ => 1e-4,
    }
}

pub(crate) fn mlp(sizes: &[usize], batch: usize) -> Work {
    let text: Vec<String> = sizes.iter().map(usize::to_string).collect();
    let same = sizes.windows(2).all(|w| w[0] == w[1]);
    let text = if same { format!("{}x{}", sizes.len() - 1, sizes[0]) } else { text.join("-") };
    Work {
        name: format!("mlp {text} b{batch}"),
        model: Model::Mlp { sizes: sizes.to_vec(), batch },
        relative: None,
    }
}

fn resnet(batch: usize) -> Work {
    let relative = (batch > 2).then_some(Model::ResNet18 { batch: 2 });
    Work { name: format!("resnet18 cifar b{batch}"), model: Model::ResNet18 { batch }, relative }
}

pub(crate) fn gpt([layers, width, heads, tokens, vocabulary, batch]: [usize; 6], mixed: bool) -> Work {
    let model = Model::Gpt { layers, width, heads, tokens, vocabulary, batch, mixed };
    let small = Model::Gpt { layers: 2, width: 48, heads: 3, tokens: 33, vocabulary: 101, batch: 3, mixed };
    let dtype = if mixed { "mixed" } else { "f32" };
    Work {
        name: format!("gpt {dtype} {layers} layers d{width} T{tokens} v{vocabulary} b{batch}"),
        relative: (model.flops() > 1e11).then_some(small),
        model,
    }
}

/// Workloads of a set.
pub(crate) fn all(set: Set) -> Vec<Work> {
    let mut all = vec![mlp(&[784, 512, 512, 10], 128), mlp(&[1024; 5], 256)];
    let sizes = match set {
        Set::Large => [12, 768, 12, 1024, 32000, 8],
        Set::Small => [2, 128, 4, 64, 256, 8],
    };
    all.push(resnet(if set == Set::Large { 128 } else { 4 }));
    all.extend([false, true].map(|mixed| gpt(sizes, mixed)));
    all
}
