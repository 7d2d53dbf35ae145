// Integers of 64 bits as two words, the lower first: for adapters with and without integers so wide.
//
// Math:     the integer rows on two's complement; conversions; tests for arg-reductions.
// Shapes:   scalars, each a vec2<u32>.
// Dispatch: none; called by the kernels. An integer row `name` is `wg_name_i64`.
// Numerics: exact, wrapping; shifts modulo 64; division by 0 gives 0. From f32: truncated, saturated, NaN
//           becomes 0. To f32: nearest, ties to even.
// Cost:     1 to 15 instructions; division loops over 64 bits.
// Source:   own.

fn wg_neg_i64(x: vec2<u32>) -> vec2<u32> {
    return wg_sub_i64(vec2<u32>(), x);
}

fn wg_abs_i64(x: vec2<u32>) -> vec2<u32> {
    return select(x, wg_neg_i64(x), wg_below_zero(x));
}

fn wg_sign_i64(x: vec2<u32>) -> vec2<u32> {
    let positive = vec2<u32>(min(x.x | x.y, 1u), 0u);
    return select(positive, vec2<u32>(0xffffffffu), wg_below_zero(x));
}

fn wg_relu_i64(x: vec2<u32>) -> vec2<u32> {
    return select(x, vec2<u32>(), wg_below_zero(x));
}

fn wg_not_i64(x: vec2<u32>) -> vec2<u32> {
    return ~x;
}

fn wg_below_zero(x: vec2<u32>) -> bool {
    return x.y >= 0x80000000u;
}

fn wg_add_i64(x: vec2<u32>, w: vec2<u32>) -> vec2<u32> {
    let low = x.x + w.x;
    return vec2<u32>(low, x.y + w.y + select(0u, 1u, low < x.x));
}

fn wg_sub_i64(x: vec2<u32>, w: vec2<u32>) -> vec2<u32> {
    return vec2<u32>(x.x - w.x, x.y - w.y - select(0u, 1u, x.x < w.x));
}

fn wg_mul_i64(x: vec2<u32>, w: vec2<u32>) -> vec2<u32> {
    return vec2<u32>(x.x * w.x, wg_mul_high_u32(x.x, w.x) + x.x * w.y + x.y * w.x);
}

// The quotient of unsigned numbers, and the remainder after it.
fn wg_quotient(x: vec2<u32>, w: vec2<u32>) -> vec4<u32> {
    var q = vec2<u32>();
    var r = vec2<u32>();
    for (var i = 0u; i < 64u; i += 1u) {
        let n = 63u - i;
        let bit = (select(x.x, x.y, n >= 32u) >> (n & 31u)) & 1u;
        // The bit that leaves the remainder makes it larger than any divisor.
        let over = r.y >= 0x80000000u;
        r = vec2<u32>((r.x << 1u) | bit, (r.y << 1u) | (r.x >> 31u));
        let fits = over | (r.y > w.y) | ((r.y == w.y) & (r.x >= w.x));
        r = select(r, wg_sub_i64(r, w), fits);
        q = vec2<u32>((q.x << 1u) | select(0u, 1u, fits), (q.y << 1u) | (q.x >> 31u));
    }
    return vec4<u32>(q, r);
}

fn wg_div_i64(x: vec2<u32>, w: vec2<u32>) -> vec2<u32> {
    let q = wg_quotient(wg_abs_i64(x), wg_abs_i64(w)).xy;
    let signed = select(q, wg_neg_i64(q), wg_below_zero(x ^ w));
    return select(signed, vec2<u32>(), (w.x | w.y) == 0u);
}

fn wg_rem_i64(x: vec2<u32>, w: vec2<u32>) -> vec2<u32> {
    let r = wg_quotient(wg_abs_i64(x), wg_abs_i64(w)).zw;
    let signed = select(r, wg_neg_i64(r), wg_below_zero(x));
    let other = ((r.x | r.y) != 0u) & wg_below_zero(x ^ w);
    return select(select(signed, wg_add_i64(signed, w), other), vec2<u32>(), (w.x | w.y) == 0u);
}

fn wg_and_i64(x: vec2<u32>, w: vec2<u32>) -> vec2<u32> {
    return x & w;
}

fn wg_or_i64(x: vec2<u32>, w: vec2<u32>) -> vec2<u32> {
    return x | w;
}

fn wg_xor_i64(x: vec2<u32>, w: vec2<u32>) -> vec2<u32> {
    return x ^ w;
}

fn wg_shl_i64(x: vec2<u32>, w: vec2<u32>) -> vec2<u32> {
    let n = w.x & 31u;
    let near = vec2<u32>(x.x << n, (x.y << n) | ((x.x >> 1u) >> (31u - n)));
    return select(near, vec2<u32>(0u, x.x << n), (w.x & 32u) != 0u);
}

fn wg_shr_i64(x: vec2<u32>, w: vec2<u32>) -> vec2<u32> {
    let n = w.x & 31u;
    let high = bitcast<u32>(bitcast<i32>(x.y) >> n);
    let near = vec2<u32>((x.x >> n) | ((x.y << 1u) << (31u - n)), high);
    return select(near, vec2<u32>(high, select(0u, 0xffffffffu, wg_below_zero(x))), (w.x & 32u) != 0u);
}

fn wg_eq_i64(x: vec2<u32>, w: vec2<u32>) -> bool {
    return (x.x == w.x) & (x.y == w.y);
}

fn wg_ne_i64(x: vec2<u32>, w: vec2<u32>) -> bool {
    return (x.x != w.x) | (x.y != w.y);
}

fn wg_lt_i64(x: vec2<u32>, w: vec2<u32>) -> bool {
    return (bitcast<i32>(x.y) < bitcast<i32>(w.y)) | ((x.y == w.y) & (x.x < w.x));
}
