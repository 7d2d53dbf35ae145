// Neighbours in words of 64 bits.
//
// Math:     four elements of 4, 2 or 1 bytes as the bits that each has, and back.
// Shapes:   scalars and vectors; the first element lies in the lowest bits.
// Dispatch: none; called by the kernels.
// Numerics: bits.
// Cost:     a shift or two an element; a word of 64 bits takes a software driver as long to load as one of 32.
// Source:   own.

fn wg_words(w: vec2<u64>) -> vec4<u32> {
    let low = vec2<u32>(w);
    let high = vec2<u32>(w >> vec2<u32>(32u));
    return vec4<u32>(low.x, high.x, low.y, high.y);
}

fn wg_halves(w: u64) -> vec4<u32> {
    let low = u32(w);
    let high = u32(w >> 32u);
    return vec4<u32>(low & 0xffffu, low >> 16u, high & 0xffffu, high >> 16u);
}

fn wg_bytes(w: u32) -> vec4<u32> {
    return vec4<u32>(w & 0xffu, (w >> 8u) & 0xffu, (w >> 16u) & 0xffu, w >> 24u);
}

fn wg_long_words(x: vec4<u32>) -> vec2<u64> {
    return vec2<u64>(x.xz) | (vec2<u64>(x.yw) << vec2<u32>(32u));
}

fn wg_long_halves(x: vec4<u32>) -> u64 {
    return u64(x.x | (x.y << 16u)) | (u64(x.z | (x.w << 16u)) << 32u);
}

fn wg_long_bytes(x: vec4<u32>) -> u32 {
    return x.x | (x.y << 8u) | (x.z << 16u) | (x.w << 24u);
}
