// Scan by lines: one invocation runs along one line, or along a chunk of one.
//
// Math:     y[o, t, i] = join(y[o, t - 1, i], x[o, t, i]) for t ascending (or descending).
// Shapes:   row-major (outer, n, inner); `lines` is outer * inner; t from `begin` to `stop`, after a launch
//           that ended at `begin`, in `chunks` chunks of `span`.
// Dispatch: 1-D, folded; one invocation a chunk. A launch that stores nothing leaves the chunks' totals in scratch
//           memory, for one that begins each chunk with those before it.
// Numerics: blocks of BLOCK elements are joined on their own, then BLOCK of them, then those before:
//           rounding errors of sums grow with n / BLOCK^2 + 2 BLOCK, not with n. Products keep BLOCK 1, so
//           that what overflows is what the definition's own order overflows at. Ends with the same bits
//           on every run.
// Cost:     reads and writes every element once; memory bound when neighbouring lines lie together.
// Source:   own. Regions between `//[ name` and `//]` are replaced by the printer.

//[ declare
struct Params { w0: u32, w1: u32, w2: u32, w3: u32, w4: u32, w5: u32, w6: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> b0: array<f32>;
@group(0) @binding(1) var<storage, read_write> b1: array<f32>;
const WG = 256u;
const BLOCK = 64u;
struct State { v: f32 }
fn none() -> State {
    return State(0.0);
}
fn join(x: State, w: State) -> State {
    return State(x.v + w.v);
}
//]

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let spot = (group.y * groups.x + group.x) * WG + lane;
    //[ sizes
    let lines = params.w0;
    let n = params.w1;
    let inner = params.w2;
    let begin = params.w3;
    let stop = params.w4;
    let chunks = params.w5;
    let span = params.w6;
    //]
    let line = spot / chunks;
    let chunk = spot - line * chunks;
    if (line < lines) {
        let opening = min(begin + chunk * span, stop);
        let until = min(opening + span, stop);
        let first = (line / inner) * n * inner + line % inner;
        var before = none();
        //[ before
        //]
        for (var base = opening; base < until; base += BLOCK * BLOCK) {
            let end = min(base + BLOCK * BLOCK, until);
            var blocks = none();
            for (var start = base; start < end; start += BLOCK) {
                let last = min(start + BLOCK, end);
                var block = none();
                for (var t = start; t < last; t += 1u) {
                    //[ place
                    let p = t;
                    //]
                    let at = first + p * inner;
                    //[ load
                    let x = State(b0[at]);
                    //]
                    block = join(block, x);
                    let y = join(before, join(blocks, block));
                    //[ store
                    b1[at] = y.v;
                    //]
                }
                blocks = join(blocks, block);
            }
            before = join(before, blocks);
        }
        //[ total
        //]
    }
}
