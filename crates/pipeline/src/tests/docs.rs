//! Keeps the tables of `docs/pipeline.md` current; `WGRAD_BLESS=1` writes them.

use std::fmt::Write;
use std::path::Path;

use super::{hops, ticks};
use crate::{Channels, Family, Schedule, Wiring};

const BEGIN: &str = "<!-- made by a test: -->\n";
const END: &str = "<!-- until here -->\n";

fn families() -> [Family; 5] {
    [Family::GPipe, Family::OneFOneB, Family::EagerOneFOneB, Family::Interleaved { chunks: 2 }, Family::ZbH1]
}

/// The stash of a device in stages: a chunk is half of one.
fn stash(schedule: &Schedule) -> String {
    let proof = schedule.check(&Wiring::edges(2)).unwrap();
    let chunks = schedule.stages() as f64 / schedule.lists().len() as f64;
    proof.stash.iter().map(|&s| format!("{}", s as f64 / chunks)).collect::<Vec<_>>().join(", ")
}

fn tables() -> String {
    let mut text = String::from(
        "| schedule | ticks | bubble | stash of D0..D3 | messages a step | slots: needed, at full speed |\n\
         |---|---|---|---|---|---|\n",
    );
    for family in families() {
        let schedule = family.make(4, 8).unwrap();
        let run = schedule.simulate(&ticks(&schedule)).unwrap();
        let wiring = schedule.wiring(&ticks(&schedule)).unwrap();
        let most = schedule.messages().iter().map(|m| wiring.slots(m.from, m.to)).max().unwrap();
        writeln!(
            text,
            "| `{family}` | {} | {:.1} % | {} | {} | {}, {most} |",
            run.makespan / family.chunks() as f64,
            100.0 * run.bubble(),
            stash(&schedule),
            schedule.messages().len(),
            schedule.fewest_slots(Channels::Edges).unwrap(),
        )
        .unwrap();
    }
    text += "\nTicks when a handover takes so many:\n\n| schedule |";
    let costs = [0.0, 0.1, 0.2, 0.5, 1.0, 2.0];
    for hop in costs {
        write!(text, " {hop} |").unwrap();
    }
    text += "\n|---|---|---|---|---|---|---|\n";
    for family in families() {
        write!(text, "| `{family}` |").unwrap();
        let chunks = family.chunks() as f64;
        for hop in costs {
            let schedule = family.make(4, 8).unwrap();
            let run = schedule.simulate(&hops(&schedule, hop * chunks)).unwrap();
            write!(text, " {:.1} |", run.makespan / chunks).unwrap();
        }
        text.push('\n');
    }
    for family in families() {
        let schedule = family.make(4, 8).unwrap();
        let run = schedule.simulate(&ticks(&schedule)).unwrap();
        write!(text, "\n`{family}`:\n```\n{}```\n", run.timeline().text(1.0)).unwrap();
    }
    text
}

#[test]
fn the_tables_are_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/pipeline.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(BEGIN).expect("docs/pipeline.md has a place for the tables");
    let (found, after) = rest.split_once(END).expect("docs/pipeline.md has an end of the tables");
    let want = tables();
    if std::env::var("WGRAD_BLESS").is_ok() {
        std::fs::write(&path, format!("{before}{BEGIN}{want}{END}{after}")).unwrap();
        return;
    }
    assert!(found == want, "docs/pipeline.md is not current; WGRAD_BLESS=1 writes it:\n{want}");
}
