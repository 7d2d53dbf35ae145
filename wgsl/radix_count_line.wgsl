// First launch of a pass of the radix sort without barriers: how often each digit occurs in each chunk.
//
// Math:     counts[line, digit, tile] = |{p in the chunk: (key(p) >> shift) & 255 = digit}|.
// Shapes:   `lines` lines of `n` keys, each of `tiles` chunks of `span`.
// Dispatch: 1-D, folded; one invocation a chunk, which owns its counters.
// Numerics: exact.
// Cost:     reads every key once; counters are in the cache. For drivers that run on a CPU.
// Source:   own. Regions between `//[ name` and `//]` are replaced by the printer.

//[ declare
struct Params { w0: u32, w1: u32, w2: u32, w3: u32, w4: u32, w5: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> b0: array<u32>;
@group(0) @binding(1) var<storage, read_write> b1: array<u32>;
const WG = 64u;
//]

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let slot = (group.y * groups.x + group.x) * WG + lane;
    //[ sizes
    let lines = params.w0;
    let n = params.w1;
    let tiles = params.w2;
    let shift = params.w3;
    let counts = params.w4;
    let span = params.w5;
    //]
    let line = slot / tiles;
    let tile = slot - line * tiles;
    if (line < lines) {
        for (var digit = 0u; digit < 256u; digit += 1u) {
            let at = counts + (line * 256u + digit) * tiles + tile;
            //[ clear
            b1[at] = 0u;
            //]
        }
        let end = min(tile * span + span, n);
        for (var p = tile * span; p < end; p += 1u) {
            //[ key
            let key = b0[line * n + p];
            //]
            let at = counts + (line * 256u + ((key >> shift) & 255u)) * tiles + tile;
            //[ more
            b1[at] = b1[at] + 1u;
            //]
        }
    }
}
