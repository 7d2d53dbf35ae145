// Counter-based random bits.
//
// Math:     word 0 of Philox4x32-10, key (k0, k1), counter (c0, 0, c2, 0).
// Shapes:   scalars.
// Dispatch: none; called by the kernels.
// Numerics: integers only: bit-equal on every device.
// Cost:     about 300 instructions (no 64-bit product in WGSL: upper halves from 16-bit parts).
// Source:   Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (2011).

fn wg_wide_mul(x: u32, w: u32) -> vec2<u32> {
    let xl = x & 0xffffu;
    let xh = x >> 16u;
    let wl = w & 0xffffu;
    let wh = w >> 16u;
    let t = xh * wl + ((xl * wl) >> 16u);
    let u = xl * wh + (t & 0xffffu);
    return vec2<u32>(x * w, xh * wh + (t >> 16u) + (u >> 16u));
}

fn wg_philox(k0: u32, k1: u32, c0: u32, c2: u32) -> u32 {
    var c = vec4<u32>(c0, 0u, c2, 0u);
    var k = vec2<u32>(k0, k1);
    for (var round = 0u; round < 10u; round += 1u) {
        let p = wg_wide_mul(0xd2511f53u, c.x);
        let q = wg_wide_mul(0xcd9e8d57u, c.z);
        c = vec4<u32>(q.y ^ c.y ^ k.x, q.x, p.y ^ c.w ^ k.y, p.x);
        k += vec2<u32>(0x9e3779b9u, 0xbb67ae85u);
    }
    return c.x;
}
