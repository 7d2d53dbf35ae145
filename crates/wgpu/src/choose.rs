//! Which variant of a kernel runs: a table from sizes and limits, with the reason for each threshold.
//! Sizes choose the variant here; they never enter its text.

mod large;
mod product;

use wgrad_graph::{Caps, DeviceKind, Fast};

pub(crate) use large::{
    counted_scatter, radix, radix_chunks, radix_each, scan_chunks, scan_quads, scan_tiles, scatter_window,
    sorted_scatter, turned_edge, turning_workgroup, turns, votes,
};
pub(crate) use product::{
    Direct, Product, Stream, Tile, Units, Work, half_products, in_parts, product, split_products,
};

/// Whether barriers and idle lanes are dear: a driver that runs kernels on the CPU.
pub(crate) fn software(caps: &Caps) -> bool {
    !matches!(caps.kind, DeviceKind::DiscreteGpu | DeviceKind::IntegratedGpu | DeviceKind::OtherGpu)
}

/// Whether steps from halves to a half are the driver's own.
pub(crate) fn half_arithmetic(caps: &Caps) -> bool {
    software(caps) && caps.native_half && caps.allows(Fast::HalfArithmetic)
}

/// Size of the first page of values, bytes. Parameters and their state that lie in one page are updated by one dispatch,
/// each further set of pages by one more, 5 us on an H200; on a GPU a model of five million parameters has room with
/// AdamW's state. A driver on the CPU clears what it gives.
pub(crate) fn first_page_bytes(caps: &Caps) -> u64 {
    if software(caps) { 1 << 20 } else { 64 << 20 }
}

/// A queue submission is closed when its estimated work passes this, and a dispatch is cut into several
/// where that can be done: longer ones trip watchdogs.
pub(crate) const MOST_NS: u64 = 50_000_000;

/// Bytes and floating operations in a nanosecond, of what devices of this kind reach.
pub(crate) fn speed(kind: DeviceKind) -> (f64, f64) {
    match kind {
        DeviceKind::DiscreteGpu => (500.0, 5000.0),
        DeviceKind::IntegratedGpu | DeviceKind::OtherGpu => (50.0, 500.0),
        DeviceKind::SoftwareGpu | DeviceKind::Cpu | DeviceKind::Oracle => (10.0, 20.0),
    }
}

/// Dispatches into which `flops` floating operations are cut, so that none trips a watchdog.
pub(crate) fn cuts(flops: u64, caps: &Caps) -> usize {
    ((flops as f64 / speed(caps.kind).1 / MOST_NS as f64).ceil() as usize).max(1)
}

/// Most rounds of its loops, inner ones and those that end a loop included, that an invocation may take.
pub(crate) fn rounds(caps: &Caps) -> usize {
    // llvmpipe leaves all loops of an invocation after 65535 rounds, without a word.
    if software(caps) { 60_000 } else { usize::MAX }
}

/// Most steps of a loop that an invocation may take, of which each calls functions with loops of `inner` rounds.
pub(crate) fn steps(inner: usize, caps: &Caps) -> usize {
    // A step is two rounds at most.
    (rounds(caps) / (2 + inner)).max(1)
}

/// Lanes that share `count` such steps, in one workgroup: the fewest that come to an end. `None`: no workgroup does.
pub(crate) fn sharing(count: usize, inner: usize, state_bytes: usize, caps: &Caps) -> Option<u32> {
    let room = caps.max_invocations.min(fitting(caps.shared_bytes / state_bytes.max(1)));
    let most = steps(inner, caps);
    (0..=room.ilog2()).map(|power| 1 << power).find(|lanes| count.div_ceil(*lanes as usize) <= most)
}

/// Invocations in a workgroup of kernels without workgroup memory.
pub(crate) fn pointwise_workgroup(caps: &Caps) -> u32 {
    // 256 hides latency on GPUs; on CPUs a workgroup is the unit of threading, and small ones spread.
    let wanted = if software(caps) { 64 } else { 256 };
    wanted.min(caps.max_invocations)
}

/// Invocations in a workgroup of those that take a long chunk each.
pub(crate) fn chunk_workgroup(caps: &Caps) -> u32 {
    // Threads share workgroups: as many as there are vectors of lanes, so that none waits for another's last ones.
    caps.subgroup.clamp(4, 16).min(caps.max_invocations)
}

/// Whether an elementwise kernel handles four points an invocation.
pub(crate) fn quads(points: usize, exprs: usize, caps: &Caps) -> bool {
    // Below 16384 points the device is not filled, and fewer invocations finish later. The body is
    // printed four times: past 96 expressions the text costs more compile time than it saves. Both kinds
    // of device gain: lavapipe half of its time, an H200 reaches 3.7 of 4.3 TB/s.
    caps.allows(Fast::Quads) && points >= 16384 && exprs <= 96
}

/// Whether an elementwise kernel handles eight points an invocation, by words of 64 bits.
pub(crate) fn eights(points: usize, exprs: usize, caps: &Caps) -> bool {
    // The body is printed eight times. lavapipe takes 4.2 ms of its cores for 2^22 floats read and written so, in turns
    // of four, 8.0 by quads.
    caps.long_words && quads(points, 2 * exprs, caps)
}

/// Eights that an invocation takes one after another.
pub(crate) const TURNS_OF_EIGHT: usize = 4;

/// Longest text of a reduction's step that is repeated four times.
pub(crate) fn unrolled_bytes(caps: &Caps) -> usize {
    if !caps.allows(Fast::Unrolled) {
        return 0;
    }
    // Software drivers compile on the CPU; SwiftShader was not done after a minute with a text of 700
    // bytes four times over.
    if software(caps) { 450 } else { 1500 }
}

/// How a reduction is laid over the device.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lanes {
    /// Results in a workgroup.
    pub(crate) x: u32,
    /// Lanes of a result in a workgroup. `x * y` invocations.
    pub(crate) y: u32,
    /// Whether neighbouring invocations are lanes of one result (rows), else results (columns).
    pub(crate) inner: bool,
    /// Workgroups that share a result.
    pub(crate) splits: u32,
    /// Whether the lanes of a workgroup meet in workgroup memory; else each hands on its own state: then `splits` are
    /// lanes, and `x` all lanes of a workgroup.
    pub(crate) tree: bool,
}

impl Lanes {
    /// Partial states of one result that a second launch combines; 1: there is none.
    pub(crate) fn parts(&self) -> u32 {
        self.splits
    }
}

/// Lanes for `results` reductions over `length` elements each. `rows`: neighbours in memory are
/// neighbours of one reduction. `state_bytes`: accumulators of one lane. `quads`: a lane takes four
/// neighbours at a time. `inner`: rounds of the loops in functions that a step calls.
pub(crate) fn lanes(
    results: usize,
    length: usize,
    rows: bool,
    state_bytes: usize,
    quads: bool,
    inner: usize,
    caps: &Caps,
) -> Lanes {
    let wg = 256.min(caps.max_invocations).min(fitting(caps.shared_bytes / state_bytes.max(1)));
    let serial = |wg: u32| Lanes { x: wg, y: 1, inner: false, splits: 1, tree: true };
    let length = if quads { length / 4 } else { length };
    if software(caps) {
        // A barrier is a switch of coroutines for every invocation: never worth it. Few results are
        // cut into lanes that each hand on a state of their own, 32 workgroups at most.
        let wg = 64.min(caps.max_invocations);
        let most = steps(inner, caps);
        if (results >= 256 || length < 1024) && length <= most {
            return serial(wg);
        }
        let least = length.div_ceil(most);
        if !caps.allows(Fast::SplitReductions) && least == 1 {
            return serial(wg);
        }
        let wanted = (2048 / results.max(1)).clamp(1, (length / 64).max(1)).max(least) as u32;
        // Each lane runs along a stretch of its own: what one vector of lanes reads at a time would come from 8 places
        // of a page anyway, and so each place is a line that is read to its end. A sum of 2^22 floats takes a fifth of
        // what lanes take that share a stretch.
        return Lanes { x: wg, y: 1, inner: false, splits: wanted, tree: false };
    }
    // An H200 holds 1056 workgroups of 256 at once.
    const FULL: usize = 1056;
    let wide = wg.min(32);
    if rows {
        // Short rows: one invocation each, the caches turn its stride into whole lines.
        if length <= 8 || (length <= 32 && results >= wg as usize * FULL) {
            return serial(wg);
        }
        // As few lanes as fill the device: every lane takes more steps, and the tree is small.
        let mut y = wide;
        while y < wg && (results * y as usize) < wg as usize * FULL && length >= 8 * y as usize {
            y *= 2;
        }
        let x = wg / y;
        // A lane keeps at least 8 steps; less, and the second launch costs more than it frees.
        let splits = split(results.div_ceil(x as usize), length, 8 * y as usize, FULL, caps);
        return Lanes { x, y, inner: true, splits, tree: true };
    }
    if results >= wg as usize * FULL || length <= 16 {
        return serial(wg);
    }
    // 32 neighbours read a whole line together.
    let (x, y) = (wide, wg / wide);
    let splits = split(results.div_ceil(x as usize), length, 8 * y as usize, FULL, caps);
    Lanes { x, y, inner: false, splits, tree: true }
}

/// How a row program is laid over the device.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct RowLanes {
    /// Rows in a workgroup.
    pub(crate) x: u32,
    /// Lanes of a row. `x * y` invocations.
    pub(crate) y: u32,
    /// Whether neighbouring invocations are lanes of one row, else of neighbouring rows.
    pub(crate) inner: bool,
    /// Units of a row that each lane takes and holds; 0: lanes run along the row anew at each level.
    pub(crate) held: u32,
}

/// What a row program has to do.
#[derive(Copy, Clone, Debug)]
pub(crate) struct RowWork {
    pub(crate) rows: usize,
    /// Elements of a row, or quads of them.
    pub(crate) units: usize,
    /// Runs along each row.
    pub(crate) levels: usize,
    /// Whether neighbours in memory are neighbours in a row.
    pub(crate) together: bool,
    /// Bytes of the accumulators of one lane.
    pub(crate) state_bytes: usize,
    /// Registers that a lane needs to hold a unit.
    pub(crate) words: usize,
    /// Bytes of the text of a unit.
    pub(crate) point_bytes: usize,
    /// Rounds of the loops in functions that a unit calls.
    pub(crate) inner: usize,
}

/// Whether `y` lanes of a row meet by what subgroups tell each other.
pub(crate) fn row_subgroups(y: u32, caps: &Caps) -> bool {
    let sg = caps.subgroup;
    let known = sg.is_power_of_two() && (4..=64).contains(&sg);
    // Every lane combines what the subgroups of its row have.
    let few = y >= sg && y <= 32 * sg && y.is_multiple_of(sg);
    !software(caps) && caps.allows(Fast::Subgroups) && known && few
}

/// Lanes for a row program; `None`: no workgroup comes to the end of a row.
pub(crate) fn row_lanes(work: &RowWork, caps: &Caps) -> Option<RowLanes> {
    let RowWork { rows, units, levels, together, state_bytes, words, point_bytes, inner } = *work;
    if software(caps) {
        // A barrier is a switch of coroutines for every invocation: one invocation a row, as long as it comes to
        // an end. Workgroups are what threads share, vectors of 8 what a core takes at once.
        let x = (rows / 8).next_power_of_two().clamp(8, 64.min(caps.max_invocations as usize)) as u32;
        if units * levels <= steps(inner, caps) {
            return Some(RowLanes { x, y: 1, inner: true, held: 0 });
        }
        let y = sharing(units * levels, inner, state_bytes, caps)?.max(64.min(caps.max_invocations));
        return Some(RowLanes { x: 1, y, inner: true, held: 0 });
    }
    let room = caps.max_invocations.min(fitting(caps.shared_bytes / state_bytes.max(1)));
    if !together {
        // 32 rows read a whole line together.
        let x = 32.min(room);
        return Some(RowLanes { x, y: (256.min(room) / x).max(1), inner: false, held: 0 });
    }
    // Lanes hold up to 4 units, so that as many loads are under way at once; the largest workgroup up to 8, where it
    // is that or reading a row again. 64 words a lane leave room for what is computed, and the text of all
    // units is compiled.
    let fits = |held: usize| held * words <= 64 && held * point_bytes <= 16_000;
    let mut y = 1;
    while y < room && (units.div_ceil(y as usize) > 4 || !fits(units.div_ceil(y as usize))) {
        y *= 2;
    }
    // An H200 holds 270 000 invocations at once; few rows take more lanes each.
    while y < room && units > y as usize && rows * (y as usize) < 1 << 17 {
        y *= 2;
    }
    let x = (256.min(room) / y).max(1);
    let held = units.div_ceil(y as usize);
    if held <= 8 && fits(held) {
        return Some(RowLanes { x, y, inner: true, held: held as u32 });
    }
    // Few rows: all lanes that a multiprocessor takes for one; else two workgroups share it.
    let y = if rows < 264 { room } else { 512.min(room) };
    Some(RowLanes { x: 1, y, inner: true, held: 0 })
}

fn split(groups: usize, length: usize, least: usize, full: usize, caps: &Caps) -> u32 {
    if !caps.allows(Fast::SplitReductions) || groups >= full / 4 || length < 2 * least {
        return 1;
    }
    (full / groups.max(1)).min(length / least).clamp(1, 1024) as u32
}

/// Whether a reduction of columns takes four neighbouring columns a lane.
pub(crate) fn column_quads(results: usize, length: usize, caps: &Caps) -> bool {
    // One column a lane moves 128 bytes of a row a time, which an H200 does at a tenth of its bandwidth; four move
    // whole pages of memory. Below 128 columns a line would have idle lanes, on CPUs threads.
    results >= if software(caps) { 1024 } else { 128 } && length >= 16
}

/// Rows of a band, and how far apart those are that are read by bands.
const BAND: usize = 16;
const FAR_BYTES: usize = 1 << 14;

/// Columns over rows that lie `line_bytes` apart, on a CPU by bands of rows: a vector of lanes reads two lines of each row
/// down to the last one, and what a core fetches beside them is gone from its cache when the next vector comes, once the
/// rows share more of its sets than these have ways. Rows of 16 KB: 1024 x 4096 f32 take lavapipe 7.4 ms as a whole, 7.0 by
/// bands of 64 rows, 4.4 by 32, 3.2 by 16, 3.5 by 8.
pub(crate) fn bands(lanes: Lanes, line_bytes: usize, length: usize, caps: &Caps) -> Lanes {
    let far = line_bytes >= FAR_BYTES && length >= 16 * BAND && lanes.splits == 1;
    match software(caps) && far && caps.allows(Fast::SplitReductions) {
        true => Lanes { splits: length.div_ceil(BAND) as u32, ..lanes },
        false => lanes,
    }
}

/// The largest power of two that is not above `n`, at least 1, at most 1024.
fn fitting(n: usize) -> u32 {
    if n == 0 { 1 } else { 1 << n.min(1024).ilog2() }
}

/// Lanes that combine `parts` partial states of each reduction.
pub(crate) fn final_lanes(parts: u32, state_bytes: usize, caps: &Caps) -> Lanes {
    if software(caps) || parts <= 32 {
        let wg = 64.min(caps.max_invocations);
        return Lanes { x: wg, y: 1, inner: false, splits: 1, tree: true };
    }
    let wg = 256.min(caps.max_invocations).min(fitting(caps.shared_bytes / state_bytes.max(1)));
    let y = if parts <= 256 { 32.min(wg) } else { wg };
    Lanes { x: wg / y, y, inner: true, splits: 1, tree: true }
}

/// Lanes that combine partial sums of columns which lie together.
pub(crate) fn column_lanes(state_bytes: usize, caps: &Caps) -> Lanes {
    let wg = 256.min(caps.max_invocations).min(fitting(caps.shared_bytes / state_bytes.max(1)));
    let x = 8.min(wg);
    Lanes { x, y: wg / x, inner: false, splits: 1, tree: true }
}

/// Workgroups that take rows of `units` units in turns and sum columns meanwhile, and how each is laid out; `None`: the
/// columns are a kernel of their own.
pub(crate) fn row_sums(rows: usize, units: usize, caps: &Caps) -> Option<(u32, RowLanes)> {
    if software(caps) || !caps.allows(Fast::ColumnSums) {
        return None;
    }
    // An H200 holds two such workgroups a multiprocessor. The gradients of a layer norm of 16384 x 4096 take it 0.24 ms
    // by 256 lanes, 0.29 by 512, 0.55 by 1024 and one workgroup; 0.36 by kernels of their own.
    let teams = 264;
    let most = 256.min(caps.max_invocations);
    let mut best: Option<(usize, RowLanes)> = None;
    for held in 1..=4u32 {
        let y = (units.div_ceil(held as usize)).next_power_of_two() as u32;
        let waste = (y * held) as usize - units;
        if y <= most && best.is_none_or(|(w, _)| waste < w) {
            best = Some((waste, RowLanes { x: most / y, y, inner: true, held }));
        }
    }
    let (_, lanes) = best?;
    // Fewer than four rows each, and what the second launch reads is no longer little.
    (rows >= 4 * (teams * lanes.x) as usize).then_some((teams, lanes))
}

/// Lanes of a workgroup that runs along a line of `n` elements, `each` neighbours a lane; 0: one
/// invocation runs along a line.
pub(crate) fn scan_lanes(
    lines: usize,
    inner: usize,
    n: usize,
    state_bytes: usize,
    each: u32,
    caps: &Caps,
) -> u32 {
    if software(caps) {
        // A barrier is a switch of coroutines for every invocation.
        return 0;
    }
    // An H200 holds 270 000 invocations at once; from an eighth of them on, lines of their own keep it busy
    // where neighbours lie together. Lines that lie apart are read by whole workgroups.
    if n <= 64 || lines >= 1 << 15 && (inner >= 32 || n <= 256) {
        return 0;
    }
    let most = 256.min(caps.max_invocations).min(fitting(caps.shared_bytes / state_bytes.max(1)));
    (n.div_ceil(each as usize).next_power_of_two() as u32).clamp(32.min(most), most)
}

/// Elements of a line that one launch of a scan runs along, `lanes` as [`scan_lanes`] gives them.
pub(crate) fn scan_span(lanes: u32, each: u32, caps: &Caps) -> usize {
    let tile = (lanes * each).max(1) as usize;
    // The round that ends a loop counts: a line takes up to six an element, a tile four for each element of
    // a lane and 56 around them.
    let steps = rounds(caps) / if lanes == 0 { 6 } else { 4 * each as usize + 56 };
    steps.saturating_mul(tile)
}

/// Elements of a line that are put in order by counting; longer lines are merged of such runs.
pub(crate) fn sort_run(n: usize, caps: &Caps) -> usize {
    // Counting takes a comparison for each pair of a run, merging a launch for each doubling.
    let (most, run) = if software(caps) { (128, 32) } else { (256, 128) };
    if n <= most { n } else { run }
}

/// Invocations that work on one matrix of `elems` elements.
pub(crate) fn matrix_lanes(elems: usize, caps: &Caps) -> u32 {
    // A CPU driver runs lanes one after another, as many at once as its subgroup; barriers are dear there. But
    // llvmpipe leaves loops after 65535 turns, so that large matrices need all lanes that there are.
    let wanted = match elems {
        0..=1024 if software(caps) => caps.subgroup.clamp(1, 8),
        0..=64 => 32,
        65..=1024 => 64,
        _ => 256,
    };
    wanted.min(caps.max_invocations)
}

/// Floats of workgroup memory that a kernel declares to hold `words`, beside `spare` bytes; `None` when
/// they do not fit. Few sizes, so that few kernels are compiled; small ones, so that several workgroups
/// share a multiprocessor.
pub(crate) fn matrix_room(words: usize, spare: usize, caps: &Caps) -> Option<usize> {
    [256, 1024, 4096, 8192].into_iter().find(|room| words <= *room && room * 4 + spare <= caps.shared_bytes)
}

/// Columns of a right side that one workgroup solves for, with a matrix of `n` rows.
pub(crate) fn matrix_columns(n: usize, k: usize) -> usize {
    // 32 columns fill a workgroup; more of them go to further workgroups. Tall ones take fewer, so that they
    // stay in workgroup memory.
    k.min(32).min((4096 / n.max(1)).max(1))
}

/// Whether a kernel that takes `turns` turns in all its loops runs to its end.
pub(crate) fn runs_to_end(turns: usize, caps: &Caps) -> bool {
    // llvmpipe counts the turns of all loops of an invocation together, and leaves them silently at 65535.
    !software(caps) || turns < 65_000
}

/// Features up to which one kernel accumulates the gradients of keys and of values.
pub(crate) const ATTENTION_BOTH: usize = 64;

/// Features, rounded up, that an invocation of an attention accumulates; `None` where the device has too little.
pub(crate) fn attention_class(width: usize, resident: bool, caps: &Caps) -> Option<usize> {
    // 128 invocations; own and other rows of 32 features each, 8 KiB, and 64 x 64 weights, 16 KiB. Own rows that
    // stay take 8 KiB more, and a place for the rows' extremes.
    let bytes = if resident { 43_008 } else { 32_768 };
    let fits = caps.max_invocations >= 128 && caps.shared_bytes >= bytes;
    [32, 64, 128, 256].into_iter().find(|class| width <= *class && fits)
}

/// Rounds of all loops of an attention's invocation that walks over `rows` rows.
pub(crate) fn attention_turns(rows: usize, features: usize) -> usize {
    // Of a tile of 64 rows: 13 for 32 features of each product, 64 rows and their staging for each sum.
    rows.div_ceil(64) * (2 * features.div_ceil(32) * 14 + 2 * 100)
}

/// Whose rows a kernel of an attention owns, and what for.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Owned {
    /// Queries, for the result.
    Result,
    /// Queries, for their gradient.
    Queries,
    /// Keys, for theirs and that of values.
    Keys,
}

/// A workgroup of an attention on units for matrices.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Strips {
    /// Rows that a subgroup owns: 16 or 32.
    pub(crate) rows: usize,
    /// Subgroups.
    pub(crate) warps: usize,
    /// Rows of the other side at a time.
    pub(crate) wide: usize,
}

/// The workgroup of an attention on units for heads of so many features: registers hold a subgroup's sums and kept rows, and
/// the scores of its rows with a tile's, and 48 KiB the strips and two tiles.
pub(crate) fn attention_strips(owned: Owned, features: usize, split: bool) -> Strips {
    let form = |rows, warps, wide| Strips { rows, warps, wide };
    match (owned, features) {
        // Two parts of every number: half as many rows at a time.
        _ if split => form(16, 4, 32),
        (Owned::Result, ..=64) => form(16, 4, 32),
        (Owned::Queries, ..=64) => form(16, 4, 64),
        (Owned::Keys, ..=64) => form(16, 4, 32),
        _ => form(16, 4, 32),
    }
}
