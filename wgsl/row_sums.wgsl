// A row program whose workgroups take one row after another, and sum what belongs to each column meanwhile.
//
// Math:     as in row; and parts[t, j] = sum of f(o, j) over every rows o that lanes t of a workgroup take; several.
// Shapes:   `rows` rows of `units` units, X rows of a workgroup at a time; `teams` workgroups.
// Dispatch: 1-D; lanes `x` of workgroup t take the rows t X + x, (t + teams) X + x, (t + 2 teams) X + x, ..
// Numerics: as in row; the sums of a column are added row by row, a second launch adds those of all workgroups.
// Cost:     memory bound: every row is read once, where a row program and a reduction read it twice.
// Source:   own. Regions between `//[ name` and `//]` are replaced by the printer.

//[ declare
struct Params { w0: u32, w1: u32, w2: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> b0: array<f32>;
@group(0) @binding(1) var<storage, read_write> b1: array<f32>;
@group(0) @binding(2) var<storage, read_write> b2: array<u32>;
const WG = 256u;
var<workgroup> t0: array<f32, 256>;
//]

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let slot = group.x;
    //[ place
    let rows = params.w0;
    let units = params.w1;
    let teams = params.w2;
    let y = lane;
    //]
    //[ start
    var g0 = 0.0;
    //]
    for (var turn = slot; turn < rows; turn += teams) {
        //[ levels
        let live = true;
        let o = turn;
        let at = o * units + min(y, units - 1u);
        t0[lane] = select(0.0, b0[at], y < units);
        workgroupBarrier();
        for (var half = WG / 2u; half > 0u; half /= 2u) {
            if (y < half) {
                t0[lane] += t0[lane + half];
            }
            workgroupBarrier();
        }
        let r0 = t0[0];
        workgroupBarrier();
        g0 += b0[at];
        //]
        if (live) {
            //[ along
            if (y < units) {
                b1[at] = b0[at] / r0;
            }
            //]
        }
        if (live && y == 0u) {
            //[ once
            //]
        }
    }
    //[ store
    if (y < units) {
        b2[slot * units + y] = bitcast<u32>(g0);
    }
    //]
}
