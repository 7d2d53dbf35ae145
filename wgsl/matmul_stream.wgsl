// Matrix product of a few rows: the right factor is read once, and that takes its time. A workgroup owns a few
// vectors of columns; slices of its invocations read different steps of K, many loads on their way at once, and
// their sums meet in workgroup memory.
//
// Math:     c[z, m, n] = g(sum over k of a[z, m, k] * b[z, k, n]).
// Shapes:   few rows, any N, K and strides; edges read clamped columns.
// Dispatch: (columns / (4 QUADS), rows of a tile, batch * splits); QUADS * SLICES invocations. `splits` > 1
//           cuts K, and the sums go to scratch, a plane each.
// Numerics: f32, ascending k by fused multiply-add within a slice, slices by a tree.
// Cost:     reads both factors once.
// Source:   own. Regions between `//[ name` and `//]` are replaced, unrolled, by the printer.

//[ declare
struct Params { w0: u32, w1: u32, w2: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> b0: array<f32>;
@group(0) @binding(1) var<storage, read> b1: array<f32>;
@group(0) @binding(2) var<storage, read_write> b2: array<f32>;
const QUADS = 8u;
const SLICES = 32u;
const STEP = 1u;
const ROWS = 1u;
fn finish(z: u32, m: u32, n: u32, value: vec4<f32>) {
    for (var j = 0u; j < 4u; j += 1u) {
        if (m < params.w0 && n + j < params.w1) {
            b2[(z * params.w0 + m) * params.w1 + n + j] = value[j];
        }
    }
}
//]
const WG = QUADS * SLICES;
var<workgroup> sums: array<vec4<f32>, WG * ROWS>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let slice = lane / QUADS;
    //[ place
    let plane = group.z;
    let z = plane;
    let rows = params.w0;
    let columns = params.w1;
    let row0 = group.y;
    let begin = 0u;
    let end = params.w2;
    let col = (group.x * QUADS + lane % QUADS) * 4u;
    //]
    //[ start
    var c0 = vec4<f32>();
    //]
    for (var k0 = begin + slice * STEP; k0 < end; k0 += SLICES * STEP) {
        //[ multiply
        for (var j = 0u; j < 4u; j += 1u) {
            let n = min(col + j, columns - 1u);
            c0[j] = fma(b0[(z * rows + row0) * end + k0], b1[(z * end + k0) * columns + n], c0[j]);
        }
        //]
    }
    //[ gather
    sums[lane] = c0;
    //]
    workgroupBarrier();
    for (var half = SLICES / 2u; half > 0u; half /= 2u) {
        if (slice < half) {
            for (var r = 0u; r < ROWS; r += 1u) {
                sums[r * WG + lane] += sums[r * WG + lane + half * QUADS];
            }
        }
        workgroupBarrier();
    }
    if (slice == 0u) {
        //[ store
        finish(plane, row0, col, sums[lane]);
        //]
    }
}
