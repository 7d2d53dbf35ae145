// Second launch of a pass of the radix sort without barriers: where each chunk's share of a digit begins among
// all of that digit.
//
// Math:     counts[row, tile] = sum over t < tile of counts[row, t]; totals[row] = the sum over all chunks.
// Shapes:   `rows` rows (a line and a digit each) of `tiles` counts.
// Dispatch: 1-D, folded; one invocation a row.
// Numerics: exact.
// Cost:     reads and writes every count once. For drivers that run on a CPU.
// Source:   own. Regions between `//[ name` and `//]` are replaced by the printer.

//[ declare
struct Params { w0: u32, w1: u32, w2: u32, w3: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read_write> b0: array<u32>;
const WG = 64u;
//]

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let row = (group.y * groups.x + group.x) * WG + lane;
    //[ sizes
    let rows = params.w0;
    let tiles = params.w1;
    let counts = params.w2;
    let totals = params.w3;
    //]
    if (row < rows) {
        var left = 0u;
        for (var t = 0u; t < tiles; t += 1u) {
            let at = counts + row * tiles + t;
            //[ count
            let count = b0[at];
            //]
            //[ store
            b0[at] = left;
            //]
            left += count;
        }
        let before = left;
        let at = totals + row;
        //[ total
        b0[at] = before;
        //]
    }
}
