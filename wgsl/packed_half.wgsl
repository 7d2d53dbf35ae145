// A test of conversions of halves by the driver's own instructions, run when a device opens: the same as by bits.
//
// Math:     y = 1 where any f32 rounds to another half, 2 where any half widens to another f32, 4 where it does right
//           after it was rounded; several added. NaN is like NaN.
// Shapes:   every half; around the middle of each two, and every f32 whose lower bits are a fixed pattern.
// Dispatch: an invocation a half.
// Numerics: exact. Drivers take narrowing and widening one after the other together for nothing, unless something
//           stands between that they do not know: `wrong[1]` is 0.
// Cost:     nothing to speak of.
// Source:   own. The region between `//[ functions` and `//]` is replaced by half.wgsl.

@group(0) @binding(0) var<storage, read_write> wrong: array<atomic<u32>>;

//[ functions
fn wg_from_f16(h: u32) -> f32 { return f32(h); }
fn wg_to_f16(x: f32) -> u32 { return u32(x); }
fn wg_from_f16_packed(h: u32) -> f32 { return f32(h); }
fn wg_to_f16_packed(x: f32) -> u32 { return u32(x); }
//]

fn same(x: f32, y: f32) -> bool {
    let a = bitcast<u32>(x);
    let b = bitcast<u32>(y);
    return a == b || ((a & 0x7fffffffu) > 0x7f800000u && (b & 0x7fffffffu) > 0x7f800000u);
}

fn rounds_otherwise(x: f32, zero: u32) -> u32 {
    let a = wg_to_f16(x);
    let b = wg_to_f16_packed(x);
    let alike = a == b || ((a & 0x7fffu) > 0x7c00u && (b & 0x7fffu) > 0x7c00u && b < 0x10000u);
    let again = same(wg_from_f16(a), wg_from_f16_packed(wg_to_f16_packed(x) | zero));
    return select(1u, 0u, alike) | select(4u, 0u, again);
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let h = id.x;
    let x = wg_from_f16(h);
    let zero = atomicLoad(&wrong[1]);
    var otherwise = select(2u, 0u, same(x, wg_from_f16_packed(h)));
    for (var j = 0u; j < 3u; j += 1u) {
        otherwise |= rounds_otherwise(bitcast<f32>(bitcast<u32>(x) + 0xfffu + j), zero);
    }
    otherwise |= rounds_otherwise(x, zero) | rounds_otherwise(bitcast<f32>((h << 16u) | 0x1234u), zero);
    if (otherwise != 0u) {
        atomicOr(&wrong[0], otherwise);
    }
}
