// Cholesky factors of small matrices: one workgroup a matrix.
//
// Math:     y y^T = x with y lower triangular, from the lower half of x; column after column:
//           y[k, k] = sqrt(x[k, k]), y[i, k] = x[i, k] / y[k, k], x[i, j] -= y[i, k] y[j, k].
// Shapes:   row-major (count, n, n) to the same.
// Dispatch: 1-D, folded; one workgroup a matrix, which lies in workgroup memory where it fits, else in
//           scratch memory by atomics.
// Numerics: f32, backward stable; a pivot that is not over 0 (or NaN) makes the matrix's lower half NaN. The
//           same bits on every run.
// Cost:     n^3 / 3 multiplications a matrix, 3 n barriers.
// Source:   Golub and Van Loan, "Matrix Computations", 4.2. Regions between `//[ name` and `//]` are
//           replaced by the printer.

//[ declare
struct Params { w0: u32, w1: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> b0: array<f32>;
@group(0) @binding(1) var<storage, read_write> b1: array<f32>;
const WG = 64u;
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
    //]
    // Workgroups beyond the last matrix go along with it, and write nothing.
    let which = min(slot, count - 1u);
    live = slot < count;
    let size = n * n;
    home = which * size;
    for (var e = lane; e < size; e += WG) {
        let at = home + e;
        //[ load
        let x = b0[at];
        //]
        put(e, x);
    }
    sync();
    var good = true;
    for (var k = 0u; k < n; k += 1u) {
        let pivot = take(k * n + k);
        good = good && pivot > 0.0;
        let root = sqrt(pivot);
        sync();
        for (var i = k + lane; i < n; i += WG) {
            put(i * n + k, select(take(i * n + k) / root, root, i == k));
        }
        sync();
        let left = n - k - 1u;
        for (var e = lane; e < left * left; e += WG) {
            let i = k + 1u + e / left;
            let j = k + 1u + e % left;
            if (j <= i) {
                put(i * n + j, take(i * n + j) - take(i * n + k) * take(j * n + k));
            }
        }
        sync();
    }
    for (var e = lane; e < size; e += WG) {
        var y = 0.0;
        if (e % n <= e / n) {
            y = bitcast<f32>(select(0x7fc00000u, bitcast<u32>(take(e)), good));
        }
        let at = home + e;
        if (live) {
            //[ store
            b1[at] = y;
            //]
        }
    }
}
