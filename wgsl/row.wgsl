// Row programs: several reductions along a row, each of which may use earlier ones, then what is stored.
//
// Math:     a1[o] = reduce over r of f1(o, r); a2[o] = reduce of f2(o, r, a1[o]); ...; y[o, r] = g(o, r, a1[o], a2[o], ..).
// Shapes:   outer space times the axes of a row; `length` is the product of the latter.
// Dispatch: 1-D, folded; a workgroup holds X rows of Y lanes each (X * Y = WG). Rows beyond the last repeat it
//           and store nothing.
// Numerics: as in reduce: lanes add blocks of 128 elements, then the blocks, then the lanes as a tree.
// Cost:     memory bound: a row is read once where its lanes hold it, else once a level, out of the cache. Y = 1 has
//           no barriers, which software drivers need.
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
    let units = params.w0;
    let y = lane;
    let spot = slot;
    let live = spot < params.w1;
    let o = min(spot, params.w1 - 1u);
    let row = o * units;
    //]
    //[ levels
    var a0 = 0.0;
    for (var next = 0u; next < units; next += WG) {
        let r = next + y;
        if (r < units) {
            a0 += b0[row + r];
        }
    }
    t0[lane] = a0;
    workgroupBarrier();
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        if (y < half) {
            t0[lane] += t0[lane + half];
        }
        workgroupBarrier();
    }
    let r0 = t0[0];
    //]
    if (live) {
        //[ along
        for (var next = 0u; next < units; next += WG) {
            let r = next + y;
            if (r < units) {
                b1[row + r] = b0[row + r] / r0;
            }
        }
        //]
    }
    if (live && y == 0u) {
        //[ once
        //]
    }
}
