// The largest numbers of two operands, for scaling a product of split numbers.
//
// Math:     y[p] = max over part p of |x|, as bits: infinite and NaN are larger than every number.
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
var<workgroup> all: atomic<u32>;

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let second = group.x >= PARTS;
    let first = (group.x % PARTS) * WG + lane;
    var most = 0u;
    //[ largest
    if (!second) {
        for (var i = first; i < params.w0; i += STEP) {
            most = max(most, bitcast<u32>(b0[i]) & 0x7fffffffu);
        }
    }
    if (second) {
        for (var i = first; i < params.w1; i += STEP) {
            most = max(most, bitcast<u32>(b1[i]) & 0x7fffffffu);
        }
    }
    //]
    if (lane == 0u) {
        atomicStore(&all, 0u);
    }
    workgroupBarrier();
    atomicMax(&all, most);
    workgroupBarrier();
    if (lane == 0u) {
        //[ store
        b2[group.x] = atomicLoad(&all);
        //]
    }
}
