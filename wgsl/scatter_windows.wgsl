// Windows of ordered values of which all go to one position are combined ahead, so that a position that takes
// most values is not one long loop.
//
// Math:     ahead[w, o] = combine of value(o, r) for r in window w ascending, where the whole window has one key.
// Shapes:   `columns` columns; `windows` whole windows of `window` ordered values, a multiple of 4.
// Dispatch: 1-D, folded; one invocation a window and column, `count` in all, neighbours in neighbouring columns.
// Numerics: a fixed order: the same bits on every run.
// Cost:     two reads where keys differ; else every value once.
// Source:   own. Regions between `//[ name` and `//]` are replaced by the printer.

//[ declare
struct Params { w0: u32, w1: u32, w2: u32, w3: u32, w4: u32, w5: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> b0: array<f32>;
@group(0) @binding(1) var<storage, read_write> b1: array<u32>;
const WG = 256u;
//]

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let spot = (group.y * groups.x + group.x) * WG + lane;
    //[ sizes
    let count = params.w0;
    let columns = params.w1;
    let window = params.w2;
    let keys = params.w3;
    let places = params.w4;
    let ahead = params.w5;
    //]
    if (spot < count) {
        let w = spot / columns;
        let o = spot - w * columns;
        let first = w * window;
        //[ uniform
        let uniform = b1[keys + first] == b1[keys + first + window - 1u];
        //]
        if (uniform) {
            //[ outer
            //]
            //[ start
            var sum = 0.0;
            //]
            for (var next = first; next < first + window; next += 4u) {
                //[ values
                for (var r = next; r < next + 4u; r += 1u) {
                    sum += b0[b1[places + r] * columns + o];
                }
                //]
            }
            //[ store
            b1[ahead + spot] = bitcast<u32>(sum);
            //]
        }
    }
}
