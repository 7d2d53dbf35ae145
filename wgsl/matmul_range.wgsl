// The largest and the smallest number of each row of one factor and of each column of the other, for scaling a
// product of split numbers.
//
// Math:     y[part, z, r] = max over the k of a part of |x[z, r, k]|, as bits: infinite and NaN are larger than
//           every number; behind all of those of a factor, likewise the min of those that are not 0, less 1: zeros
//           are larger than every number.
// Shapes:   any M, N, K and strides; edges read clamped rows and columns, K past its end reads 0.
// Dispatch: (tiles of 128 rows, then tiles of 128 columns; parts of K; batch)
// Numerics: exact, in any order.
// Cost:     reads both factors once.
// Source:   own. Regions between `//[ name` and `//]` are replaced by the printer.

//[ declare
struct Params { w0: u32, w1: u32, w2: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> b0: array<f32>;
@group(0) @binding(1) var<storage, read> b1: array<f32>;
@group(0) @binding(2) var<storage, read_write> b2: array<u32>;
//]
const WG = 256u;
const TILE = 128u;
var<workgroup> largest: array<atomic<u32>, TILE>;
var<workgroup> smallest: array<atomic<u32>, TILE>;

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    if (lane < TILE) {
        atomicStore(&largest[lane], 0u);
        atomicStore(&smallest[lane], 0xffffffffu);
    }
    workgroupBarrier();
    //[ range
    let tiles = (params.w0 + TILE - 1u) / TILE;
    let second = group.x >= tiles;
    let first = select(group.x, group.x - tiles, second) * TILE;
    let count = select(params.w0, params.w1, second);
    let depth = params.w2;
    for (var k = lane / TILE; k < depth; k += WG / TILE) {
        let row = min(first + lane % TILE, count - 1u);
        let a = b0[(group.z * params.w0 + min(row, params.w0 - 1u)) * depth + k];
        let b = b1[(group.z * depth + k) * params.w1 + min(row, params.w1 - 1u)];
        let size = bitcast<u32>(select(a, b, second)) & 0x7fffffffu;
        atomicMax(&largest[lane % TILE], size);
        atomicMin(&smallest[lane % TILE], size - 1u);
    }
    //]
    workgroupBarrier();
    //[ store
    if (lane < TILE && first + lane < count) {
        let at = select(0u, 2u * params.w0, second) + first + lane;
        b2[at] = atomicLoad(&largest[lane]);
        b2[at + count] = atomicLoad(&smallest[lane]);
    }
    //]
}
