// Reductions: a group of lanes accumulates one result each, or hands partial results to a second launch.
//
// Math:     y[o] = g(reduce over r of f(operands at o, r)), several accumulators.
// Shapes:   outer space times reduced axes; `length` is the product of the reduced sizes.
// Dispatch: 1-D, folded; a workgroup holds X results of Y lanes each (X * Y = WG); `splits` workgroups
//           share a result when there are few results; then the states go to scratch.
// Numerics: every lane adds blocks of 128 elements, then the blocks, then the lanes as a tree: the error
//           grows with the logarithm of the length. Maximum and minimum keep NaN; arg takes the first.
// Cost:     memory bound; Y = 1 has no barriers, which software drivers need.
// Source:   own. Regions between `//[ name` and `//]` are replaced by the printer.

//[ declare
struct Params { w0: u32, w1: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> b0: array<f32>;
@group(0) @binding(1) var<storage, read_write> b1: array<f32>;
const WG = 256u;
var<workgroup> t0: array<f32, 256>;
//]

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let slot = group.y * groups.x + group.x;
    //[ place
    let results = params.w0;
    let length = params.w1;
    let o = slot;
    let y = lane;
    let lead = y == 0u;
    let first = 0u;
    let stop = length;
    let step = WG;
    //]
    //[ start
    var a0 = 0.0;
    //]
    if (o < results) {
        //[ outer
        //]
        for (var base = first; base < stop; base += 128u * step) {
            let end = min(base + 128u * step, stop);
            //[ block
            var g0 = 0.0;
            //]
            var next = base;
            //[ unrolled
            //]
            for (; next < end; next += step) {
                let r = next + y;
                if (r < end) {
                    //[ point
                    g0 += b0[o * length + r];
                    //]
                }
            }
            //[ fold
            a0 += g0;
            //]
        }
    }
    //[ tree
    t0[lane] = a0;
    workgroupBarrier();
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        if (y < half) {
            t0[lane] += t0[lane + half];
        }
        workgroupBarrier();
    }
    a0 = t0[lane];
    //]
    if (lead && o < results) {
        //[ store
        b1[o] = a0;
        //]
    }
}
