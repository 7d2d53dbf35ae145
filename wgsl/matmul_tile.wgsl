// Matrix product staged through workgroup memory: a workgroup owns a BM x BN tile of the result, an
// invocation TM x TN of it (rows in strips of 4, columns in vectors of 4); the next tiles of A and B
// wait in registers while the present ones are multiplied.
//
// Math:     c[z, m, n] = g(sum over k of a[z, m, k] * b[z, k, n]).
// Shapes:   any M, N, K and strides; edges read clamped rows and columns, K past its end reads 0.
// Dispatch: (tiles of N, tiles of M, batch * splits); BM / TM * BN / TN invocations. `splits` > 1 cuts
//           K, and the sums go to scratch, a plane each.
// Numerics: f32, ascending k by fused multiply-add within a split.
// Cost:     2 M N K operations; 44 TFLOP/s of an H200's 67 at 128 x 128 x 16 with 8 x 8.
// Source:   own. Regions between `//[ name` and `//]` are replaced, unrolled, by the printer.

//[ declare
struct Params { w0: u32, w1: u32, w2: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> b0: array<f32>;
@group(0) @binding(1) var<storage, read> b1: array<f32>;
@group(0) @binding(2) var<storage, read_write> b2: array<f32>;
const WG = 256u;
var<workgroup> ta: array<f32, 1088>;
var<workgroup> tb: array<vec4<f32>, 256>;
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
    @builtin(local_invocation_index) lane: u32,
) {
    //[ place
    let rows = params.w0;
    let columns = params.w1;
    let row0 = group.y * 64u;
    let col0 = group.x * 64u;
    let z = group.z;
    let part = 0u;
    let begin = 0u;
    let end = params.w2;
    let tx = lane % 16u;
    let ty = lane / 16u;
    //]
    //[ start
    var c: array<vec4<f32>, 4>;
    var wa: array<f32, 4>;
    var wb: array<f32, 4>;
    //]
    //[ load_first
    //]
    for (var k0 = begin; k0 < end; k0 += 16u) {
        //[ stage
        for (var i = 0u; i < 4u; i += 1u) {
            let ka = k0 + lane % 16u;
            let kb = k0 + lane / 64u + i * 4u;
            let ma = min(row0 + lane / 16u + i * 16u, rows - 1u);
            let nb = min(col0 + lane % 64u, columns - 1u);
            wa[i] = select(0.0, b0[(z * rows + ma) * end + ka], ka < end);
            wb[i] = select(0.0, b1[(z * end + kb) * columns + nb], kb < end);
            ta[(lane % 16u) * 68u + lane / 16u + i * 16u] = wa[i];
            tb[(lane / 64u + i * 4u) * 16u + (lane % 64u) / 4u][lane % 4u] = wb[i];
        }
        //]
        workgroupBarrier();
        //[ load_next
        //]
        //[ multiply
        for (var kk = 0u; kk < 16u; kk += 1u) {
            for (var i = 0u; i < 4u; i += 1u) {
                c[i] = fma(vec4<f32>(ta[kk * 68u + ty * 4u + i]), tb[kk * 16u + tx], c[i]);
            }
        }
        //]
        workgroupBarrier();
    }
    //[ store
    for (var i = 0u; i < 4u; i += 1u) {
        finish(z, row0 + ty * 4u + i, col0 + tx * 4u, c[i]);
    }
    //]
}
