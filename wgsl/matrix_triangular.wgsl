// Systems with a triangular matrix: one workgroup a matrix and block of columns.
//
// Math:     x with a x = b, a triangular: x[r] = (b[r] - sum over the rows done before of a[r, t] x[t]) / a[r, r],
//           from the first row, or from the last where UPPER; a[r, r] counts as 1 where UNIT.
// Shapes:   row-major a (count, n, n), b (count, n, k) to x (count, n, k); blocks of `wide` columns.
// Dispatch: 1-D, folded; one workgroup a matrix and block of columns, which lie in workgroup memory where
//           they fit, else in scratch memory by atomics.
// Numerics: f32, backward stable; a 0 on the diagonal gives results that are not finite. The same bits on
//           every run.
// Cost:     n^2 k / 2 multiplications a matrix, 2 n barriers; reads half of a once a block.
// Source:   own. Regions between `//[ name` and `//]` are replaced by the printer.

//[ declare
struct Params { w0: u32, w1: u32, w2: u32, w3: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> b0: array<f32>;
@group(0) @binding(1) var<storage, read> b1: array<f32>;
@group(0) @binding(2) var<storage, read_write> b2: array<f32>;
const WG = 64u;
const UPPER = false;
const UNIT = false;
var<workgroup> memory: array<f32, 4096>;
fn take(i: u32) -> f32 {
    return memory[i];
}
fn put(i: u32, x: f32) {
    memory[i] = x;
}
fn sync() {
    workgroupBarrier();
}
//]
var<private> home: u32;
var<private> live: bool;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let slot = group.y * groups.x + group.x;
    //[ sizes
    let count = params.w0;
    let n = params.w1;
    let k = params.w2;
    let wide = params.w3;
    //]
    let blocks = (k + wide - 1u) / wide;
    // Workgroups beyond the last block go along with it, and write nothing.
    let which = min(slot, count * blocks - 1u);
    live = slot < count * blocks;
    home = which * n * wide;
    let matrix = which / blocks;
    let first = (which % blocks) * wide;
    let have = min(wide, k - first);
    for (var e = lane; e < n * have; e += WG) {
        let at = (matrix * n + e / have) * k + first + e % have;
        //[ right
        let x = b1[at];
        //]
        put(e, x);
    }
    sync();
    for (var s = 0u; s < n; s += 1u) {
        let r = select(s, n - 1u - s, UPPER);
        if (!UNIT) {
            let at = (matrix * n + r) * n + r;
            //[ pivot
            let pivot = b0[at];
            //]
            for (var c = lane; c < have; c += WG) {
                put(r * have + c, take(r * have + c) / pivot);
            }
            sync();
        }
        let rows = n - 1u - s;
        for (var e = lane; e < rows * have; e += WG) {
            let i = e / have + select(r + 1u, 0u, UPPER);
            let c = e % have;
            let at = (matrix * n + i) * n + r;
            //[ left
            let x = b0[at];
            //]
            put(i * have + c, take(i * have + c) - x * take(r * have + c));
        }
        sync();
    }
    for (var e = lane; e < n * have; e += WG) {
        let y = take(e);
        let at = (matrix * n + e / have) * k + first + e % have;
        if (live) {
            //[ store
            b2[at] = y;
            //]
        }
    }
}
