// Scan by tiles: a workgroup runs along one line, tile after tile.
//
// Math:     y[o, t, i] = join(y[o, t - 1, i], x[o, t, i]) for t ascending (or descending).
// Shapes:   row-major (outer, n, inner); `lines` is outer * inner; t from `begin` to `stop`, after a launch
//           that ended at `begin`.
// Dispatch: 1-D, folded; one workgroup a line. A tile is WG * EACH elements, EACH neighbours a lane.
// Numerics: inside a tile the lanes meet as a tree; tiles follow each other, so rounding errors grow with
//           n / (WG * EACH). Ends with the same bits on every run.
// Cost:     reads every element twice (the second time from the cache), writes it once; 2 log2(WG) + 2
//           barriers a tile.
// Source:   Hillis and Steele, "Data parallel algorithms", 1986. Regions between `//[ name` and `//]`
//           are replaced by the printer.

//[ declare
struct Params { w0: u32, w1: u32, w2: u32, w3: u32, w4: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> b0: array<f32>;
@group(0) @binding(1) var<storage, read_write> b1: array<f32>;
const WG = 256u;
const EACH = 8u;
struct State { v: f32 }
fn none() -> State {
    return State(0.0);
}
fn join(x: State, w: State) -> State {
    return State(x.v + w.v);
}
//]
var<workgroup> met: array<State, WG>;

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
    //]
    // Workgroups beyond the last line go along with it, and write nothing.
    let line = min(slot, lines - 1u);
    let first = (line / inner) * n * inner + line % inner;
    let live = slot < lines;
    var before = none();
    if (begin > 0u) {
        let t = begin - 1u;
        //[ place
        let p = t;
        //]
        let at = first + p * inner;
        //[ resume
        before = State(b1[at]);
        //]
    }
    for (var base = begin; base < stop; base += WG * EACH) {
        let start = min(base + lane * EACH, stop);
        let end = min(start + EACH, stop);
        var own = none();
        for (var t = start; t < end; t += 1u) {
            //[ place
            let p = t;
            //]
            let at = first + p * inner;
            //[ load
            let x = State(b0[at]);
            //]
            own = join(own, x);
        }
        met[lane] = own;
        workgroupBarrier();
        for (var apart = 1u; apart < WG; apart = apart << 1u) {
            var other = none();
            if (lane >= apart) {
                other = met[lane - apart];
            }
            workgroupBarrier();
            own = join(other, own);
            met[lane] = own;
            workgroupBarrier();
        }
        var left = none();
        if (lane > 0u) {
            left = met[lane - 1u];
        }
        left = join(before, left);
        before = join(before, met[WG - 1u]);
        workgroupBarrier();
        own = none();
        for (var t = start; t < end; t += 1u) {
            //[ place
            let p = t;
            //]
            let at = first + p * inner;
            //[ load
            let x = State(b0[at]);
            //]
            own = join(own, x);
            let y = join(left, own);
            if (live) {
                //[ store
                b1[at] = y.v;
                //]
            }
        }
    }
}
