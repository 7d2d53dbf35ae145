//! The device with kernels written by hand, on every adapter there is.

mod attention;
mod faults;
mod plans;
mod products;
mod staging;

use std::panic::Location;
use std::sync::Arc;
use std::time::{Duration, Instant};

use wgrad_graph::{
    Args, Backend, Body, BufferId, Caps, DType, ErrorKind, Fast, Graph, Group, Home, Kind, Leaf, LeafArg,
    LeafKind, Loc, Node, Op, Out, Output, Plan, Ran, Shape, Slot, Stage, Step, Val, Watch,
};

use crate::launch::{Binding, Bound, Launch, Lowered, On, Params, ScalarType, Word};
use crate::prepare::{Ready, prepare};
use crate::{AdapterInfo, Gpu, adapters, choose};

const LONG: Duration = Duration::from_secs(60);

/// Runs a test on a device of its own on every adapter.
#[expect(clippy::print_stderr, reason = "who reads the tests' output wants to know")]
pub(crate) fn on_every_adapter(test: impl Fn(&AdapterInfo, Gpu)) {
    let found = adapters();
    if found.is_empty() {
        eprintln!("skipped: no adapter");
    }
    for adapter in &found {
        test(adapter, Gpu::open(adapter).unwrap());
    }
}

/// `out[i] = x[i] * a + b` over the words of the value, one invocation an element.
const AXPB: &str = "
struct Params { n: u32, a: f32, b: f32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, ACCESS0> x: array<f32>;
@group(0) @binding(1) var<storage, ACCESS1> y: array<f32>;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x < params.n) { y[id.x] = x[id.x] * params.a + params.b; }
}";

/// `x[i] += w[i]`, with n in a uniform buffer.
const ADD_TO: &str = "
@group(1) @binding(0) var<uniform> fixed: array<vec4<u32>, 1>;
var<immediate> scale: f32;
@group(0) @binding(0) var<storage, ACCESS0> x: array<f32>;
@group(0) @binding(1) var<storage, ACCESS1> w: array<f32>;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x < fixed[0].x) { x[id.x] = x[id.x] + scale * w[id.x]; }
}";

/// Raises the flag if an element is not below the limit.
const CHECK: &str = "
struct Params { n: u32, limit: u32, check: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, ACCESS0> x: array<u32>;
@group(0) @binding(1) var<storage, ACCESS1> flag: atomic<u32>;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x < params.n && x[id.x] >= params.limit) { atomicMax(&flag, params.check); }
}";

fn bound(what: Bound, written: bool, elems: usize) -> Binding {
    Binding { what, written, bytes: elems * 4 }
}

fn axpb(n: usize, x: Loc, y: Loc, a: Word, b: f32) -> Launch {
    Launch {
        source: AXPB.to_owned(),
        bindings: vec![bound(Bound::Loc(x), false, n), bound(Bound::Loc(y), true, n)],
        words: vec![Word::Fixed(n as u32), a, Word::Fixed(b.to_bits())],
        params: Params::Immediate,
        parts: Vec::new(),
        of_halves: None,
        grid: [n.div_ceil(64) as u32, 1, 1],
        cost_bytes: 8 * n as u64,
        cost_flops: 2 * n as u64,
        on: On::Lanes,
    }
}

fn check(n: usize, x: Loc, limit: u32) -> Launch {
    let check = Word::Check { op: "gather", limit, at: Some(Location::caller()) };
    Launch {
        source: CHECK.to_owned(),
        bindings: vec![bound(Bound::Loc(x), false, n), bound(Bound::Flag, true, 1)],
        words: vec![Word::Fixed(n as u32), Word::Fixed(limit), check],
        params: Params::Immediate,
        parts: Vec::new(),
        of_halves: None,
        grid: [n.div_ceil(64) as u32, 1, 1],
        cost_bytes: 4 * n as u64,
        cost_flops: 0,
        on: On::Lanes,
    }
}

fn fixed(x: f32) -> Word {
    Word::Fixed(x.to_bits())
}

/// A plan with these leaves, slots of `slot_bytes` after the uploads, outputs and scalars.
#[derive(Default)]
struct Sketch {
    leaves: Vec<(LeafKind, usize)>,
    upload_bytes: usize,
    slots: Vec<usize>,
    outs: usize,
    scalars: usize,
}

impl Sketch {
    fn ready(&self, gpu: &Gpu, launches: Vec<Launch>) -> wgrad_graph::Result<Arc<dyn wgrad_graph::Prepared>> {
        let ready: Ready = prepare(gpu.core(), &Arc::new(self.plan()), self.lowered(launches))?;
        Ok(Arc::new(ready))
    }

    fn lowered(&self, launches: Vec<Launch>) -> Vec<Lowered> {
        vec![Lowered { launches, scratch_bytes: 0 }]
    }

    fn plan(&self) -> Plan {
        let mut graph = Graph::default();
        graph.push(Node {
            op: Op::Input,
            inputs: Vec::new().into(),
            outs: [Out { shape: Shape::from([1]), dtype: DType::F32 }].into(),
            after: Vec::new().into(),
            segment: 0,
            at: None,
        });
        let mut at = self.upload_bytes.next_multiple_of(256);
        let mut slots = Vec::new();
        for bytes in &self.slots {
            slots.push(Slot { offset_bytes: at, bytes: *bytes, born: 0, dies: 1 });
            at += bytes.next_multiple_of(256);
        }
        let group = Group {
            kind: Kind::Pointwise,
            dims: [1].as_slice().into(),
            reduced: 0,
            operands: Vec::new(),
            scalars: Vec::new(),
            body: Body::default(),
            accs: Vec::new(),
            stores: Vec::new(),
            nodes: vec![0],
        };
        Plan {
            graph: Arc::new(graph),
            leaves: self
                .leaves
                .iter()
                .map(|&(kind, offset_bytes)| Leaf { node: 0, kind, offset_bytes })
                .collect(),
            scalars: vec![0; self.scalars],
            steps: vec![Step { group: Arc::new(group), reads: Vec::new(), writes: Vec::new(), batch: 0 }],
            slots,
            outputs: vec![Output { val: Val::of(0), home: Home::New { bytes: 0 } }; self.outs],
            upload_bytes: self.upload_bytes,
            workspace_bytes: at,
            notes: Vec::new(),
        }
    }
}

fn bytes(x: &[f32]) -> &[u8] {
    bytemuck::cast_slice(x)
}

fn floats(gpu: &Gpu, id: BufferId, n: usize) -> Vec<f32> {
    let bytes = gpu.read(&[(id, n * 4)]).unwrap().wait(LONG).unwrap().remove(0);
    bytemuck::pod_collect_to_vec(&bytes)
}

#[test]
fn a_chain_of_kernels_computes() {
    on_every_adapter(|_, gpu| {
        let n = 1000;
        let sketch = Sketch {
            leaves: vec![(LeafKind::Upload, 0), (LeafKind::Buffer, 0), (LeafKind::Upload, 4096)],
            upload_bytes: 8192,
            slots: vec![4000, 4000],
            outs: 1,
            scalars: 1,
        };
        let add = Launch {
            source: ADD_TO.to_owned(),
            bindings: vec![
                bound(Bound::Loc(Loc::Slot(1)), true, n),
                bound(Bound::Loc(Loc::Leaf(1)), false, n),
            ],
            words: vec![Word::Fixed(n as u32), Word::Fixed(0), Word::Fixed(0), Word::Fixed(0), fixed(0.5)],
            params: Params::Spilled { fixed: 4 },
            parts: Vec::new(),
            of_halves: None,
            grid: [n.div_ceil(64) as u32, 1, 1],
            cost_bytes: 0,
            cost_flops: 0,
            on: On::Lanes,
        };
        let mut add_upload = add.clone();
        add_upload.bindings[1].what = Bound::Loc(Loc::Leaf(2));
        let launches = vec![
            axpb(n, Loc::Leaf(0), Loc::Slot(0), Word::Scalar(0, ScalarType::F32), 1.0),
            axpb(n, Loc::Slot(0), Loc::Slot(1), fixed(2.0), 0.0),
            add,
            add_upload,
            axpb(n, Loc::Slot(1), Loc::Out(0), fixed(1.0), -1.0),
        ];
        let ready = sketch.ready(&gpu, launches).unwrap();
        let w: Vec<f32> = (0..n).map(|i| i as f32 * 10.0).collect();
        let buffer = gpu.alloc(n * 4).unwrap();
        gpu.write(buffer, bytes(&w)).unwrap();
        let out = gpu.alloc(n * 4).unwrap();
        for round in 0..4 {
            let x: Vec<f32> = (0..n).map(|i| (i + round) as f32).collect();
            let u = vec![4.0; n];
            let before = gpu.memory();
            let leaves = [LeafArg::Host(bytes(&x)), LeafArg::Buffer(buffer), LeafArg::Host(bytes(&u))];
            let args = Args { leaves: &leaves, scalars: &[3.0], outputs: &[out], watch: None };
            let ticket = gpu.submit(&ready, args).unwrap();
            gpu.wait(ticket, LONG).unwrap();
            let after = gpu.memory();
            assert_eq!(after.dispatches - before.dispatches, 5);
            assert_eq!(after.uploads - before.uploads, 1);
            assert_eq!(after.upload_bytes - before.upload_bytes, 8192);
            // The first step is preceded by the write.
            assert_eq!(after.submissions - before.submissions, if round == 0 { 2 } else { 1 });
            let want: Vec<f32> =
                (0..n).map(|i| ((i + round) as f32 * 3.0 + 1.0) * 2.0 + i as f32 * 5.0 + 2.0 - 1.0).collect();
            assert_eq!(floats(&gpu, out, n), want);
        }
        // Five dispatches: x in uploads or slot, y in slot (2 texts share one), out; add from page or upload.
        assert_eq!(gpu.memory().kernels, 4);
    });
}

#[test]
fn operands_and_outputs_may_share_a_page() {
    on_every_adapter(|_, gpu| {
        let sketch = Sketch { leaves: vec![(LeafKind::Buffer, 0)], outs: 1, ..Sketch::default() };
        let ready = sketch.ready(&gpu, vec![axpb(64, Loc::Leaf(0), Loc::Out(0), fixed(2.0), 0.0)]).unwrap();
        let ids: Vec<BufferId> = (0..5).map(|_| gpu.alloc(256).unwrap()).collect();
        assert_eq!(gpu.memory().pages, 1);
        gpu.write(ids[0], bytes(&[1.0; 64])).unwrap();
        for pair in ids.windows(2) {
            let args =
                Args { leaves: &[LeafArg::Buffer(pair[0])], scalars: &[], outputs: &[pair[1]], watch: None };
            gpu.submit(&ready, args).unwrap();
        }
        assert_eq!(floats(&gpu, ids[4], 64), [16.0; 64]);
        // In place: the output is the leaf's own buffer.
        let args = Args { leaves: &[LeafArg::Buffer(ids[4])], scalars: &[], outputs: &[ids[4]], watch: None };
        gpu.submit(&ready, args).unwrap();
        assert_eq!(floats(&gpu, ids[4], 64), [32.0; 64]);
    });
}

#[test]
fn a_freed_buffer_may_be_in_flight() {
    on_every_adapter(|_, gpu| {
        let sketch = Sketch { leaves: vec![(LeafKind::Buffer, 0)], outs: 1, ..Sketch::default() };
        let n = 1 << 18;
        let ready = sketch.ready(&gpu, vec![axpb(n, Loc::Leaf(0), Loc::Out(0), fixed(1.0), 1.0)]).unwrap();
        let mut x = gpu.alloc(4 * n).unwrap();
        gpu.write(x, bytes(&vec![0.0; n])).unwrap();
        for _ in 0..50 {
            let y = gpu.alloc(4 * n).unwrap();
            gpu.submit(
                &ready,
                Args { leaves: &[LeafArg::Buffer(x)], scalars: &[], outputs: &[y], watch: None },
            )
            .unwrap();
            gpu.free(x);
            x = y;
        }
        let mut pending = gpu.read(&[(x, 4 * n)]).unwrap();
        gpu.free(x);
        let y = gpu.alloc(4 * n).unwrap();
        gpu.write(y, bytes(&vec![-1.0; n])).unwrap();
        let read: Vec<f32> = bytemuck::pod_collect_to_vec(&pending.wait(LONG).unwrap()[0]);
        assert!(read.iter().all(|v| *v == 50.0));
        let memory = gpu.memory();
        assert!(memory.live_bytes == 4 * n && memory.peak_bytes == 8 * n, "{memory:?}");
        assert!(memory.pages <= 3, "{memory:?}");
    });
}

#[test]
fn the_workspace_is_that_of_the_largest_living_plan() {
    on_every_adapter(|_, gpu| {
        let plan = |bytes: usize| {
            let sketch = Sketch { slots: vec![bytes], ..Sketch::default() };
            sketch.ready(&gpu, Vec::new()).unwrap()
        };
        let small = plan(1 << 20);
        assert_eq!(gpu.memory().live_bytes, 1 << 20);
        let large = plan(8 << 20);
        let middle = plan(7 << 20);
        assert_eq!((gpu.memory().live_bytes, gpu.memory().pages), (8 << 20, 1));
        drop(large);
        assert_eq!(gpu.memory().live_bytes, 8 << 20);
        drop(middle);
        assert_eq!(gpu.memory().live_bytes, 1 << 20);
        drop(small);
        assert_eq!((gpu.memory().live_bytes, gpu.memory().reserved_bytes, gpu.memory().pages), (0, 0, 0));
        assert_eq!(gpu.memory().peak_bytes, 8 << 20);
    });
}

#[test]
fn nothing_grows_over_many_steps() {
    on_every_adapter(|_, gpu| {
        let sketch = Sketch {
            leaves: vec![(LeafKind::Upload, 0), (LeafKind::Buffer, 0)],
            upload_bytes: 4096,
            slots: vec![4096],
            outs: 2,
            scalars: 0,
        };
        let launches = vec![
            axpb(1024, Loc::Leaf(0), Loc::Slot(0), fixed(2.0), 1.0),
            axpb(1024, Loc::Slot(0), Loc::Out(0), fixed(1.0), 0.0),
            axpb(1024, Loc::Leaf(1), Loc::Out(1), fixed(1.0), 1.0),
        ];
        let ready = sketch.ready(&gpu, launches).unwrap();
        let state = gpu.alloc(4096).unwrap();
        gpu.write(state, bytes(&[0.0; 1024])).unwrap();
        let x = vec![1.0; 1024];
        let mut tickets = std::collections::VecDeque::new();
        let mut settled = None;
        let steps = 2000;
        for step in 0..steps {
            let out = gpu.alloc(4096).unwrap();
            let leaves = [LeafArg::Host(bytes(&x)), LeafArg::Buffer(state)];
            tickets.push_back(
                gpu.submit(
                    &ready,
                    Args { leaves: &leaves, scalars: &[], outputs: &[out, state], watch: None },
                )
                .unwrap(),
            );
            if tickets.len() > 3 {
                gpu.wait(tickets.pop_front().unwrap(), LONG).unwrap();
            }
            if step % 100 == 0 {
                assert_eq!(floats(&gpu, out, 1024), [3.0; 1024]);
            }
            gpu.free(out);
            if step == 300 {
                settled = Some((gpu.memory(), gpu.allocator_report()));
            }
        }
        assert_eq!(floats(&gpu, state, 1024), [steps as f32; 1024]);
        let (memory, report) = settled.unwrap();
        let now = gpu.memory();
        assert_eq!(
            (now.pages, now.reserved_bytes, now.peak_bytes, now.kernels),
            (memory.pages, memory.reserved_bytes, memory.peak_bytes, memory.kernels)
        );
        let (made, sought) = {
            let binds = crate::faults::lock(&gpu.core().binds);
            (binds.made, binds.sought)
        };
        // A step that binds what an earlier one has bound looks for no bind group.
        let most = if gpu.caps().allows(Fast::BoundPlans) { 32 } else { u64::MAX };
        assert!(made <= 8 && sought <= most, "{made} bind groups made, {sought} looked for");
        if let (Some(then), Some(now)) = (report, gpu.allocator_report()) {
            // A few staging buffers more may be in flight at one time than at another.
            assert!(now.allocations <= then.allocations + 8, "{then:?} {now:?}");
            assert!(now.allocated_bytes <= then.allocated_bytes + (1 << 20), "{then:?} {now:?}");
            assert!(now.allocated_bytes as usize >= memory.reserved_bytes);
        }
    });
}

#[test]
fn threads_share_a_device() {
    on_every_adapter(|_, gpu| {
        let sketch = Sketch {
            leaves: vec![(LeafKind::Upload, 0)],
            upload_bytes: 1024,
            slots: vec![1024],
            outs: 1,
            scalars: 1,
        };
        let launches = vec![
            axpb(256, Loc::Leaf(0), Loc::Slot(0), Word::Scalar(0, ScalarType::F32), 0.0),
            axpb(256, Loc::Slot(0), Loc::Out(0), fixed(1.0), 1.0),
        ];
        let ready = sketch.ready(&gpu, launches).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (gpu, ready) = (&gpu, &ready);
                scope.spawn(move || {
                    for round in 0..100 {
                        let out = gpu.alloc(1024).unwrap();
                        let x = [round as f32; 256];
                        let scale = f64::from(thread + 1);
                        let leaves = [LeafArg::Host(bytes(&x))];
                        let args = Args { leaves: &leaves, scalars: &[scale], outputs: &[out], watch: None };
                        let ticket = gpu.submit(ready, args).unwrap();
                        if round % 3 == thread {
                            gpu.wait(ticket, LONG).unwrap();
                        }
                        assert_eq!(floats(gpu, out, 256), [(round as f64 * scale + 1.0) as f32; 256]);
                        gpu.free(out);
                    }
                });
            }
        });
    });
}

/// Notes what it is told.
struct Told {
    start: Instant,
    stages: std::sync::Mutex<Vec<Stage>>,
    ran: std::sync::Mutex<Vec<Ran>>,
}

impl Watch for Told {
    fn enter(&self, stage: Stage) {
        self.stages.lock().unwrap().push(stage);
    }

    fn leave(&self) {}

    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn ran(&self, _: &Arc<Plan>, runs: &[Ran]) {
        self.ran.lock().unwrap().extend_from_slice(runs);
    }
}

#[test]
fn who_watches_hears_when_each_kernel_ran() {
    on_every_adapter(|adapter, gpu| {
        let sketch = Sketch { leaves: vec![(LeafKind::Buffer, 0)], outs: 1, ..Sketch::default() };
        let n = 1 << 20;
        // More than fit one query set.
        let launch = |i| axpb(if i == 1 { n } else { 64 }, Loc::Leaf(0), Loc::Out(0), fixed(1.0), 1.0);
        let count = 2500;
        let ready = sketch.ready(&gpu, (0..count).map(launch).collect()).unwrap();
        let x = gpu.alloc(4 * n).unwrap();
        let told =
            Arc::new(Told { start: Instant::now(), stages: Default::default(), ran: Default::default() });
        let watch: Arc<dyn Watch> = Arc::clone(&told) as Arc<dyn Watch>;
        for round in 1..=2 {
            let before_ns = told.now_ns();
            let args =
                Args { leaves: &[LeafArg::Buffer(x)], scalars: &[], outputs: &[x], watch: Some(&watch) };
            let ticket = gpu.submit(&ready, args).unwrap();
            gpu.wait(ticket, LONG).unwrap();
            let after_ns = told.now_ns();
            let ran = std::mem::take(&mut *told.ran.lock().unwrap());
            if !gpu.has_clock() {
                assert!(ran.is_empty());
                continue;
            }
            // One step, whose dispatches are one run in each of three encoders.
            assert_eq!(
                ran.iter().map(|r| r.steps.to_vec()).collect::<Vec<_>>(),
                [[0], [0], [0]],
                "{adapter}, round {round}"
            );
            assert!(ran.iter().all(|r| r.start_ns < r.end_ns), "{ran:?}");
            assert!(ran.windows(2).all(|w| w[0].end_ns <= w[1].start_ns), "{ran:?}");
            // Both clocks were looked at: what ran, ran in between.
            let (first, last) = (ran[0].start_ns, ran[2].end_ns);
            assert!(before_ns <= first && last <= after_ns, "{before_ns} {first} {last} {after_ns}");
        }
        let stages = told.stages.lock().unwrap();
        assert!(stages.contains(&Stage::Upload) && stages.contains(&Stage::Submit), "{stages:?}");
    });
}

/// A user's kernel: its own access modes, no parameters.
const OWN: &str = "
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    y[id.x] = x[id.x] * x[id.x];
}";

#[test]
fn a_users_text_runs_checked_wherever_its_operands_lie() {
    on_every_adapter(|_, gpu| {
        let sketch = Sketch {
            leaves: vec![(LeafKind::Buffer, 0)],
            slots: vec![400, 400],
            outs: 1,
            ..Sketch::default()
        };
        let own = |x, y| Launch {
            source: OWN.to_owned(),
            words: Vec::new(),
            params: Params::None,
            parts: Vec::new(),
            of_halves: None,
            ..axpb(100, x, y, fixed(0.0), 0.0)
        };
        let launches = [
            own(Loc::Leaf(0), Loc::Slot(0)),
            own(Loc::Slot(0), Loc::Slot(1)),
            own(Loc::Slot(1), Loc::Out(0)),
            own(Loc::Leaf(0), Loc::Out(0)),
        ];
        let x = gpu.alloc(400).unwrap();
        gpu.write(x, bytes(&[3.0; 100])).unwrap();
        let y = gpu.alloc(400).unwrap();
        for (last, want) in [(3, 6561.0), (4, 9.0)] {
            let ready = sketch.ready(&gpu, launches[..last].to_vec()).unwrap();
            gpu.submit(
                &ready,
                Args { leaves: &[LeafArg::Buffer(x)], scalars: &[], outputs: &[y], watch: None },
            )
            .unwrap();
            assert_eq!(floats(&gpu, y, 100), [want; 100]);
        }
        assert_eq!(gpu.memory().kernels, 2);
    });
}

#[test]
fn sizes_that_are_no_words_survive() {
    on_every_adapter(|_, gpu| {
        let sizes = [1, 2, 3, 5, 255, 256, 257, 70_001];
        let values: Vec<Vec<u8>> =
            sizes.iter().map(|n| (0..*n).map(|i| (i * 7 + n) as u8).collect()).collect();
        let ids: Vec<BufferId> = values.iter().map(|v| gpu.alloc(v.len()).unwrap()).collect();
        for (id, value) in ids.iter().zip(&values) {
            gpu.write(*id, value).unwrap();
        }
        let ranges: Vec<(BufferId, usize)> = ids.iter().zip(&values).map(|(id, v)| (*id, v.len())).collect();
        let before = gpu.memory();
        let mut pending = gpu.read(&ranges).unwrap();
        let start = Instant::now();
        while !pending.ready() {
            assert!(start.elapsed() < LONG);
        }
        assert!(
            pending.wait(Duration::ZERO).unwrap().iter().map(|b| &**b).eq(values.iter().map(Vec::as_slice))
        );
        let after = gpu.memory();
        assert_eq!(after.downloads - before.downloads, 1);
        assert_eq!(after.download_bytes - before.download_bytes, sizes.iter().sum::<usize>() as u64);
        assert!(gpu.read(&[]).unwrap().wait(LONG).unwrap().is_empty());
        drop(gpu.read(&ranges).unwrap());
    });
}

#[test]
fn adapters_are_chosen_by_what_they_are_called() {
    let found = adapters();
    for adapter in &found {
        assert_eq!(choose(&found, Some(&adapter.index.to_string())).unwrap().index, adapter.index);
        let named = choose(&found, Some(&adapter.name.to_uppercase())).unwrap();
        assert_eq!(named.name, adapter.name);
        // What a trial at opening refuses is off besides.
        let opened = Gpu::open(adapter).unwrap().caps().clone();
        assert_eq!(opened, Caps { off: opened.off, ..adapter.caps.clone() });
        let tried = [Fast::PackedHalves, Fast::HalfArithmetic];
        for path in Fast::ALL {
            let (listed, now) = (adapter.caps.off.contains(path), opened.off.contains(path));
            assert!(now == listed || now && tried.contains(&path), "{adapter}: {path}");
        }
        let small = Gpu::open_with(adapter, |caps| caps.max_value_bytes = 1 << 16).unwrap();
        assert_eq!(small.alloc((1 << 16) + 1).unwrap_err().kind(), ErrorKind::Limit);
        assert!(small.alloc(1 << 16).is_ok());
        let raised = Gpu::open_with(adapter, |caps| caps.shared_bytes *= 2);
        assert_eq!(raised.err().unwrap().kind(), ErrorKind::Adapter);
        let packed = Gpu::open_with(adapter, |caps| caps.native_half = false).unwrap();
        assert!(!packed.caps().native_half);
        let words = Gpu::open_with(adapter, |caps| caps.native_half = true);
        assert_eq!(words.is_ok(), adapter.caps.native_half);
    }
    let error = choose(&found, Some("no such thing")).unwrap_err();
    assert!(error.kind() == ErrorKind::Adapter && error.to_string().contains("no such thing"));
    use wgrad_graph::DeviceKind::{DiscreteGpu, IntegratedGpu};
    match choose(&found, None) {
        Ok(adapter) => assert!(matches!(adapter.kind, DiscreteGpu | IntegratedGpu)),
        Err(error) => assert_eq!(error.kind(), ErrorKind::Adapter),
    }
}
