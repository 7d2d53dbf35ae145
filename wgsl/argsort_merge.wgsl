// Merging of ordered runs in pairs: each element finds its place by a binary search in the other run.
//
// Math:     to[place] = t, place = start of the pair + place in the own run + |{j in the other run: x[j]
//           before x[t]}|; equal elements by index.
// Shapes:   row-major (outer, n, inner); runs of `run` elements along n, the last may be shorter or alone.
// Dispatch: 1-D, folded; one invocation an element.
// Numerics: exact; elements are compared as whole numbers in the same order, NaN the largest, both zeros one.
// Cost:     log2(run) dependent reads of an index and an element.
// Source:   own. Regions between `//[ name` and `//]` are replaced by the printer.

//[ declare
struct Params { w0: u32, w1: u32, w2: u32, w3: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> b0: array<u32>;
@group(0) @binding(1) var<storage, read_write> b1: array<i32>;
@group(0) @binding(2) var<storage, read> b2: array<u32>;
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
        let p = row % n;
        let first = e - p * inner;
        //[ own
        let t = b2[e];
        //]
        let own = number(first + t * inner);
        let mine = p / run;
        let side = min((mine ^ 1u) * run, n);
        // Elements of the other run before this one: between `low` and `high`.
        var low = 0u;
        var high = min(run, n - side);
        while (low < high) {
            let middle = (low + high) >> 1u;
            //[ other
            let j = b2[first + (side + middle) * inner];
            //]
            let other = number(first + j * inner);
            if (before(other, own, j < t)) {
                low = middle + 1u;
            } else {
                high = middle;
            }
        }
        let place = (mine - (mine & 1u)) * run + (p - mine * run) + low;
        let to = first + place * inner;
        //[ store
        b1[to] = bitcast<i32>(t);
        //]
    }
}
