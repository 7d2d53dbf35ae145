// Sorting by counting: each element finds its place among the elements of its run.
//
// Math:     to[place] = t, place = start of the run + |{j in the run: x[j] before x[t]}|; equal elements by
//           index.
// Shapes:   row-major (outer, n, inner); runs of `run` elements along n, the last may be shorter.
// Dispatch: 1-D, folded; one invocation an element.
// Numerics: exact; elements are compared as whole numbers in the same order, NaN the largest, both zeros one.
// Cost:     `run` reads an element, which the neighbours of a run share through the cache.
// Source:   own. Regions between `//[ name` and `//]` are replaced by the printer.

//[ declare
struct Params { w0: u32, w1: u32, w2: u32, w3: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> b0: array<u32>;
@group(0) @binding(1) var<storage, read_write> b1: array<i32>;
const WG = 256u;
fn number(at: u32) -> u32 {
    return b0[at];
}
fn before(x: u32, w: u32, earlier: bool) -> bool {
    return x < w || (x == w && earlier);
}
//]

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let e = (group.y * groups.x + group.x) * WG + lane;
    //[ sizes
    let count = params.w0;
    let n = params.w1;
    let inner = params.w2;
    let run = params.w3;
    //]
    if (e < count) {
        let row = e / inner;
        let t = row % n;
        let first = e - t * inner;
        let own = number(e);
        let start = t - t % run;
        let end = min(start + run, n);
        var place = start;
        for (var j = start; j < end; j += 1u) {
            let other = number(first + j * inner);
            place += select(0u, 1u, before(other, own, j < t));
        }
        let to = first + place * inner;
        //[ store
        b1[to] = bitcast<i32>(t);
        //]
    }
}
