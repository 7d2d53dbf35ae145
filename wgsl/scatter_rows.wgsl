// Scatter of values in order of their positions: one invocation owns one element of the output.
//
// Math:     out[o, j] = combine of value(o, r) for r from starts[j] to starts[j + 1], over the neutral element;
//           r runs over the values by position, those of one position in their own order.
// Shapes:   `columns` columns times `size` positions; whole windows of `window` values may be combined ahead.
// Dispatch: 1-D, folded; one invocation an element, `count` in all.
// Numerics: a fixed order without atomics: the same bits on every run. Extremes keep NaN.
// Cost:     writes every element once, reads every value once.
// Source:   own. Regions between `//[ name` and `//]` are replaced by the printer.

//[ declare
struct Params { w0: u32, w1: u32, w2: u32, w3: u32, w4: u32, w5: u32, w6: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> b0: array<f32>;
@group(0) @binding(1) var<storage, read_write> b1: array<f32>;
@group(0) @binding(2) var<storage, read> b2: array<u32>;
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
    let size = params.w2;
    let window = params.w3;
    let places = params.w4;
    let starts = params.w5;
    let ahead = params.w6;
    //]
    if (spot < count) {
        //[ where
        let j = spot / columns;
        let o = spot - j * columns;
        //]
        //[ outer
        let column = o;
        let stride = columns;
        //]
        //[ start
        var r = b2[starts + j];
        let end = b2[starts + j + 1u];
        var sum = 0.0;
        //]
        while (r < end) {
            if (r % window == 0u && r + window <= end) {
                //[ ahead
                sum += bitcast<f32>(b2[ahead + r / window * columns + o]);
                //]
                r += window;
            } else {
                //[ value
                sum += b0[b2[places + r] * columns + o];
                //]
                r += 1u;
            }
        }
        //[ store
        b1[column + j * stride] = sum;
        //]
    }
}
