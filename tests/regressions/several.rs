//! Values of several devices and of pools that are gone.

#![expect(clippy::unwrap_used, reason = "tests")]

use wgrad::{Context, ErrorKind, HostTensor, Kept, Tensor};

use crate::Subject;
use crate::devices::{cpu, oracle};

crate::suite![
    plain: ;
    device: b283_operands_of_two_devices, b284_a_handle_into_a_pool_that_is_gone,
];

fn kept(ctx: &Context, x: f32) -> Kept {
    Kept::new(ctx, HostTensor::new([2], &[x; 2]).unwrap()).unwrap()
}

fn b283_operands_of_two_devices(on: &Subject) {
    let here = on.context();
    let there = if on.is_cpu() { oracle() } else { cpu() };
    let names = [here.caps().name.clone(), there.caps().name.clone()];
    let (a, b) = (kept(&here, 1.0), kept(&there, 2.0));
    let refused = |error: wgrad::Error| {
        let text = error.to_string();
        assert_eq!(error.kind(), ErrorKind::Device, "{text}");
        assert!(names.iter().all(|name| text.contains(name.as_str())), "both of {names:?} are named: {text}");
    };
    here.pass(|p| {
        let x = p.input(HostTensor::new([2], &[1f32, 2.0])?)?;
        refused(x.try_add(b.t()).unwrap_err());
        refused(a.t().try_mul(b.t()).unwrap_err());
        refused(Tensor::try_cat(&[a.t(), b.t()], 0).unwrap_err());
        refused(a.try_set(b.t()).unwrap_err());
        // What is wanted is said: a copy.
        assert_eq!((x + b.copy_to(&here)?.t()).to_vec::<f32>()?, [3.0, 4.0]);
        Ok(())
    })
    .unwrap();
}

fn b284_a_handle_into_a_pool_that_is_gone(on: &Subject) {
    let stale = |result: wgrad::Result<Vec<f32>>| {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Stale, "{error}");
        error.to_string()
    };
    // The pool of a pass, used again by the next one with a value in the same place.
    let ctx = on.context();
    let old = ctx.pass(|p| Ok(p.full([2], 1.0) * 2.0)).unwrap();
    ctx.pass(|p| {
        let new = p.full([2], 5.0) * 7.0;
        let text = stale(old.to_vec());
        assert!(text.contains("generation"), "{text}");
        stale((old.try_add(new)).and_then(|y| y.to_vec()));
        assert_eq!(new.to_vec::<f32>()?, [35.0, 35.0]);
        Ok(())
    })
    .unwrap();
    // The pool of owned values of a context, whose place another takes.
    let handle = {
        let ctx = on.context();
        let value = kept(&ctx, 3.0);
        assert_eq!(value.t().to_vec::<f32>().unwrap(), [3.0, 3.0]);
        value.t()
    };
    let next = on.context();
    let value = kept(&next, 4.0);
    stale(handle.to_vec());
    next.pass(|_| {
        assert!(value.t().try_add(handle).is_err());
        assert_eq!((value.t() + 1.0).to_vec::<f32>()?, [5.0, 5.0]);
        Ok(())
    })
    .unwrap();
}
