//! Whether the units for matrices that an adapter promises multiply right.

pub(crate) mod attention;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use wgrad_graph::{
    Args, Backend, BufferId, Caps, DType, Fast, Graph, LeafArg, LeafKind, Node, Op, Options, Out, Plan,
    Result, Root, Shape, Val, bail, plan,
};

use crate::adapter::AdapterInfo;
use crate::beside::{beside, both};
use crate::choose::{self, Product};
use crate::faults::lock;
use crate::gpu::Gpu;
use crate::launch::{Lowered, On, Trusted};
use crate::{emit, prepare};

/// How long the test may take.
const LONG: Duration = Duration::from_secs(60);

/// Largest error of a split product, relative to the sum of the sizes of its terms: an eighth of what a plain
/// one may have at worst for K of 300.
const CLOSE: f64 = 2e-6;

/// Whether the adapter says that it multiplies 16 by 16 f16 into f32, from subgroups of a known size.
pub(crate) fn promised(adapter: &wgpu::Adapter) -> bool {
    let wanted = wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX | wgpu::Features::SHADER_F16;
    let fits = |p: &wgpu::wgt::CooperativeMatrixProperties| {
        let sizes = [p.m_size, p.n_size, p.k_size];
        sizes == [16; 3]
            && p.ab_type == wgpu::wgt::CooperativeScalarType::F16
            && p.cr_type == wgpu::wgt::CooperativeScalarType::F32
            && !p.saturating_accumulation
    };
    adapter.features().contains(wanted) && adapter.cooperative_matrix_properties().iter().any(fits)
}

/// The paths on units.
pub(crate) const PATHS: [Fast; 4] =
    [Fast::CooperativeMatmul, Fast::SplitMatmul, Fast::CooperativeAttention, Fast::SplitAttention];

/// What launches rely on.
pub(crate) fn trusted(lowered: &[Lowered]) -> Vec<Trusted> {
    let mut all = Vec::new();
    for launch in lowered.iter().flat_map(|step| &step.launches) {
        match launch.on {
            On::Units(one) if !all.contains(&one) => all.push(one),
            _ => {}
        }
    }
    all
}

/// The paths of `all` on units for matrices that give wrong numbers on this adapter, or fail. Each is tried once a process
/// for each adapter, when a plan first wants it, since drivers take a second for each of its kernels, and beside others;
/// on a device of its own: a device that is lost here is lost to nobody.
pub(crate) fn refused(adapter: &AdapterInfo, caps: &Caps, all: &[Trusted]) -> Vec<Fast> {
    static TRIED: Mutex<Option<HashMap<(String, Trusted), bool>>> = Mutex::new(None);
    // Most plans want none, and do not wait for a trial of another's.
    if all.is_empty() {
        return Vec::new();
    }
    let name = format!("{}\n{}\n{}", adapter.name, adapter.driver, adapter.pci);
    let mut tried = lock(&TRIED);
    let tried = tried.get_or_insert_default();
    let wrong = |one: Trusted| {
        let path = one.path;
        let what = format!("_{path}{}", if one.windows { "_windows" } else { "" });
        match Gpu::untested(adapter, caps.clone(), &what).and_then(|gpu| fault(&gpu, one)) {
            Ok(None) => return false,
            Ok(Some(why)) => tracing::warn!(adapter = adapter.name, %path, why, "wrong; not used"),
            Err(error) => tracing::warn!(adapter = adapter.name, %path, %error, "fails; not used"),
        }
        true
    };
    let key = |one: &Trusted| (name.clone(), *one);
    let new: Vec<Trusted> = all.iter().filter(|one| !tried.contains_key(&key(one))).copied().collect();
    tried.extend(new.iter().map(key).zip(beside(&new, |one| wrong(*one))));
    all.iter().filter(|one| tried[&key(one)]).map(|one| one.path).collect()
}

/// What `make` gives if no path is `refused`, else what `again` gives without those. Compiling does no harm and takes longer
/// than to find out what may be run, so that the one does not wait for the other.
pub(crate) fn proven<T>(
    make: impl FnOnce() -> Result<T>,
    refused: impl FnOnce() -> Vec<Fast> + Send,
    again: impl FnOnce(Vec<Fast>) -> Result<T>,
) -> Result<T> {
    let (refused, made) = both(refused, make);
    if refused.is_empty() {
        return made;
    }
    drop(made);
    again(refused)
}

/// The first failure or fault.
fn first(found: Vec<Result<Option<String>>>) -> Result<Option<String>> {
    found.into_iter().find_map(Result::transpose).transpose()
}

/// What is wrong with the products of a path, on any tiling that it has, or over windows, or with its attention.
pub(crate) fn fault(gpu: &Gpu, Trusted { path, windows }: Trusted) -> Result<Option<String>> {
    if matches!(path, Fast::CooperativeAttention | Fast::SplitAttention) {
        return attention::fault(gpu, path);
    }
    let split = path == Fast::SplitMatmul;
    let products = if split { choose::split_products(gpu.caps()) } else { choose::half_products() };
    let dtype = if split { DType::F32 } else { DType::F16 };
    let mut trials = Vec::new();
    if windows {
        // What a convolution multiplies, and its weight's gradient.
        let last = products.last().map(|product| choose::in_parts(*product, 2));
        let forms = [false, true].map(|turned| Trial::of_windows(IMAGES, 70, turned, dtype));
        trials.extend(last.into_iter().flat_map(|product| forms.clone().map(|trial| (product, trial))));
    }
    for (i, product) in products.iter().copied().enumerate().filter(|_| !windows) {
        // Between them the tilings meet both ways in which either factor may lie, edges in every direction, a
        // batch, and factors whose neighbours are no vectors.
        let layouts: &[[bool; 2]] = if i == 0 { &[[false, false], [true, true]] } else { &[[false, true]] };
        // Parts of K too.
        let product = if i == 0 { product } else { choose::in_parts(product, 3) };
        for turned in layouts {
            let odd = i == 0 && turned[0];
            let sizes = if odd { [2, 70, 133, 301] } else { [2, 140, 132, 300] };
            trials.push((product, Trial { sizes, turned: *turned, windows: None, dtype }));
        }
    }
    let wrong = |(product, trial): &(Product, Trial)| {
        let run = |factors: [&[u8]; 2]| trial.run(gpu, *product, factors);
        let wrong = if split { trial.off(run)? } else { trial.inexact(run)? };
        Ok(wrong.map(|what| format!("{what}, by {product:?}, {trial:?}")))
    };
    first(beside(&trials, wrong))
}

/// A buffer that holds NaN, for results: in memory that was used before, those of another trial may be left, and look
/// right where nothing was written.
fn unwritten(gpu: &Gpu, bytes: usize) -> Result<BufferId> {
    let buffer = gpu.alloc(bytes)?;
    gpu.write(buffer, &vec![0xff; bytes])?;
    Ok(buffer)
}

/// Sizes of the windows of trials.
const WINDOW: [usize; 2] = [3, 3];
/// Images with their channels last, whose windows' places end within a step of a product along K.
const IMAGES: [usize; 4] = [2, 9, 10, 12];

/// How many windows there are on each axis of images.
fn places(images: [usize; 4]) -> [usize; 2] {
    [images[1] + 1 - WINDOW[0], images[2] + 1 - WINDOW[1]]
}

/// A product to try.
#[derive(Clone, Debug)]
pub(crate) struct Trial {
    /// Batch, M, N, K.
    pub(crate) sizes: [usize; 4],
    /// Whether each factor lies transposed.
    pub(crate) turned: [bool; 2],
    /// The images over which the right factor is windows: what they hold by places, or turned.
    pub(crate) windows: Option<[usize; 4]>,
    /// How the factors lie in memory.
    pub(crate) dtype: DType,
}

/// Numbers that look random.
fn noise(n: usize, seed: u32) -> impl Iterator<Item = u32> {
    (0..n as u32).map(move |i| {
        let x = (i ^ seed.wrapping_mul(0x9e37_79b9)).wrapping_mul(0x85eb_ca6b);
        let x = (x ^ (x >> 13)).wrapping_mul(0xc2b2_ae35);
        x ^ (x >> 16)
    })
}

impl Trial {
    /// A product of `m` rows with windows, or with their places along K.
    pub(crate) fn of_windows(images: [usize; 4], m: usize, turned: bool, dtype: DType) -> Trial {
        let held = WINDOW[0] * WINDOW[1] * images[3];
        let places = images[0] * places(images).iter().product::<usize>();
        let [n, k] = if turned { [held, places] } else { [places, held] };
        Trial { sizes: [1, m, n, k], turned: [false, turned], windows: Some(images), dtype }
    }

    /// Windows over `images` as a factor: `[held, places]`, or turned.
    fn windowed(&self, graph: &mut Graph, images: Val) -> Result<Val> {
        let window =
            |axis: u8| Op::Windows { axis, size: WINDOW[usize::from(axis) - 1] as u32, step: 1, dilation: 1 };
        let rows = graph.add(window(1), &[images], None, None)?;
        let all = graph.add(window(2), &[rows], None, None)?;
        // [n, h, w, c, kh, kw]: what a window holds ends with channels.
        let (held, places) = ([4, 5, 3], [0, 1, 2]);
        let order = if self.turned[1] { [places, held] } else { [held, places] }.concat();
        let mut perm = wgrad_graph::Perm::default();
        perm[..6].copy_from_slice(&order);
        let moved = graph.add(Op::Permute(perm), &[all], None, None)?;
        let [batch, _, n, k] = self.sizes;
        graph.add(Op::Reshape, &[moved], Some(Shape::from(&[batch, k, n][..])), None)
    }

    /// The plan of the product, its factors as leaves 0 and 1.
    pub(crate) fn plan(&self, caps: &Caps) -> Result<Arc<Plan>> {
        let [batch, m, n, k] = self.sizes;
        let mut graph = Graph::default();
        let mut leaves = Vec::new();
        let mut factor =
            |rows: usize, columns: usize, turned: bool, windows: Option<[usize; 4]>| -> Result<Val> {
                let dims = if turned { [batch, columns, rows] } else { [batch, rows, columns] };
                let dims = windows.as_ref().map_or(&dims[..], |images| images);
                let mut val = Val::of(graph.push(Node {
                    op: Op::Input,
                    inputs: Vec::new().into(),
                    outs: [Out { shape: Shape::from(dims), dtype: self.dtype }].into(),
                    after: Vec::new().into(),
                    segment: 0,
                    at: None,
                }));
                leaves.push((val.node, LeafKind::Buffer));
                if windows.is_some() {
                    val = self.windowed(&mut graph, val)?;
                } else if turned {
                    let mut perm = wgrad_graph::Perm::default();
                    perm[..3].copy_from_slice(&[0, 2, 1]);
                    val = graph.add(Op::Permute(perm), &[val], None, None)?;
                }
                if self.dtype == DType::F32 {
                    return Ok(val);
                }
                graph.add(Op::Cast, &[val], None, Some(DType::F32))
            };
        let (a, b) = (factor(m, k, self.turned[0], None)?, factor(k, n, self.turned[1], self.windows)?);
        let y = graph.add(Op::MatMul, &[a, b], None, None)?;
        let options = Options { fuse: true, keep: false };
        let plan = plan(&Arc::new(graph), &[Root { val: y, into: None }], &leaves, &options, caps)?;
        Ok(Arc::new(plan))
    }

    /// The product by one kernel, of factors as they lie in memory.
    pub(crate) fn run(&self, gpu: &Gpu, product: Product, factors: [&[u8]; 2]) -> Result<Vec<f32>> {
        self.run_as(gpu, product, factors, |_| ())
    }

    /// The same by launches that `edit` changes.
    pub(crate) fn run_as(
        &self,
        gpu: &Gpu,
        product: Product,
        factors: [&[u8]; 2],
        edit: impl Fn(&mut Lowered),
    ) -> Result<Vec<f32>> {
        let [batch, m, n, _] = self.sizes;
        let plan = self.plan(gpu.caps())?;
        let [step] = &plan.steps[..] else {
            bail!(Kernel, "matmul", "a product is {} kernels", plan.steps.len());
        };
        let mut lowered: Lowered = emit::multiply(step, &plan.graph, gpu.caps(), product)?;
        edit(&mut lowered);
        let ready: Arc<dyn wgrad_graph::Prepared> =
            Arc::new(prepare::prepare(gpu.core(), &plan, vec![lowered])?);
        let mut buffers: Vec<BufferId> = Vec::new();
        for bytes in factors {
            let buffer = gpu.alloc(bytes.len())?;
            gpu.write(buffer, bytes)?;
            buffers.push(buffer);
        }
        let bytes = 4 * batch * m * n;
        let out = unwritten(gpu, bytes)?;
        let leaves = [LeafArg::Buffer(buffers[0]), LeafArg::Buffer(buffers[1])];
        gpu.submit(&ready, Args { leaves: &leaves, scalars: &[], outputs: &[out], watch: None })?;
        let read = gpu.read(&[(out, bytes)])?.wait(LONG)?;
        let made = read.first().map(|bytes| bytemuck::pod_collect_to_vec(bytes)).unwrap_or_default();
        buffers.into_iter().chain([out]).for_each(|buffer| gpu.free(buffer));
        Ok(made)
    }

    /// Places in memory of element (`row`, `column`) of factor `side`.
    fn at(&self, side: usize, z: usize, row: usize, column: usize) -> usize {
        let [_, m, n, k] = self.sizes;
        let (rows, columns) = if side == 0 { (m, k) } else { (k, n) };
        if let (1, Some(images)) = (side, self.windows) {
            let (held, place) = if self.turned[1] { (column, row) } else { (row, column) };
            let ([_, high, wide, channels], [down, across]) = (images, places(images));
            let (tap, image) = (held / channels, place / (down * across));
            let y = place / across % down + tap / WINDOW[1];
            let x = place % across + tap % WINDOW[1];
            return ((image * high + y) * wide + x) * channels + held % channels;
        }
        let within = if self.turned[side] { column * rows + row } else { row * columns + column };
        z * rows * columns + within
    }

    /// The product in f64, and the sums of the sizes of its terms.
    pub(crate) fn by_hand(&self, a: &[f64], b: &[f64]) -> Vec<(f64, f64)> {
        let [batch, m, n, k] = self.sizes;
        let mut all = vec![(0.0, 0.0); batch * m * n];
        for z in 0..batch {
            for i in 0..m {
                let row = &mut all[(z * m + i) * n..][..n];
                for l in 0..k {
                    let x = a[self.at(0, z, i, l)];
                    for (j, (sum, size)) in row.iter_mut().enumerate() {
                        let term = x * b[self.at(1, z, l, j)];
                        *sum += term;
                        *size += term.abs();
                    }
                }
            }
        }
        all
    }

    fn elems(&self, side: usize) -> usize {
        let [batch, m, n, k] = self.sizes;
        match (side, self.windows) {
            (1, Some(images)) => images.iter().product(),
            _ => batch * k * if side == 0 { m } else { n },
        }
    }

    /// What is wrong where products of small integers, computed by `run`, are not exact.
    pub(crate) fn inexact(&self, run: impl Fn([&[u8]; 2]) -> Result<Vec<f32>>) -> Result<Option<String>> {
        // f16 holds -8 to 8 exactly; with 0, its sign and a fraction.
        let number = |x: u32| (x % 17) as f64 - 8.0 + if x & 0x1000 == 0 { 0.25 } else { 0.0 };
        let sides =
            [0, 1].map(|side| noise(self.elems(side), 1 + side as u32).map(number).collect::<Vec<f64>>());
        let bytes = sides.each_ref().map(|side| {
            let mut bytes: Vec<u8> = Vec::new();
            for x in side {
                match self.dtype {
                    DType::F16 => bytes.extend(f16_bits(*x).to_ne_bytes()),
                    DType::BF16 => bytes.extend((((*x as f32).to_bits() >> 16) as u16).to_ne_bytes()),
                    _ => bytes.extend((*x as f32).to_ne_bytes()),
                }
            }
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            bytes
        });
        let made = run([&bytes[0], &bytes[1]])?;
        let want = self.by_hand(&sides[0], &sides[1]);
        let exact =
            made.len() == want.len() && made.iter().zip(want).all(|(x, (want, _))| f64::from(*x) == want);
        Ok((!exact).then(|| "small integers".to_owned()))
    }

    /// The first number of a split product, computed by `run`, that is further off than of a plain one: of even
    /// numbers, of sizes that differ much, of sizes that differ more than halves hold, with one that is infinite, and
    /// of rows and columns of sizes of their own.
    pub(crate) fn off(&self, run: impl Fn([&[u8]; 2]) -> Result<Vec<f32>>) -> Result<Option<String>> {
        for (kind, numbers) in ["even", "uneven", "opposed", "infinite", "of rows"].into_iter().enumerate() {
            let sides = [0, 1].map(|side| self.numbers(kind as u32, side));
            let factors = [bytemuck::cast_slice(&sides[0]), bytemuck::cast_slice(&sides[1])];
            let made = run(factors)?;
            let wide = sides.each_ref().map(|side| side.iter().map(|x| f64::from(*x)).collect::<Vec<f64>>());
            let want = self.by_hand(&wide[0], &wide[1]);
            let right = |x: f32, (want, size): (f64, f64)| match want.is_finite() {
                true => (f64::from(x) - want).abs() <= CLOSE * size,
                false => f64::from(x) == want || x.is_nan() && want.is_nan(),
            };
            if made.len() != want.len() {
                bail!(Kernel, "matmul", "{} results in place of {}", made.len(), want.len());
            }
            let mut pairs = made.iter().zip(&want).enumerate();
            if let Some((at, (x, (want, _)))) = pairs.find(|(_, (x, want))| !right(**x, **want)) {
                return Ok(Some(format!("{x:e} for {want:e} at {at} of {numbers} numbers")));
            }
        }
        Ok(None)
    }

    fn numbers(&self, kind: u32, side: usize) -> Vec<f32> {
        let [_, m, n, k] = self.sizes;
        // Of images, those of one channel, and of one place.
        let images = self.windows.filter(|_| side == 1);
        let (rows, columns) = match images {
            Some([n, y, x, channels]) if self.turned[1] => (n * y * x, channels),
            Some([n, y, x, channels]) => (channels, n * y * x),
            None if side == 0 => (m, k),
            None => (k, n),
        };
        let mut made: Vec<f32> = noise(self.elems(side), 10 * kind + side as u32)
            .map(|x| {
                let even = (x >> 8) as f32 / (1 << 23) as f32 - 1.0;
                if kind == 1 { even * 2f32.powi(-((x & 63) as i32)) * 2f32.powi(40) } else { even }
            })
            .collect();
        if kind == 2 || kind == 4 {
            // What is huge on one side is tiny on the other, step by step of K; or rows and columns have sizes.
            for (i, x) in made.iter_mut().enumerate() {
                let within = i % (rows * columns);
                let (row, column) = match self.turned[side] != images.is_some() {
                    true => (within % rows, within / rows),
                    false => (within / columns, within % columns),
                };
                let step = if (side == 0) == (kind == 2) { column } else { row };
                let power = (step % 61) as i32 - 30;
                *x *= 2f32.powi(if side == 0 { power } else { -power });
            }
        }
        if kind == 3 && side == 0 {
            made[self.elems(side) / 2] = f32::INFINITY;
        }
        made
    }
}

/// The bits of a number that f16 holds as a normal one.
fn f16_bits(x: f64) -> u16 {
    let bits = (x as f32).to_bits();
    let size = bits & 0x7fff_ffff;
    let half = if size == 0 { 0 } else { (size - 0x3800_0000) >> 13 };
    ((bits >> 16) & 0x8000 | half) as u16
}
