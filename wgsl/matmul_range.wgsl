// The largest and the smallest numbers of two operands, for scaling a product of split numbers.
//
// Math:     y[p] = max over part p of |x|, as bits: infinite and NaN are larger than every number;
//           y[2 PARTS + p] = min over part p of |x| that are not 0, less 1: zeros are larger than every number.
// Shapes:   any; an operand is read as it lies, views aside.
// Dispatch: PARTS workgroups for the first operand, then PARTS for the second.
// Numerics: exact, in any order.
// Cost:     reads both operands once.
// Source:   own. Regions between `//[ name` and `//]` are replaced by the printer.

//[ declare
struct Params { w0: u32, w1: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> b0: array<f32>;
@group(0) @binding(1) var<storage, read> b1: array<f32>;
@group(0) @binding(2) var<storage, read_write> b2: array<u32>;
const PARTS = 256u;
//]
const WG = 256u;
const STEP = PARTS * WG;
var<workgroup> largest: atomic<u32>;
var<workgroup> smallest: atomic<u32>;

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let second = group.x >= PARTS;
    let first = (group.x % PARTS) * WG + lane;
    var most = vec4<u32>();
    var least = vec4<u32>(0xffffffffu);
    //[ range
    let count = select(params.w0, params.w1, second);
    for (var i = first; i < count; i += STEP) {
        let size = bitcast<u32>(select(b0[i], b1[i], second)) & 0x7fffffffu;
        most.x = max(most.x, size);
        least.x = min(least.x, size - 1u);
    }
    //]
    if (lane == 0u) {
        atomicStore(&largest, 0u);
        atomicStore(&smallest, 0xffffffffu);
    }
    workgroupBarrier();
    atomicMax(&largest, max(max(most.x, most.y), max(most.z, most.w)));
    atomicMin(&smallest, min(min(least.x, least.y), min(least.z, least.w)));
    workgroupBarrier();
    if (lane == 0u) {
        //[ store
        b2[group.x] = atomicLoad(&largest);
        b2[2u * PARTS + group.x] = atomicLoad(&smallest);
        //]
    }
}
