// Few positions put in order by counting, in one launch: each finds how many come before it.
//
// Math:     keys[place] = key(r), places[place] = r, place = |{s: key(s) < key(r), or equal and s < r}|.
// Shapes:   `n` positions; a key and its place in one word, `key << bits | place`, all below 2^32 - 1.
// Dispatch: 1-D, folded; one workgroup for EACH positions, whose lanes share all positions among them.
// Numerics: exact.
// Cost:     n comparisons a position: 67 million for 8192, less than the launches of a radix sort.
// Source:   own. Regions between `//[ name` and `//]` are replaced by the printer.

//[ declare
struct Params { w0: u32, w1: u32, w2: u32, w3: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> b0: array<u32>;
@group(0) @binding(1) var<storage, read_write> b1: array<u32>;
const WG = 256u;
const EACH = 4u;
//]
var<workgroup> own: array<u32, EACH>;
var<workgroup> found: array<atomic<u32>, EACH>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let first = (group.y * groups.x + group.x) * EACH;
    //[ sizes
    let n = params.w0;
    let bits = params.w1;
    let keys = params.w2;
    let places = params.w3;
    //]
    if (lane < EACH) {
        let p = min(first + lane, n - 1u);
        //[ own
        let key = b0[p];
        //]
        own[lane] = key << bits | p;
        atomicStore(&found[lane], 0u);
    }
    workgroupBarrier();
    //[ start
    let k0 = own[0];
    var c0 = 0u;
    //]
    for (var next = lane; next < n; next += 4u * WG) {
        //[ count
        for (var p = next; p < min(n, next + 4u * WG); p += WG) {
            c0 += select(0u, 1u, (b0[p] << bits | p) < k0);
        }
        //]
    }
    //[ meet
    atomicAdd(&found[0], c0);
    //]
    workgroupBarrier();
    if (lane < EACH && first + lane < n) {
        let place = atomicLoad(&found[lane]);
        let word = own[lane];
        let key = word >> bits;
        let value = first + lane;
        //[ store
        b1[keys + place] = key;
        b1[places + place] = value;
        //]
    }
}
