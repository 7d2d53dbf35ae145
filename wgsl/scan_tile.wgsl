// Scan by tiles: a workgroup runs along a line, or along a chunk of one, tile after tile.
//
// Math:     y[o, t, i] = join(y[o, t - 1, i], x[o, t, i]) for t ascending (or descending).
// Shapes:   row-major (outer, n, inner); `lines` is outer * inner; t from `begin` to `stop`, after a launch
//           that ended at `begin`, in `chunks` chunks of `span`.
// Dispatch: 1-D, folded; one workgroup a chunk. A tile is WG * EACH elements, EACH neighbours a lane; it lies in
//           workgroup memory, so that neighbouring lanes read and write neighbours. A launch that does not WRITE
//           leaves the chunks' totals in scratch memory, for one that begins each chunk with those before it.
// Numerics: lanes are joined by 16, then these; tiles follow each other, so rounding errors grow with
//           span / (WG * EACH) and the chunks. Ends with the same bits on every run.
// Cost:     reads and writes every element once, for the totals reads it once more; 5 barriers a tile.
// Source:   Dotsenko et al., "Fast scan algorithms on graphics processors", 2008; the text is our own. Regions
//           between `//[ name` and `//]` are replaced by the printer.

//[ declare
struct Params { w0: u32, w1: u32, w2: u32, w3: u32, w4: u32, w5: u32, w6: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> b0: array<f32>;
@group(0) @binding(1) var<storage, read_write> b1: array<f32>;
const WG = 256u;
const EACH = 8u;
const WRITE = true;
struct State { v: f32 }
fn none() -> State {
    return State(0.0);
}
fn join(x: State, w: State) -> State {
    return State(x.v + w.v);
}
//]
var<workgroup> met: array<State, WG>;
var<workgroup> blocks: array<State, WG / 16u>;
var<workgroup> staged: array<State, WG * EACH + WG>;

// A spare element after each lane's, so that lanes meet different banks.
fn keep(i: u32) -> u32 { return i + i / EACH; }

// What the lanes before this one give, joined.
fn scanned(lane: u32, own: State) -> State {
    met[lane] = own;
    workgroupBarrier();
    if (lane < WG / 16u) {
        var sum = none();
        for (var i = 0u; i < 16u; i += 1u) {
            let next = met[lane * 16u + i];
            met[lane * 16u + i] = sum;
            sum = join(sum, next);
        }
        blocks[lane] = sum;
    }
    workgroupBarrier();
    var left = none();
    for (var i = 0u; i < lane / 16u; i += 1u) { left = join(left, blocks[i]); }
    return join(left, met[lane]);
}

// What all lanes give, after `scanned`.
fn whole() -> State {
    var sum = none();
    for (var i = 0u; i < WG / 16u; i += 1u) { sum = join(sum, blocks[i]); }
    return sum;
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let slot = group.y * groups.x + group.x;
    //[ sizes
    let lines = params.w0;
    let n = params.w1;
    let inner = params.w2;
    let begin = params.w3;
    let stop = params.w4;
    let chunks = params.w5;
    let span = params.w6;
    //]
    // Workgroups beyond the last chunk go along with it, and write nothing.
    let live = slot < lines * chunks;
    let spot = min(slot, lines * chunks - 1u);
    let line = spot / chunks;
    let chunk = spot - line * chunks;
    let first = (line / inner) * n * inner + line % inner;
    let start = min(begin + chunk * span, stop);
    let until = min(start + span, stop);
    var before = none();
    //[ before
    //]
    for (var base = start; base < until; base += WG * EACH) {
        for (var turn = 0u; turn < EACH; turn += 1u) {
            let i = turn * WG + lane;
            let t = base + i;
            var x = none();
            if (t < until) {
                //[ place
                let p = t;
                //]
                let at = first + p * inner;
                //[ load
                x = State(b0[at]);
                //]
            }
            staged[keep(i)] = x;
        }
        workgroupBarrier();
        var own = none();
        for (var j = 0u; j < EACH; j += 1u) { own = join(own, staged[keep(lane * EACH + j)]); }
        let left = join(before, scanned(lane, own));
        before = join(before, whole());
        if (WRITE) {
            own = none();
            for (var j = 0u; j < EACH; j += 1u) {
                own = join(own, staged[keep(lane * EACH + j)]);
                staged[keep(lane * EACH + j)] = join(left, own);
            }
        }
        workgroupBarrier();
        for (var turn = 0u; turn < EACH; turn += 1u) {
            let t = base + turn * WG + lane;
            if (WRITE && live && t < until) {
                //[ place
                let p = t;
                //]
                let at = first + p * inner;
                let y = staged[keep(turn * WG + lane)];
                //[ store
                b1[at] = y.v;
                //]
            }
        }
        workgroupBarrier();
    }
    //[ total
    //]
}
