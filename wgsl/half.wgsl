// Floats of 16 bits: what is stored as half a word and computed as f32.
//
// Math:     the f32 of the same value; the f16 or bf16 nearest to an f32, ties to even.
// Shapes:   scalars; halves lie in the lower bits of a u32.
// Dispatch: none; called by the kernels.
// Numerics: exact widening, correct rounding; beyond the largest half is infinity, NaN stays NaN, subnormal
//           f16 are kept. By bits alone: pack2x16float is open beyond the range, and drivers may round
//           towards zero and flush subnormal numbers.
// Cost:     2 to 12 instructions.
// Source:   IEEE 754.

fn wg_from_f16(h: u32) -> f32 {
    let a = h & 0x7fffu;
    let normal = (a << 13u) + select(0x38000000u, 0x70000000u, a >= 0x7c00u);
    // A subnormal number is a multiple of 2^-24.
    let small = bitcast<u32>(f32(a) * 5.9604644775390625e-8);
    return bitcast<f32>(((h & 0x8000u) << 16u) | select(normal, small, a < 0x400u));
}

fn wg_to_f16(x: f32) -> u32 {
    let b = bitcast<u32>(x);
    let magnitude = bitcast<i32>(b & 0x7fffffffu);
    // What is past the largest half is infinity, which is what rounding makes of 65536.
    let a = min(magnitude, 0x47800000);
    let normal = (a + ((a >> 13u) & 1) - 0x37fff001) >> 13u;
    // Beside 0.5 the last bit of an f32 is 2^-25: it is rounded to multiples of 2^-24, which a subnormal half counts.
    let small = bitcast<i32>(bitcast<f32>(a) + 0.5) - 0x3f000000;
    let number = select(normal, small, a < 0x38800000);
    let bits = select(number, 0x7e00, magnitude > 0x7f800000);
    return bitcast<u32>(bits) | ((b >> 16u) & 0x8000u);
}

fn wg_from_f16_quad(h: vec4<u32>) -> vec4<f32> {
    return vec4<f32>(wg_from_f16(h.x), wg_from_f16(h.y), wg_from_f16(h.z), wg_from_f16(h.w));
}

fn wg_from_bf16_quad(h: vec4<u32>) -> vec4<f32> {
    return bitcast<vec4<f32>>(h << vec4<u32>(16u));
}

fn wg_from_bf16(h: u32) -> f32 {
    return bitcast<f32>(h << 16u);
}

fn wg_to_bf16(x: f32) -> u32 {
    let b = bitcast<u32>(x);
    let rounded = (b + 0x7fffu + ((b >> 16u) & 1u)) >> 16u;
    return select(rounded, (b >> 16u) | 0x40u, (b & 0x7fffffffu) > 0x7f800000u);
}

// The driver's own conversions: for devices on which they are the same for every half.

fn wg_from_f16_packed(h: u32) -> f32 {
    return unpack2x16float(h).x;
}

fn wg_from_f16_quad_packed(h: vec4<u32>) -> vec4<f32> {
    return vec4<f32>(unpack2x16float(h.x | (h.y << 16u)), unpack2x16float(h.z | (h.w << 16u)));
}

fn wg_to_f16_packed(x: f32) -> u32 {
    return pack2x16float(vec2<f32>(x, 0.0)) & 0xffffu;
}
