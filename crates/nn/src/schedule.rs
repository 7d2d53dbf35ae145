//! Learning rates as pure functions of the step.

use std::f64::consts::PI;

/// A learning rate for every step; the first step is 0.
///
/// ```
/// use wgrad_nn::{Cosine, Schedule};
/// let schedule = Cosine::new(1e-3, 900).warmup(100);       // 1000 steps in all
/// assert_eq!(schedule.at(99), 1e-3);
/// assert_eq!(schedule.at(1000), 0.0);
/// ```
pub trait Schedule {
    /// The learning rate of step `step`.
    fn at(&self, step: u64) -> f64;

    /// This schedule after `steps` steps that rise linearly to its first value and reach it in the
    /// last of them.
    fn warmup(self, steps: u64) -> Warmup<Self>
    where
        Self: Sized,
    {
        Warmup { steps, after: self }
    }

    /// This schedule for `steps` steps, then `next` from its own step 0.
    fn then<S: Schedule>(self, steps: u64, next: S) -> Then<Self, S>
    where
        Self: Sized,
    {
        Then { first: self, steps, next }
    }
}

impl<S: Schedule + ?Sized> Schedule for Box<S> {
    fn at(&self, step: u64) -> f64 {
        (**self).at(step)
    }
}

/// The same rate at every step.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Constant {
    rate: f64,
}

impl Constant {
    /// `rate` at every step.
    pub fn new(rate: f64) -> Constant {
        Constant { rate }
    }
}

impl Schedule for Constant {
    fn at(&self, _: u64) -> f64 {
        self.rate
    }
}

/// Half a cosine from `rate` at step 0 down to `floor` at step `steps` and after:
/// `floor + (rate - floor) * (1 + cos(pi * step / steps)) / 2` (Loshchilov and Hutter 2017).
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Cosine {
    rate: f64,
    floor: f64,
    steps: u64,
}

impl Cosine {
    /// From `rate` to 0 in `steps` steps.
    pub fn new(rate: f64, steps: u64) -> Cosine {
        Cosine { rate, floor: 0.0, steps }
    }

    /// The same fall, to `floor`.
    #[must_use]
    pub fn floor(self, floor: f64) -> Cosine {
        Cosine { floor, ..self }
    }
}

impl Schedule for Cosine {
    fn at(&self, step: u64) -> f64 {
        if step >= self.steps {
            return self.floor;
        }
        let part = step as f64 / self.steps as f64;
        self.floor + (self.rate - self.floor) * 0.5 * (1.0 + (PI * part).cos())
    }
}

/// A linear rise, then another schedule; made by [`Schedule::warmup`].
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Warmup<S> {
    steps: u64,
    after: S,
}

impl<S: Schedule> Schedule for Warmup<S> {
    fn at(&self, step: u64) -> f64 {
        if step < self.steps {
            self.after.at(0) * ((step + 1) as f64 / self.steps as f64)
        } else {
            self.after.at(step - self.steps)
        }
    }
}

/// One schedule after another; made by [`Schedule::then`].
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Then<A, B> {
    first: A,
    steps: u64,
    next: B,
}

impl<A: Schedule, B: Schedule> Schedule for Then<A, B> {
    fn at(&self, step: u64) -> f64 {
        if step < self.steps { self.first.at(step) } else { self.next.at(step - self.steps) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(schedule: &dyn Schedule, golden: &[(u64, f64)]) {
        for (step, rate) in golden {
            let got = schedule.at(*step);
            assert!((got - rate).abs() < 1e-15, "step {step}: {got}, expected {rate}");
        }
    }

    #[test]
    fn golden_values() {
        check(&Constant::new(0.1), &[(0, 0.1), (u64::MAX, 0.1)]);
        check(
            &Cosine::new(1.0, 4),
            &[
                (0, 1.0),
                (1, 0.853_553_390_593_273_8),
                (2, 0.5),
                (3, 0.146_446_609_406_726_2),
                (4, 0.0),
                (9, 0.0),
            ],
        );
        check(&Cosine::new(1.0, 4).floor(0.2), &[(0, 1.0), (2, 0.6), (4, 0.2), (5, 0.2)]);
        check(&Cosine::new(1.0, 4).warmup(4), &[(0, 0.25), (1, 0.5), (3, 1.0), (4, 1.0), (6, 0.5), (8, 0.0)]);
        let steps = Constant::new(1.0).then(2, Constant::new(0.1).then(1, Constant::new(0.01)));
        check(&steps, &[(0, 1.0), (1, 1.0), (2, 0.1), (3, 0.01), (4, 0.01)]);
    }

    #[test]
    fn empty_schedules_have_values() {
        check(&Cosine::new(1.0, 0), &[(0, 0.0)]);
        check(&Constant::new(0.3).warmup(0), &[(0, 0.3)]);
    }
}
