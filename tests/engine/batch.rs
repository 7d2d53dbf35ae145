//! The update of many parameters: a few dispatches, and the numbers of one by one.

use wgrad::nn::{AdamW, AdamWConfig, Optimizer};
use wgrad_autograd::{Context, ContextOptions, HostTensor, Kept, Param, Tensor};

use crate::{Subject, devices};

crate::suite![plain: ; device: update_of_many];

/// Sizes of the parameters: small and odd ones, and some that four elements at a time suit.
const SIZES: [usize; 14] = [2, 3, 10, 64, 100, 257, 1000, 3, 7, 16384, 20000, 32768, 5, 16385];

struct Model {
    ctx: Context,
    params: Vec<Param>,
    /// The gradients.
    slopes: Vec<Kept>,
    opt: AdamW,
}

impl Model {
    fn new(ctx: Context) -> Model {
        let data = |n: usize, seed: usize| {
            let data: Vec<f32> = (0..n).map(|j| ((j * 7 + seed * 3) % 19) as f32 / 19.0 - 0.5).collect();
            HostTensor::new([n], &data).unwrap()
        };
        let sizes = || SIZES.iter().copied().enumerate();
        let param = |(i, n)| Param::new(&ctx, &format!("p{i}"), data(n, i)).unwrap();
        let params: Vec<Param> = sizes().map(param).collect();
        let slopes = sizes().map(|(i, n)| Kept::new(&ctx, data(n, i + 5)).unwrap()).collect();
        let opt = AdamW::new(params.iter().cloned().collect(), AdamWConfig::default()).unwrap();
        Model { ctx, params, slopes, opt }
    }

    /// A step whose gradients are there already.
    fn step(&mut self) {
        let Model { ctx, params, slopes, opt } = self;
        ctx.pass(|_| {
            let losses = params.iter().zip(slopes).map(|(p, slope)| (p.t() * slope.t()).sum(..));
            opt.step(&losses.reduce(|a: Tensor, b| a + b).unwrap().backward()?)?;
            Ok(())
        })
        .unwrap();
    }

    fn values(&self) -> Vec<Vec<f64>> {
        self.params.iter().map(|p| p.t().to_vec::<f64>().unwrap()).collect()
    }
}

fn update_of_many(subject: &Subject) {
    let mut want = Model::new(devices::oracle());
    let mut model = Model::new(Context::new(subject.fresh()).unwrap());
    let mut alone = Model::new(subject.context_with(ContextOptions::default().fuse(false)));
    for _ in 0..3 {
        want.step();
        model.step();
        alone.step();
    }
    for ((w, a), b) in want.values().iter().zip(model.values()).zip(alone.values()) {
        for ((w, a), b) in w.iter().zip(a).zip(b) {
            assert!((w - a).abs() < 1e-5 && (w - b).abs() < 1e-5, "{w} is {a}, unfused {b}");
        }
    }
    if subject.is_vulkan() {
        let before = model.ctx.stats().dispatches;
        model.step();
        let dispatches = model.ctx.stats().dispatches - before;
        // Long and short parameters have a kernel each, and run once for each set of pages they lie in.
        let plan = model.ctx.last_plan().unwrap();
        assert!(dispatches <= 6, "{dispatches} dispatches update {} parameters:\n{plan}", SIZES.len());
    }
}
