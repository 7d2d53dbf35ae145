//! Timelines as text and as pictures.

use super::{hops, ticks};
use crate::schedule::{Passage, Span, gpipe, one_f_one_b};
use crate::{Action, Kind, Message, Payload, StageCost, Timeline};

#[test]
fn uneven_times_in_text() {
    let schedule = gpipe(2, 1).unwrap();
    let mut costs = hops(&schedule, 0.5);
    costs.stages[1] = StageCost::new(1.5, 0.5, 0.5);
    let timeline = schedule.simulate(&costs).unwrap().timeline();
    // F0 0..1 | F0 1.5..3, B0 3..4 | B0 4.5..6.5
    let expected = "\
D0|F0|- |. |. |. |. |. |. |. |B0|- |- |- |
D1|. |. |. |F0|- |- |B0|- |. |. |. |. |. |
";
    assert_eq!(timeline.text(0.5), expected);
    assert_eq!(timeline.to_text(), expected);
    // At a coarse tick short actions vanish, but nothing breaks.
    assert_eq!(timeline.text(100.0), "D0|\nD1|\n");
    assert_eq!(timeline.end(), 6.5);
}

#[test]
fn measured_runs_are_drawn_alike() {
    let schedule = one_f_one_b(3, 4).unwrap();
    let run = schedule.simulate(&ticks(&schedule)).unwrap();
    let mut spans = run.spans.clone();
    let message = Message { payload: Payload::Activation, from: 0, to: 1, micro_batch: 0 };
    spans.push(Span { device: 0, action: message.send(), start: 1.0, end: 1.0 });
    let measured = Timeline::measured(&schedule, &spans, &run.passages);
    assert_eq!(measured.text(1.0), run.timeline().text(1.0));
    let passage = Passage { message, sent: 1.0, arrived: 2.0, taken: 2.0 };
    let one = Timeline::measured(&schedule, &[], &[passage]);
    assert_eq!((one.end(), one.to_text()), (0.0, String::new()));
    assert!(one.svg().ends_with("</svg>\n"));
}

#[test]
fn pictures_show_every_action_and_message() {
    let schedule = one_f_one_b(4, 8).unwrap();
    let mut costs = hops(&schedule, 0.25);
    for stage in &mut costs.stages {
        stage.update = 0.5;
    }
    let run = schedule.simulate(&costs).unwrap();
    let mut timeline = run.timeline();
    timeline.devices[0] = "<gpu & cpu>".into();
    let svg = timeline.svg();
    let count = |what: &str| svg.matches(what).count();
    assert_eq!(count("<rect"), 1 + 64 + 4, "background, actions, updates");
    assert_eq!(count("stroke=\"#999999\""), schedule.messages().len());
    assert_eq!(count("<title>"), count("</title>"));
    assert_eq!(count("<text"), count("</text>"));
    assert_eq!(count("&lt;gpu &amp; cpu&gt;"), 1);
    assert_eq!(count("NaN") + count("inf"), 0);
    let update = Action::new(Kind::Update, 2, 0);
    assert_eq!(schedule.label(update), "U");
}

#[test]
fn updates_wait_for_all_stages() {
    let schedule = one_f_one_b(3, 2).unwrap();
    let mut costs = ticks(&schedule);
    for (stage, cost) in costs.stages.iter_mut().enumerate() {
        (cost.update, cost.reduce) = (1.0 + stage as f64, 0.5);
    }
    let run = schedule.simulate(&costs).unwrap();
    let of = |kind| run.spans.iter().filter(move |s| s.action.kind == kind);
    // The first stage ends last: 12 ticks and its reduction.
    assert!(of(Kind::Update).all(|s| s.start == 12.5), "{:?}", of(Kind::Update).collect::<Vec<_>>());
    assert_eq!(of(Kind::Reduce).count(), 3);
    assert_eq!(run.makespan, 15.5);
}
