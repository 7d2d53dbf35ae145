// Elimination in small matrices: systems of equations and determinants, one workgroup a matrix.
//
// Math:     Gauss with row exchanges on (a | b): the pivot of column c is the largest element left in it.
//           SOLVE: x with a x = b, from the last row up. Else: sign, log|det|, det from the pivots.
// Shapes:   row-major a (count, n, n), b (count, n, w - n) to x (count, n, w - n); or to (count, COUNT),
//           the part of (sign, log|det|, det) from FIRST on.
// Dispatch: 1-D, folded; one workgroup a matrix, which lies with b in workgroup memory where they fit, else
//           in scratch memory by atomics.
// Numerics: f32, backward stable; of equal pivots the first row. A pivot of 0 or NaN: all of x is NaN; a
//           pivot of 0: (0, -inf, 0). The same bits on every run.
// Cost:     n^3 / 3 + n^2 (w - n) multiplications a matrix, 5 n barriers (7 n where SOLVE).
// Source:   Golub and Van Loan, "Matrix Computations", 3.4. Regions are replaced by the printer.

//[ declare
struct Params { w0: u32, w1: u32, w2: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> b0: array<f32>;
@group(0) @binding(1) var<storage, read> b1: array<f32>;
@group(0) @binding(2) var<storage, read_write> b2: array<f32>;
const WG = 64u;
const SOLVE = true;
const FIRST = 0u;
const COUNT = 2u;
var<workgroup> memory: array<f32, 4096>;
fn take(i: u32) -> f32 { return memory[i]; }
fn put(i: u32, x: f32) { memory[i] = x; }
fn sync() { workgroupBarrier(); }
//]
var<workgroup> places: array<u32, WG>;
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
    let w = params.w2;
    //]
    // Workgroups beyond the last one write nothing.
    let which = min(slot, count - 1u);
    live = slot < count;
    home = which * n * w;
    for (var e = lane; e < n * w; e += WG) {
        let row = which * n + e / w;
        let j = e % w;
        var x = 0.0;
        if (j < n) {
            let at = row * n + j;
            //[ left
            x = b0[at];
            //]
        } else {
            let at = row * (w - n) + j - n;
            //[ right
            x = b1[at];
            //]
        }
        put(e, x);
    }
    sync();
    var good = true;
    var singular = false;
    var sign = 1.0;
    var logs = 0.0;
    var det = 1.0;
    for (var k = 0u; k < n; k += 1u) {
        var place = min(k + lane, n - 1u);
        for (var i = k + lane + WG; i < n; i += WG) {
            place = select(place, i, abs(take(i * w + k)) > abs(take(place * w + k)));
        }
        places[lane] = place;
        workgroupBarrier();
        place = places[0];
        for (var l = 1u; l < min(WG, n - k); l += 1u) {
            let x = abs(take(places[l] * w + k));
            let top = abs(take(place * w + k));
            place = select(place, places[l], x > top || (x == top && places[l] < place));
        }
        sync();
        if (place != k) {
            for (var j = k + lane; j < w; j += WG) {
                let x = take(k * w + j);
                put(k * w + j, take(place * w + j));
                put(place * w + j, x);
            }
            sign = -sign;
            det = -det;
        }
        sync();
        let pivot = take(k * w + k);
        good = good && abs(pivot) > 0.0;
        singular = singular || pivot == 0.0;
        sign = select(sign, -sign, pivot < 0.0);
        logs += log(abs(pivot));
        det *= pivot;
        for (var i = k + 1u + lane; i < n; i += WG) {
            put(i * w + k, take(i * w + k) / pivot);
        }
        sync();
        let left = w - k - 1u;
        for (var e = lane; e < (n - k - 1u) * left; e += WG) {
            let i = k + 1u + e / left;
            let j = k + 1u + e % left;
            put(i * w + j, take(i * w + j) - take(i * w + k) * take(k * w + j));
        }
        sync();
    }
    let columns = w - n;
    if (SOLVE) {
        for (var s = 0u; s < n; s += 1u) {
            let r = n - 1u - s;
            let pivot = take(r * w + r);
            for (var c = lane; c < columns; c += WG) {
                put(r * w + n + c, take(r * w + n + c) / pivot);
            }
            sync();
            for (var e = lane; e < r * columns; e += WG) {
                let i = e / columns;
                let c = n + e % columns;
                put(i * w + c, take(i * w + c) - take(i * w + r) * take(r * w + c));
            }
            sync();
        }
        for (var e = lane; e < n * columns; e += WG) {
            let x = take((e / columns) * w + n + e % columns);
            let y = bitcast<f32>(select(0x7fc00000u, bitcast<u32>(x), good));
            let at = which * n * columns + e;
            if (live) {
                //[ solution
                b2[at] = y;
                //]
            }
        }
    } else if (lane < COUNT && live) {
        let what = FIRST + lane;
        let whole = bitcast<u32>(select(select(sign, logs, what == 1u), det, what == 2u));
        let none = select(0u, 0xff800000u, what == 1u);
        let y = bitcast<f32>(select(select(0x7fc00000u, whole, good), none, singular));
        let at = which * COUNT + lane;
        //[ determinant
        b2[at] = y;
        //]
    }
}
