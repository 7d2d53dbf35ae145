// Matrix product straight from storage: an invocation owns a few rows and vectors of columns of the
// result, without workgroup memory. For drivers that run on the CPU, where a barrier is a switch of
// coroutines, caches do the staging, and neighbouring invocations are the lanes of a vector.
//
// Math:     c[z, m, n] = g(sum over k of a[z, m, k] * b[z, k, n]).
// Shapes:   any M, N, K and strides; edges read clamped rows and columns.
// Dispatch: 1-D in x over tiles of the result, columns first; z is the batch.
// Numerics: f32, ascending k by fused multiply-add.
// Cost:     2 M N K operations; TM + TN loads feed TM * TN products a step of k.
// Source:   own. Regions between `//[ name` and `//]` are replaced, unrolled, by the printer.

//[ declare
struct Params { w0: u32, w1: u32, w2: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> b0: array<f32>;
@group(0) @binding(1) var<storage, read> b1: array<f32>;
@group(0) @binding(2) var<storage, read_write> b2: array<f32>;
const WG = 64u;
const STEP = 1u;
fn finish(z: u32, m: u32, n: u32, value: vec4<f32>) {
    for (var j = 0u; j < 4u; j += 1u) {
        if (m < params.w0 && n + j < params.w1) {
            b2[(z * params.w0 + m) * params.w1 + n + j] = value[j];
        }
    }
}
//]

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let at = (group.y * groups.x + group.x) * WG + lane;
    //[ place
    let z = group.z;
    let rows = params.w0;
    let columns = params.w1;
    let end = params.w2;
    let across = (columns + 3u) / 4u;
    let count = across * rows;
    let row0 = at / across;
    let col0 = (at % across) * 4u;
    //]
    if (at < count) {
        //[ start
        var c = vec4<f32>();
        //]
        for (var k0 = 0u; k0 < end; k0 += STEP) {
            //[ multiply
            for (var j = 0u; j < 4u; j += 1u) {
                let n = min(col0 + j, columns - 1u);
                c[j] = fma(b0[(z * rows + row0) * end + k0], b1[(z * end + k0) * columns + n], c[j]);
            }
            //]
        }
        //[ store
        finish(z, row0, col0, c);
        //]
    }
}
