// Where each position's share of the ordered values begins.
//
// Math:     starts[j] = |{r: keys[r] < j}|, by a binary search.
// Shapes:   `n` ordered keys; j from 0 to `count` - 1, which is the number of positions.
// Dispatch: 1-D, folded; one invocation a position.
// Numerics: exact.
// Cost:     log2(n) dependent reads, which neighbours share.
// Source:   own. Regions between `//[ name` and `//]` are replaced by the printer.

//[ declare
struct Params { w0: u32, w1: u32, w2: u32, w3: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read_write> b0: array<u32>;
const WG = 256u;
//]

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let j = (group.y * groups.x + group.x) * WG + lane;
    //[ sizes
    let count = params.w0;
    let n = params.w1;
    let keys = params.w2;
    let starts = params.w3;
    //]
    if (j < count) {
        var low = 0u;
        var high = n;
        while (low < high) {
            let middle = (low + high) >> 1u;
            //[ key
            let key = b0[keys + middle];
            //]
            if (key < j) {
                low = middle + 1u;
            } else {
                high = middle;
            }
        }
        //[ store
        b0[starts + j] = low;
        //]
    }
}
