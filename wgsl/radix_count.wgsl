// First launch of a pass of the radix sort: how often each digit occurs in each tile.
//
// Math:     counts[line, digit, tile] = |{p in the tile: (key(p) >> shift) & 255 = digit}|.
// Shapes:   `lines` lines of `n` keys, each of `tiles` tiles of WG * EACH.
// Dispatch: 1-D, folded; one workgroup of 256 a tile.
// Numerics: exact: whole numbers are counted by atomic additions in workgroup memory.
// Cost:     reads every key once, writes 256 counts a tile.
// Source:   own. Regions between `//[ name` and `//]` are replaced by the printer.

//[ declare
struct Params { w0: u32, w1: u32, w2: u32, w3: u32, w4: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> b0: array<u32>;
@group(0) @binding(1) var<storage, read_write> b1: array<u32>;
const WG = 256u;
const EACH = 16u;
//]
var<workgroup> found: array<atomic<u32>, 256>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let slot = group.y * groups.x + group.x;
    //[ sizes
    let lines = params.w0;
    let n = params.w1;
    let tiles = params.w2;
    let shift = params.w3;
    let counts = params.w4;
    //]
    // Workgroups beyond the last tile count nothing.
    let live = slot < lines * tiles;
    let whole = min(slot, lines * tiles - 1u);
    let line = whole / tiles;
    let tile = whole - line * tiles;
    atomicStore(&found[lane], 0u);
    workgroupBarrier();
    // Four keys are on their way at a time.
    for (var turn = 0u; turn < EACH; turn += 4u) {
        let p = (tile * EACH + turn) * WG + lane;
        //[ keys
        let key0 = b0[line * n + min(p, n - 1u)];
        if (live && p < n) { atomicAdd(&found[(key0 >> shift) & 255u], 1u); }
        //]
    }
    workgroupBarrier();
    if (live) {
        let at = counts + (line * 256u + lane) * tiles + tile;
        //[ store
        b1[at] = atomicLoad(&found[lane]);
        //]
    }
}
