// Scan by lines: one invocation runs along one line.
//
// Math:     y[o, t, i] = join(y[o, t - 1, i], x[o, t, i]) for t ascending (or descending).
// Shapes:   row-major (outer, n, inner); `lines` is outer * inner; t from `begin` to `stop`, after a launch
//           that ended at `begin`.
// Dispatch: 1-D, folded; one invocation a line, neighbours in neighbouring lines.
// Numerics: blocks of BLOCK elements are joined on their own, then BLOCK of them, then those before:
//           rounding errors of sums grow with n / BLOCK^2 + 2 BLOCK, not with n. Products keep BLOCK 1, so
//           that what overflows is what the definition's own order overflows at. Ends with the same bits
//           on every run.
// Cost:     reads and writes every element once; memory bound when neighbouring lines lie together.
// Source:   own. Regions between `//[ name` and `//]` are replaced by the printer.

//[ declare
struct Params { w0: u32, w1: u32, w2: u32, w3: u32, w4: u32 }
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
    let line = (group.y * groups.x + group.x) * WG + lane;
    //[ sizes
    let lines = params.w0;
    let n = params.w1;
    let inner = params.w2;
    let begin = params.w3;
    let stop = params.w4;
    //]
    if (line < lines) {
        let first = (line / inner) * n * inner + line % inner;
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
        for (var base = begin; base < stop; base += BLOCK * BLOCK) {
            let end = min(base + BLOCK * BLOCK, stop);
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
    }
}
