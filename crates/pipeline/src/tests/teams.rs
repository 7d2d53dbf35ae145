//! Collectives between threads.

use std::thread;
use std::time::{Duration, Instant};

use wgrad_graph::{ErrorKind, Result, Shape};

use crate::{Collective, Team};

fn far() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn soon() -> Instant {
    Instant::now() + Duration::from_millis(40)
}

/// Runs `f` on every rank, a thread each.
fn all<T: Send>(size: usize, f: impl Fn(&Team) -> T + Sync) -> Vec<T> {
    let f = &f;
    thread::scope(|s| {
        let threads: Vec<_> = Team::of(size).into_iter().map(|team| s.spawn(move || f(&team))).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

fn shape(len: usize) -> Shape {
    Shape::from([len])
}

/// What rank `rank` has at call `call`.
fn given(rank: usize, call: usize, len: usize) -> Vec<f32> {
    (0..len).map(|i| ((rank * 31 + call * 17 + i * 7) as f32 * 0.618_034).fract() - 0.5).collect()
}

#[test]
fn a_thousand_sums_in_a_row_are_each_their_own() {
    for size in 1..=4 {
        let sums = all(size, |team| {
            (0..1000)
                .map(|call| {
                    // Fewer elements than ranks, more, and none.
                    let len = call % 7;
                    let mut values = given(team.rank(), call, len);
                    team.all_reduce(&mut values, shape(len), far()).unwrap();
                    values
                })
                .collect::<Vec<_>>()
        });
        for call in 0..1000 {
            // In the order of ranks: the bits are those of a loop.
            let mut want = given(0, call, call % 7);
            for rank in 1..size {
                want.iter_mut().zip(given(rank, call, call % 7)).for_each(|(sum, x)| *sum += x);
            }
            for rank in &sums {
                assert_eq!(rank[call], want, "{size} ranks, call {call}");
            }
        }
    }
}

#[test]
fn large_sums_are_those_of_a_loop_on_all_ranks() {
    let len = (1 << 20) + 13;
    let sums = all(3, |team| {
        let mut values = given(team.rank(), 0, len);
        team.all_reduce(&mut values, shape(len), far()).unwrap();
        values
    });
    let parts = [0, 1, 2].map(|rank| given(rank, 0, len));
    let want: Vec<f32> = (0..len).map(|i| parts[0][i] + parts[1][i] + parts[2][i]).collect();
    assert!(sums.iter().all(|s| *s == want));
}

#[test]
fn parts_of_several_sizes_are_gathered_in_order() {
    let gathered = all(3, |team| {
        let (mut all, rank) = (Vec::new(), team.rank());
        for call in 0..50 {
            let own = Shape::from([2, (rank + call) % 3]);
            all.push(team.all_gather(&given(rank, call, own.elems()), own, far()).unwrap());
        }
        all
    });
    for ranks in &gathered {
        for (call, parts) in ranks.iter().enumerate() {
            for (rank, (shape, values)) in parts.iter().enumerate() {
                assert_eq!(shape.dims(), [2, (rank + call) % 3]);
                assert_eq!(*values, given(rank, call, shape.elems()));
            }
        }
    }
}

#[test]
fn one_rank_gives_to_all() {
    let taken = all(3, |team| {
        let mut all = Vec::new();
        for call in 0..30 {
            let mut values = given(team.rank(), call, 5);
            team.broadcast(call % 3, &mut values, shape(5), far()).unwrap();
            team.barrier(far()).unwrap();
            all.push(values);
        }
        let refused = team.broadcast(3, &mut [], shape(0), far()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Argument);
        all
    });
    for rank in &taken {
        for (call, values) in rank.iter().enumerate() {
            assert_eq!(*values, given(call % 3, call, 5));
        }
    }
}

/// The errors of all ranks, where rank 1 makes its own call.
fn mismatch(other: impl Fn(&Team) -> Result<()> + Sync) -> Vec<String> {
    let errors = all(2, |team| match team.rank() {
        0 => team.all_reduce(&mut [1.0, 2.0], Shape::from([1, 2]), far()),
        _ => other(team),
    });
    let text = |result: Result<()>| {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Data, "{error}");
        error.to_string()
    };
    errors.into_iter().map(text).collect()
}

#[test]
fn ranks_that_make_different_calls_are_named() {
    for text in mismatch(|t| t.all_reduce(&mut [1.0, 2.0], Shape::from([2, 1]), far())) {
        assert!(text.contains("rank 0 makes call 0, AllReduce of [1, 2]"), "{text}");
        assert!(text.contains("rank 1 makes call 0, AllReduce of [2, 1]"), "{text}");
    }
    for text in mismatch(|t| t.broadcast(0, &mut [1.0, 2.0], Shape::from([1, 2]), far())) {
        assert!(text.contains("rank 1 makes call 0, Broadcast { root: 0 } of [1, 2]"), "{text}");
    }
    for text in mismatch(|t| t.barrier(far())) {
        assert!(text.contains("AllReduce") && text.contains("Barrier"), "{text}");
    }
    // A call with the wrong number of values is refused before anybody hears of it.
    let team = &Team::of(2)[0];
    let refused = team.all_reduce(&mut [1.0], shape(2), soon()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Shape);
}

#[test]
fn a_call_that_ran_out_of_time_goes_on_when_it_is_made_again() {
    let sums = all(2, |team| {
        let mut values = [team.rank() as f32 + 1.0];
        if team.rank() == 1 {
            thread::sleep(Duration::from_millis(120));
            team.all_reduce(&mut values, shape(1), far()).unwrap();
        } else {
            let late = team.all_reduce(&mut values, shape(1), soon()).unwrap_err();
            assert_eq!(late.kind(), ErrorKind::Timeout);
            assert!(late.to_string().contains("rank 0 waited 0.0 s for ranks [1] in call 0"), "{late}");
            assert_eq!(team.barrier(soon()).unwrap_err().kind(), ErrorKind::Argument, "another call");
            team.all_reduce(&mut values, shape(1), far()).unwrap();
        }
        let first = values[0];
        team.all_reduce(&mut values, shape(1), far()).unwrap();
        [first, values[0]]
    });
    assert_eq!(sums, [[3.0, 6.0]; 2]);
}

#[test]
fn closing_ends_every_wait() {
    let begun = Instant::now();
    let ended = all(3, |team| {
        if team.rank() == 2 {
            thread::sleep(Duration::from_millis(30));
            team.close();
        }
        let error = team.all_reduce(&mut [1.0], shape(1), far());
        (error.is_err(), team.barrier(far()).is_err())
    });
    assert!(ended[..2].iter().all(|e| e.0 && e.1), "{ended:?}");
    assert!(begun.elapsed() < Duration::from_secs(20));
}
