// Integer functions, one a type (WGSL has no overloading). u8 lives in u32 and is masked by the caller.
//
// Math:     sign, relu; division towards zero and floored, the remainder of each (by 0 all give 0); powers
//           (by squaring; negative ones are 0 but for bases 1 and -1); shifts modulo 32, the upper half of
//           the product.
// Shapes:   scalars.
// Dispatch: none; called by the kernels.
// Numerics: exact, wrapping. The most negative number divided by -1 wraps; the driver's division of it
//           is undefined, so it is never asked.
// Cost:     1 to 20 instructions; powers loop over the exponent's bits.
// Source:   own.

fn wg_isign_i32(x: i32) -> i32 {
    return select(select(0, -1, x < 0), 1, x > 0);
}

fn wg_isign_u32(x: u32) -> u32 {
    return min(x, 1u);
}

fn wg_irelu_i32(x: i32) -> i32 {
    return max(x, 0);
}

fn wg_irelu_u32(x: u32) -> u32 {
    return x;
}

fn wg_idiv_i32(x: i32, w: i32) -> i32 {
    let plain = (w > 0) | (w < -1);
    let q = x / select(1, w, plain);
    return select(select(0, 0 - x, w == -1), q, plain);
}

fn wg_idiv_u32(x: u32, w: u32) -> u32 {
    return select(x / max(w, 1u), 0u, w == 0u);
}

fn wg_irem_i32(x: i32, w: i32) -> i32 {
    let plain = (w > 0) | (w < -1);
    let d = select(1, w, plain);
    let r = x - (x / d) * d;
    let turned = select(r, r + d, (r != 0) & ((r ^ d) < 0));
    return select(0, turned, plain);
}

fn wg_irem_u32(x: u32, w: u32) -> u32 {
    return select(x % max(w, 1u), 0u, w == 0u);
}

fn wg_ifmod_i32(x: i32, w: i32) -> i32 {
    let plain = (w > 0) | (w < -1);
    let d = select(1, w, plain);
    return select(0, x - (x / d) * d, plain);
}

fn wg_ifmod_u32(x: u32, w: u32) -> u32 {
    return wg_irem_u32(x, w);
}

fn wg_ifloor_div_i32(x: i32, w: i32) -> i32 {
    let r = wg_ifmod_i32(x, w);
    return wg_idiv_i32(x, w) - select(0, 1, (r != 0) & ((r ^ w) < 0));
}

fn wg_ifloor_div_u32(x: u32, w: u32) -> u32 {
    return wg_idiv_u32(x, w);
}

fn wg_ipow_u32(x: u32, w: u32) -> u32 {
    var y = 1u;
    var b = x;
    for (var e = w; e > 0u; e = e >> 1u) {
        y = y * select(1u, b, (e & 1u) == 1u);
        b = b * b;
    }
    return y;
}

fn wg_ipow_i32(x: i32, w: i32) -> i32 {
    let y = bitcast<i32>(wg_ipow_u32(bitcast<u32>(x), bitcast<u32>(max(w, 0))));
    let below = select(select(0, select(1, -1, (w & 1) == 1), x == -1), 1, x == 1);
    return select(y, below, w < 0);
}

fn wg_shl_i32(x: i32, w: i32) -> i32 {
    return x << (u32(w) & 31u);
}

fn wg_shl_u32(x: u32, w: u32) -> u32 {
    return x << (w & 31u);
}

fn wg_shr_i32(x: i32, w: i32) -> i32 {
    return x >> (u32(w) & 31u);
}

fn wg_shr_u32(x: u32, w: u32) -> u32 {
    return x >> (w & 31u);
}

fn wg_mul_high_u32(x: u32, w: u32) -> u32 {
    let xl = x & 0xffffu;
    let xh = x >> 16u;
    let wl = w & 0xffffu;
    let wh = w >> 16u;
    let t = xh * wl + ((xl * wl) >> 16u);
    let u = xl * wh + (t & 0xffffu);
    return xh * wh + (t >> 16u) + (u >> 16u);
}

fn wg_mul_high_i32(x: i32, w: i32) -> i32 {
    let high = wg_mul_high_u32(bitcast<u32>(x), bitcast<u32>(w));
    let fix = select(0u, bitcast<u32>(w), x < 0) + select(0u, bitcast<u32>(x), w < 0);
    return bitcast<i32>(high - fix);
}
