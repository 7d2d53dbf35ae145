//! Linear algebra against loops written out here and numbers worked out by hand; mistakes.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;

use wgrad::{ErrorKind, HostTensor, Pass, Result, Tensor};

use crate::Subject;
use crate::devices::oracle;
use crate::ops::{floats, near, run};

crate::suite![
    plain: mistakes_name_the_rule;
    device: formulas_by_loops, products_by_hand,
];

fn numbers(count: usize, turn: usize) -> Vec<f64> {
    (0..count).map(|i| ((i * 7 + turn * 5) % 13) as f64 / 4.0 - 1.5).collect()
}

/// The sum of products, letter by letter: `parts -> out` without ellipsis.
fn by_loops(parts: &[&str], out: &str, sizes: &[&[usize]], data: &[Vec<f64>]) -> Vec<f64> {
    let mut size: BTreeMap<char, usize> = BTreeMap::new();
    for (part, dims) in parts.iter().zip(sizes) {
        for (c, d) in part.chars().zip(*dims) {
            let known = size.entry(c).or_insert(1);
            *known = if *d == 1 { *known } else { *d };
        }
    }
    let letters: Vec<(char, usize)> = size.clone().into_iter().collect();
    let total: usize = letters.iter().map(|l| l.1).product();
    let mut result = vec![0.0; out.chars().map(|c| size[&c]).product()];
    for n in 0..total {
        let (mut at, mut rest) = (BTreeMap::new(), n);
        for (c, d) in &letters {
            at.insert(*c, rest % d);
            rest /= d;
        }
        let mut product = 1.0;
        for ((part, dims), x) in parts.iter().zip(sizes).zip(data) {
            let i = part.chars().zip(*dims).fold(0, |i, (c, d)| i * d + if *d == 1 { 0 } else { at[&c] });
            product *= x[i];
        }
        result[out.chars().fold(0, |i, c| i * size[&c] + at[&c])] += product;
    }
    result
}

/// Formula as given, parts and result in letters alone, sizes.
type Formula = (&'static str, &'static [&'static str], &'static str, &'static [&'static [usize]]);

fn formulas_by_loops(on: &Subject) {
    let all: &[Formula] = &[
        ("ij,jk->ik", &["ij", "jk"], "ik", &[&[3, 5], &[5, 4]]),
        ("ij,jk", &["ij", "jk"], "ik", &[&[3, 5], &[5, 4]]),
        ("kj,ji", &["kj", "ji"], "ik", &[&[3, 5], &[5, 4]]),
        (" i j, j k ->k i ", &["ij", "jk"], "ki", &[&[3, 5], &[5, 4]]),
        ("ba", &["ba"], "ab", &[&[3, 5]]),
        ("aB", &["aB"], "Ba", &[&[3, 5]]),
        ("ii->i", &["ii"], "i", &[&[5, 5]]),
        ("ii", &["ii"], "", &[&[5, 5]]),
        ("ijij->ji", &["ijij"], "ji", &[&[3, 4, 3, 4]]),
        ("iii", &["iii"], "", &[&[3, 3, 3]]),
        ("iij,jk->ik", &["iij", "jk"], "ik", &[&[3, 3, 5], &[5, 2]]),
        ("ij->", &["ij"], "", &[&[3, 5]]),
        ("i,i", &["i", "i"], "", &[&[7], &[7]]),
        ("i,j->ji", &["i", "j"], "ji", &[&[3], &[5]]),
        ("ij,ij->j", &["ij", "ij"], "j", &[&[3, 5], &[3, 5]]),
        ("bij,bjk->kib", &["bij", "bjk"], "kib", &[&[2, 3, 5], &[2, 5, 4]]),
        ("bij,bjk->ik", &["bij", "bjk"], "ik", &[&[2, 3, 5], &[2, 5, 4]]),
        ("bihd,bjhd->bhij", &["bihd", "bjhd"], "bhij", &[&[2, 5, 3, 4], &[2, 7, 3, 4]]),
        ("bi,ioj,bj->bo", &["bi", "ioj", "bj"], "bo", &[&[3, 4], &[4, 5, 2], &[3, 2]]),
        ("ab,bc,cd,de->ea", &["ab", "bc", "cd", "de"], "ea", &[&[2, 7], &[7, 3], &[3, 5], &[5, 4]]),
        ("a,ab,abc,c,b->c", &["a", "ab", "abc", "c", "b"], "c", &[&[3], &[3, 2], &[3, 2, 4], &[4], &[2]]),
        ("ij,jk,ki->", &["ij", "jk", "ki"], "", &[&[3, 4], &[4, 5], &[5, 3]]),
        ("...ij,...jk->...ik", &["abij", "bjk"], "abik", &[&[2, 1, 3, 5], &[4, 5, 2]]),
        ("...ij->...ji", &["aij"], "aji", &[&[2, 3, 5]]),
        ("...ii->i...", &["aii"], "ia", &[&[2, 3, 3]]),
        ("i...,i...", &["ib", "iab"], "ab", &[&[3, 2], &[3, 4, 2]]),
        ("i...,i...", &["ib", "iab"], "ab", &[&[3, 1], &[3, 4, 2]]),
        ("i...->i", &["iab"], "i", &[&[3, 2, 4]]),
        ("...,...", &["ab", "b"], "ab", &[&[3, 2], &[2]]),
        ("...i", &["abi"], "abi", &[&[3, 2, 2]]),
        ("i...", &["iab"], "abi", &[&[3, 2, 2]]),
        ("ij,jk->ik", &["ij", "jk"], "ik", &[&[3, 1], &[5, 4]]),
        ("ij,ij->ij", &["ij", "ij"], "ij", &[&[3, 1], &[1, 4]]),
        ("ij,jk->ik", &["ij", "jk"], "ik", &[&[3, 0], &[0, 4]]),
        ("ij,ij->ij", &["ij", "ij"], "ij", &[&[3, 0], &[3, 1]]),
        (",ij->ij", &["", "ij"], "ij", &[&[], &[2, 3]]),
        ("->", &[""], "", &[&[]]),
        ("", &[""], "", &[&[]]),
        ("ikjl,lmk->mij", &["ikjl", "lmk"], "mij", &[&[2, 4, 3, 5], &[5, 3, 4]]),
        ("ab,cd,ef->fdb", &["ab", "cd", "ef"], "fdb", &[&[2, 3], &[4, 2], &[2, 5]]),
        ("ijkl,ijkl->ijkl", &["ijkl", "ijkl"], "ijkl", &[&[2, 3, 1, 2], &[1, 3, 4, 2]]),
    ];
    let ctx = on.context();
    for (formula, parts, out, sizes) in all {
        let count = |dims: &[usize]| dims.iter().product::<usize>();
        let data: Vec<Vec<f64>> = sizes.iter().enumerate().map(|(i, d)| numbers(count(d), i)).collect();
        let want = by_loops(parts, out, sizes, &data);
        let (shape, _, got) = run(&ctx, |p| {
            let operands: Vec<Tensor> = sizes
                .iter()
                .zip(&data)
                .map(|(d, x)| p.input(HostTensor::new(*d, x).unwrap().cast(wgrad::DType::F32)).unwrap())
                .collect();
            Tensor::einsum(formula, &operands)
        });
        assert_eq!(shape.rank(), out.len(), "{formula}");
        near(formula, &got, &want, 1e-5);
    }
}

fn products_by_hand(on: &Subject) {
    let ramp =
        |p: &Pass, dims: &[usize]| p.arange(0..dims.iter().product::<usize>() as i32).reshape(dims) * 1.0;
    let all: &[(&str, &dyn Fn(&Pass) -> Tensor, &[usize], &[f64])] = &[
        ("dot", &|p| ramp(p, &[3]).dot(ramp(p, &[3]) + 1.0), &[], &[8.]),
        ("vdot", &|p| ramp(p, &[2]).vdot(ramp(p, &[2]) + 1.0), &[], &[2.]),
        ("mv", &|p| ramp(p, &[2, 3]).mv(ramp(p, &[3])), &[2], &[5., 14.]),
        ("outer", &|p| ramp(p, &[2]).outer(ramp(p, &[3])), &[2, 3], &[0., 0., 0., 0., 1., 2.]),
        ("inner", &|p| ramp(p, &[2, 2]).inner(ramp(p, &[1, 2])), &[2, 1], &[1., 3.]),
        ("bmm", &|p| ramp(p, &[2, 1, 2]).bmm(ramp(p, &[2, 2, 1])), &[2, 1, 1], &[1., 13.]),
        ("addmm", &|p| ramp(p, &[2]).addmm(ramp(p, &[2, 2]), ramp(p, &[2, 2])), &[2, 2], &[2., 4., 6., 12.]),
        ("tensordot", &|p| ramp(p, &[2, 2, 2]).tensordot(ramp(p, &[2, 2]), 2), &[2], &[14., 38.]),
        (
            "tensordot pairs",
            &|p| ramp(p, &[2, 3]).tensordot(ramp(p, &[3, 2]), ([0, 1], [1, 0])),
            &[],
            &[0. + 2. + 8. + 3. + 12. + 25.],
        ),
        (
            "kron",
            &|p| (ramp(p, &[2, 2]) + 1.0).kron(ramp(p, &[1, 2]) + 1.0),
            &[2, 4],
            &[1., 2., 2., 4., 3., 6., 4., 8.],
        ),
        ("kron vectors", &|p| (ramp(p, &[2]) + 1.0).kron(ramp(p, &[3])), &[6], &[0., 1., 2., 0., 2., 4.]),
        (
            "cross",
            &|p| floats(p, [3], &[1., 2., 3.]).cross(floats(p, [3], &[4., 5., 6.]), 0),
            &[3],
            &[-3., 6., -3.],
        ),
        (
            "matrix_power",
            &|p| floats(p, [2, 2], &[1., 1., 1., 0.]).matrix_power(10),
            &[2, 2],
            &[89., 55., 55., 34.],
        ),
        (
            "matrix_power 0",
            &|p| ramp(p, &[2, 2, 2]).matrix_power(0),
            &[2, 2, 2],
            &[1., 0., 0., 1., 1., 0., 0., 1.],
        ),
    ];
    let ctx = on.context();
    for (name, f, shape, want) in all {
        let (got_shape, _, got) = run(&ctx, f);
        assert_eq!(got_shape.dims(), *shape, "{name}");
        near(name, &got, want, 1e-6);
    }
}

fn mistakes_name_the_rule() {
    let found = |p: &Pass| -> Result<Vec<(ErrorKind, String, &'static str)>> {
        let ramp = |dims: &[usize]| p.arange(0..dims.iter().product::<usize>() as i32).reshape(dims) * 1.0;
        let (x, w, v) = (ramp(&[2, 3]), ramp(&[4, 5]), ramp(&[3]));
        let sum = |f: &str, x: &[Tensor]| Tensor::try_einsum(f, x);
        let wrong = [
            (sum("ij,jk->ik", &[x, w]), "`ij,jk->ik`: `j` has size 4 in operand 1, [4, 5], and 3 before"),
            (sum("ij,jk->ik", &[x]), "is for 2 operands, 1 were given"),
            (sum("ijk", &[x]), "`ijk` does not name the axes of operand 0, [2, 3]"),
            (sum("i", &[x]), "`i` does not name the axes"),
            (sum("...ijk", &[x]), "does not name the axes"),
            (sum("ii", &[x]), "`i` has size 3 in operand 0, [2, 3], and 2 before"),
            (sum("ii", &[ramp(&[2, 1])]), "`i` is repeated for one operand with sizes 2 and 1"),
            (sum("ij->k", &[x]), "`k` of the result is in no operand"),
            (sum("ij->ii", &[x]), "`i` is twice in the result"),
            (sum("i1", &[x]), "`1` in `i1` is no letter"),
            (sum("ij->i->j", &[x]), "`-` in"),
            (sum("i...j...", &[x]), "two ellipses"),
            (sum("i..j", &[x]), "`.` in"),
            (sum("...i,...i", &[x, ramp(&[4, 3])]), "`...` has size 4"),
            (sum("abcde,fghij", &[ramp(&[1, 2, 1, 2, 1]), ramp(&[2, 1, 2, 1, 2])]), "rank over 8"),
            (x.try_dot(v), "dot: needs ranks 1 and 1, got [2, 3] and [3]"),
            (v.try_dot(ramp(&[4])), "differ"),
            (v.try_mv(v), "mv: needs ranks 2 and 1"),
            (x.try_outer(v), "outer: needs ranks"),
            (x.try_bmm(x), "bmm: needs ranks"),
            (ramp(&[2, 1, 3]).try_bmm(ramp(&[1, 3, 2])), "batches of [2, 1, 3] and [1, 3, 2] differ"),
            (x.try_mm(v), "mm: needs ranks"),
            (w.try_addmm(x, ramp(&[3, 2])), "[4, 5] does not broadcast to the product's [2, 2]"),
            (x.try_tensordot(w, 1), "axis 1 of [2, 3] and axis 0 of [4, 5] differ"),
            (x.try_tensordot(w, 3), "3 common axes"),
            (x.try_tensordot(x, ([0, 0], [0, 1])), "paired twice"),
            (x.try_cross(x, 0), "axis 0 of [2, 3] has size 2, not 3"),
            (x.try_matrix_power(2), "needs square matrices over the last two axes, got [2, 3]"),
            (ramp(&[2; 5]).try_kron(ramp(&[2; 5])), "rank over 8"),
            (x.try_matmul(w), "do not fit"),
        ];
        let mut all = Vec::new();
        for (result, want) in wrong {
            let e = result.expect_err(want);
            all.push((e.kind(), e.to_string(), want));
        }
        Ok(all)
    };
    for (kind, text, want) in oracle().pass(found).unwrap() {
        assert!(
            matches!(kind, ErrorKind::Shape | ErrorKind::DType | ErrorKind::Argument),
            "{kind:?}: {text}"
        );
        assert!(text.contains(want), "`{want}` is not in {text}");
        assert!(text.contains(file!()), "no line of this file in {text}");
    }
}
