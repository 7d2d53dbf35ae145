// Transcendental functions that WGSL lacks, or whose built-in is loose. A kernel's text takes only the
// functions that it calls.
//
// Math:     expm1, log1p, logarithm of a sum of exponentials, sin, cos, tanh, sigmoid, erf.
// Shapes:   scalars.
// Dispatch: none; called by the kernels.
// Numerics: within 2e-6 of f64, relative to max(1, |result|); expm1, log1p, tanh, erf also relatively
//           near 0. sin and cos reduce their argument in three parts, good to |x| = 1e5; beyond it they
//           are the driver's.
//           NaN is put back by its bits: some drivers' exp and log drop it.
// Cost:     8 to 25 instructions each, at most one exp or log.
// Source:   polynomials of Cephes (sinf, cosf, tanhf) and of N. Juffa (erff); the ratio for erf is our own fit.

fn wg_expm1(x: f32) -> f32 {
    if (abs(x) < 0.5) {
        var p = 2.4801587e-5;
        p = fma(p, x, 1.9841270e-4);
        p = fma(p, x, 1.3888889e-3);
        p = fma(p, x, 8.3333333e-3);
        p = fma(p, x, 4.1666667e-2);
        p = fma(p, x, 1.6666667e-1);
        p = fma(p, x, 0.5);
        return fma(p * x, x, x);
    }
    return wg_keep_nan(exp(x) - 1.0, x, x);
}

// The logarithm y of x where some drivers give other numbers: at 0, below it, at infinity and NaN.
fn wg_log_edges(x: f32, y: f32) -> f32 {
    let bits = bitcast<u32>(x);
    let zero = (bits & 0x7fffffffu) == 0u;
    let below = !zero & ((bits & 0x80000000u) != 0u);
    let edge = select(select(bits, 0xff800000u, zero), 0x7fc00000u, below);
    return bitcast<f32>(select(bitcast<u32>(y), edge, zero | below | (bits >= 0x7f800000u)));
}

fn wg_log(x: f32) -> f32 {
    return wg_log_edges(x, log(x));
}

fn wg_log2(x: f32) -> f32 {
    return wg_log_edges(x, log2(x));
}

fn wg_log1p(x: f32) -> f32 {
    if (abs(x) < 0.5) {
        // 2 atanh(s), s = x / (2 + x), |s| <= 1/3
        let s = x / (2.0 + x);
        let z = s * s;
        var p = 0.15384615;
        p = fma(p, z, 0.18181818);
        p = fma(p, z, 0.22222222);
        p = fma(p, z, 0.28571429);
        p = fma(p, z, 0.4);
        p = fma(p, z, 0.66666667);
        return fma(p * z, s, 2.0 * s);
    }
    return wg_log(1.0 + x);
}

fn wg_log_add_exp(x: f32, w: f32) -> f32 {
    // Equal infinities have no difference.
    let apart = select(abs(x - w), 0.0, bitcast<u32>(x) == bitcast<u32>(w));
    return max(x, w) + wg_log1p(exp(-apart));
}

// sin(x + turn * pi / 2)
fn wg_turned_sin(x: f32, turn: i32) -> f32 {
    if (abs(x) > 1e5) {
        return select(sin(x), cos(x), turn == 1);
    }
    let k = round(x * 0.63661977);
    let r = fma(k, -7.5497899e-8, fma(k, -4.8375130e-4, fma(k, -1.5703125, x)));
    let z = r * r;
    let s = fma(fma(fma(-1.9515296e-4, z, 8.3321609e-3), z, -0.16666655) * z, r, r);
    let c = fma(fma(fma(2.4433157e-5, z, -1.3887316e-3), z, 4.1666646e-2) * z, z, fma(-0.5, z, 1.0));
    let quarter = i32(k) + turn;
    let y = select(s, c, (quarter & 1) == 1);
    return wg_keep_nan(select(y, -y, (quarter & 2) == 2), x, x);
}

fn wg_sin(x: f32) -> f32 {
    return wg_turned_sin(x, 0);
}

fn wg_cos(x: f32) -> f32 {
    return wg_turned_sin(x, 1);
}

// Both forms and a choice, as `wg_erf`.
fn wg_tanh(x: f32) -> f32 {
    let a = abs(x);
    let z = x * x;
    var p = -5.7049887e-3;
    p = fma(p, z, 2.0639089e-2);
    p = fma(p, z, -5.3739716e-2);
    p = fma(p, z, 0.13331442);
    p = fma(p, z, -0.33333282);
    let near = fma(p * z, x, x);
    let far = select(1.0 - 2.0 / (exp(2.0 * a) + 1.0), 1.0, a > 10.0);
    let signed = bitcast<u32>(far) | (bitcast<u32>(x) & 0x80000000u);
    return bitcast<f32>(select(signed, bitcast<u32>(near), (a < 0.625) | wg_is_nan(x)));
}

fn wg_sigmoid(x: f32) -> f32 {
    let t = exp(-abs(x));
    return wg_keep_nan(select(t, 1.0, x >= 0.0) / (1.0 + t), x, x);
}

// Both forms at every point and a choice at the end: neighbours of a subgroup take different ones, and two
// branches cost a GPU more than the shorter form does.
fn wg_erf(x: f32) -> f32 {
    let a = abs(x);
    let z = x * x;
    var p = -5.9676170e-4;
    p = fma(p, z, 4.9911942e-3);
    p = fma(p, z, -2.6768135e-2);
    p = fma(p, z, 0.11281993);
    p = fma(p, z, -0.37612534);
    p = fma(p, z, 0.12837917);
    let near = fma(p, x, x);
    let t = select(a, 4.0, a > 4.0);
    let u = t * t;
    var q = fma(-1.7285347e-5, t, 3.8319713e-4);
    q = fma(q, u, fma(-3.8839644e-3, t, 2.4254622e-2));
    q = fma(q, t, -0.10677788);
    q = fma(q, t, -0.63484669);
    q = fma(q, t, -0.12871751);
    // Not below 0, so that the sign is set as a bit. NaN is near.
    let far = bitcast<u32>(1.0 - exp(fma(q, t, -t))) | (bitcast<u32>(x) & 0x80000000u);
    return bitcast<f32>(select(bitcast<u32>(near), far, a > 0.927734375));
}

// One ratio for all: for devices whose lanes run one after another, where two forms cost what both do. Beyond 3.9 it is
// 1 to the last bit.
fn wg_erf_ratio(x: f32) -> f32 {
    let z = x * x;
    let p = fma(fma(fma(fma(2.0664963e-6, z, 2.8506172e-4), z, 3.7382836e-3), z, 5.2667890e-2), z, 0.18966524);
    let q = fma(fma(fma(fma(3.8270238e-5, z, 1.1573628e-3), z, 1.4914149e-2), z, 0.11381832), z, 0.50141925);
    let one = bitcast<f32>(0x3f800000u | (bitcast<u32>(x) & 0x80000000u));
    return select(x * fma(p, z, 1.1283791) / fma(q, z, 1.0), one, abs(x) > 3.9);
}
