// Second launch of a pass of the radix sort: where each tile's share of a digit begins among all of that digit.
//
// Math:     counts[row, tile] = sum over t < tile of counts[row, t]; totals[row] = the sum over all tiles.
// Shapes:   `rows` rows (a line and a digit each) of `tiles` counts.
// Dispatch: 1-D, folded; one workgroup of 256 a row, which takes 2048 counts a round.
// Numerics: exact.
// Cost:     reads every count twice (the second time from the cache), writes it once.
// Source:   own. Regions between `//[ name` and `//]` are replaced by the printer.

//[ declare
struct Params { w0: u32, w1: u32, w2: u32, w3: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read_write> b0: array<u32>;
const WG = 256u;
//]
var<workgroup> sums: array<u32, 256>;
var<workgroup> blocks: array<u32, 16>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let slot = group.y * groups.x + group.x;
    //[ sizes
    let rows = params.w0;
    let tiles = params.w1;
    let counts = params.w2;
    let totals = params.w3;
    //]
    // Workgroups beyond the last row go along with it, and write nothing.
    let row = min(slot, rows - 1u);
    let live = slot < rows;
    var before = 0u;
    for (var base = 0u; base < tiles; base += 8u * WG) {
        let first = min(base + lane * 8u, tiles);
        let end = min(first + 8u, tiles);
        var own = 0u;
        for (var t = first; t < end; t += 1u) {
            let at = counts + row * tiles + t;
            //[ count
            let count = b0[at];
            //]
            own += count;
        }
        sums[lane] = own;
        workgroupBarrier();
        if (lane < 16u) {
            var sum = 0u;
            for (var i = 0u; i < 16u; i += 1u) {
                let next = sums[lane * 16u + i];
                sums[lane * 16u + i] = sum;
                sum += next;
            }
            blocks[lane] = sum;
        }
        workgroupBarrier();
        var left = before + sums[lane];
        for (var i = 0u; i < 16u; i += 1u) {
            let block = blocks[i];
            left += select(0u, block, i < lane / 16u);
            before += block;
        }
        if (live) {
            for (var t = first; t < end; t += 1u) {
                let at = counts + row * tiles + t;
                //[ count
                let count = b0[at];
                //]
                //[ store
                b0[at] = left;
                //]
                left += count;
            }
        }
        workgroupBarrier();
    }
    if (live && lane == 0u) {
        let at = totals + row;
        //[ total
        b0[at] = before;
        //]
    }
}
