//! Passes computed in parts: rows of a batch, what is kept for later, inputs that come later, updates prepared
//! before they are committed.

use wgrad::{DType, ErrorKind, HostTensor, Param, vjp, vjp_found};

use super::tap::{Call, Tap, bits, fill, host};
use crate::Subject;

crate::suite![
    plain: ;
    device: rows_draw_what_the_whole_batch_draws, what_gradients_need_is_kept, inputs_may_come_later,
        prepared_updates_wait_for_the_end, gradients_that_are_not_there
];

fn rows_draw_what_the_whole_batch_draws(subject: &Subject) {
    let ctx = subject.context();
    let draw = |step: u64, row: usize, rows: usize| {
        let pass = ctx.begin().unwrap();
        pass.place(step, row).unwrap();
        let parts = [
            pass.rand("u", [rows, 3, 5]),
            pass.randn("n", [rows, 2]),
            pass.ones([rows, 7]).dropout("d", 0.5),
        ];
        parts.map(|x| x.to_vec::<f32>().unwrap())
    };
    let (whole, other) = (draw(4, 0, 6), draw(5, 0, 6));
    for (i, per_row) in [15, 2, 7].into_iter().enumerate() {
        assert_ne!(whole[i], other[i], "steps differ");
        let parts = [draw(4, 0, 1), draw(4, 1, 3), draw(4, 4, 2)].map(|part| part[i].clone());
        assert_eq!(parts.concat(), whole[i]);
        assert_eq!(whole[i].len(), 6 * per_row);
    }
    // A pass that was not placed goes on counting after the last one that was committed.
    let plain = ctx.pass(|p| p.rand("u", [6, 3, 5]).to_vec::<f32>()).unwrap();
    let again = ctx.pass(|p| p.rand("u", [6, 3, 5]).to_vec::<f32>()).unwrap();
    assert_ne!(plain, again);
    let error = ctx.begin().unwrap().place(0, 1 << 40).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Limit, "{error}");
}

/// A product whose result only the gradient of the nonlinearity needs is not computed twice.
fn what_gradients_need_is_kept(subject: &Subject) {
    let tap = Tap::new(subject.fresh());
    let ctx = tap.context();
    let (x, w) = (fill(&[4, 5], 0.1), fill(&[5, 5], 0.2));
    let run = |keeping: bool| {
        let pass = ctx.begin().unwrap();
        let (x, w) = (pass.input(&x).unwrap(), pass.input(&w).unwrap());
        let y = x.matmul(w).gelu().matmul(w).silu();
        let d = vjp(&[y], &[pass.ones([4, 5])], &[x, w]).unwrap();
        let later: &[wgrad::Tensor] = if keeping { &d } else { &[] };
        pass.compute_for(&[y], later).unwrap();
        assert_eq!(tap.take_products(), 2, "the forward pass");
        pass.compute(&d).unwrap();
        let products = tap.take_products();
        (products, d.map_vec())
    };
    let (kept, numbers) = run(true);
    let (again, same) = run(false);
    assert_eq!((kept, again), (4, 6), "products of the backward pass");
    if subject.is_cpu() || subject.is_oracle() {
        assert_eq!(numbers, same);
    }
}

/// The elements of several tensors.
trait MapVec {
    fn map_vec(&self) -> Vec<Vec<f64>>;
}

impl MapVec for Vec<wgrad::Tensor> {
    fn map_vec(&self) -> Vec<Vec<f64>> {
        self.iter().map(|t| t.to_vec::<f64>().unwrap()).collect()
    }
}

fn inputs_may_come_later(subject: &Subject) {
    let ctx = subject.context();
    let pass = ctx.begin().unwrap();
    let x = pass.input(host(&[3], &[1.0, 2.0, 3.0])).unwrap();
    let later = pass.input(host(&[3], &[0.0; 3])).unwrap();
    let y = x * later;
    pass.compute(&[x * 2.0]).unwrap();
    pass.replace(later, host(&[3], &[4.0, 5.0, 6.0])).unwrap();
    let kind = |t, data: HostTensor| pass.replace(t, data).unwrap_err().kind();
    assert_eq!(kind(later, host(&[2], &[0.0; 2])), ErrorKind::Shape);
    assert_eq!(kind(later, host(&[3], &[0.0; 3]).cast(DType::I32)), ErrorKind::DType);
    assert_eq!(kind(y, host(&[3], &[0.0; 3])), ErrorKind::Argument);
    assert_eq!(kind(x, host(&[3], &[0.0; 3])), ErrorKind::Argument, "it was computed from");
    assert_eq!(y.to_vec::<f32>().unwrap(), [4.0, 10.0, 18.0]);
    assert_eq!(kind(later, host(&[3], &[0.0; 3])), ErrorKind::Argument, "it was computed from");
    drop(pass);
    let stale = ctx.pass(|p| p.replace(later, host(&[3], &[0.0; 3]))).unwrap_err();
    assert_eq!(stale.kind(), ErrorKind::Stale);
}

fn prepared_updates_wait_for_the_end(subject: &Subject) {
    let tap = Tap::new(subject.backend());
    let ctx = tap.context();
    let w = Param::new(&ctx, "w", host(&[2], &[1.0, 2.0])).unwrap();
    // Prepared and dropped: nothing moved.
    let pass = ctx.begin().unwrap();
    w.set(w.t() * 3.0);
    pass.prepare().unwrap();
    drop(pass);
    assert_eq!(w.read().unwrap().to_vec::<f32>(), [1.0, 2.0]);
    // Prepared and ended: the end submits nothing.
    let pass = ctx.begin().unwrap();
    w.set(w.t() * 3.0);
    let sum = w.t().sum(..).deferred::<f32>();
    pass.prepare().unwrap();
    let submitted = tap.count(Call::Submit);
    pass.end().unwrap();
    assert_eq!(tap.count(Call::Submit), submitted);
    assert_eq!((w.read().unwrap().to_vec::<f32>(), sum.get().unwrap()), (vec![3.0, 6.0], 9.0));
    // A failure shows when it is prepared, and only there.
    for (call, kind) in [(Call::Submit, ErrorKind::OutOfMemory), (Call::Wait, ErrorKind::Timeout)] {
        let pass = ctx.begin().unwrap();
        w.set(w.t() * 3.0);
        tap.fail(call, kind);
        assert_eq!(pass.prepare().unwrap_err().kind(), kind);
        drop(pass);
        assert_eq!(w.read().unwrap().to_vec::<f32>(), [3.0, 6.0]);
        ctx.pass(|p| p.ones([2]).to_vec::<f32>()).unwrap();
    }
}

fn gradients_that_are_not_there(subject: &Subject) {
    let ctx = subject.context();
    ctx.pass(|p| {
        let (x, other) = (p.input(host(&[2], &[1.0, 2.0]))?, p.input(host(&[3], &[0.0; 3]))?);
        let found = vjp_found(&[x * x], &[p.ones([2])], &[other, x])?;
        assert!(found[0].is_none());
        assert_eq!(bits(&found[1].unwrap().read()?), bits(&host(&[2], &[2.0, 4.0])));
        let zeros = vjp(&[x * x], &[p.ones([2])], &[other])?;
        assert_eq!(zeros[0].to_vec::<f32>()?, [0.0; 3]);
        Ok(())
    })
    .unwrap();
}
