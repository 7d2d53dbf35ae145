// Scatter: one invocation owns one column of the output.
//
// Math:     out[c, :] = none; for i ascending: out[c, at[c, i]] = combine(out[c, at[c, i]], src[c, i]); sum,
//           product, maximum or minimum over their neutral element.
// Shapes:   a launch fills positions `fill_first` to `fill_stop`, then combines values `first` to `stop`;
//           columns (any space) times the positions along the scattered axis of `length` elements.
// Dispatch: 1-D, folded; one invocation a column, neighbours in neighbouring columns.
// Numerics: combined in ascending order without atomics: the same bits on every run. Extremes keep NaN.
//           Out of range writes nothing and raises the error flag.
// Cost:     reads every index and value once; memory bound when neighbouring columns lie together.
// Source:   own. Regions between `//[ name` and `//]` are replaced by the printer.

//[ declare
struct Params { w0: u32, w1: u32, w2: u32, w3: u32, w4: u32, w5: u32, w6: u32, w7: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> b0: array<i32>;
@group(0) @binding(1) var<storage, read> b1: array<f32>;
@group(0) @binding(2) var<storage, read_write> b2: array<f32>;
@group(0) @binding(3) var<storage, read_write> flag: atomic<u32>;
const WG = 256u;
//]

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let o = (group.y * groups.x + group.x) * WG + lane;
    //[ count
    let count = params.w0;
    let length = params.w1;
    let size = params.w2;
    let stride = count;
    let fill_first = params.w3;
    let fill_stop = params.w4;
    let first = params.w5;
    let stop = params.w6;
    let check = params.w7;
    //]
    if (o < count) {
        //[ outer
        let column = o;
        //]
        for (var j = fill_first; j < fill_stop; j += 1u) {
            //[ fill
            b2[column + j * stride] = 0.0;
            //]
        }
        for (var r = first; r < stop; r += 1u) {
            //[ point
            let place = bitcast<u32>(b0[o + r * count]);
            let value = b1[o + r * count];
            //]
            if (place < size) {
                //[ combine
                b2[column + place * stride] += value;
                //]
            } else {
                //[ raise
                atomicMax(&flag, check);
                //]
            }
        }
    }
}
