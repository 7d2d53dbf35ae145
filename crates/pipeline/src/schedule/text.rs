//! The text form of a schedule, which reads back as the same schedule.

use std::fmt;
use std::str::FromStr;

use wgrad_graph::{Error, ErrorKind, Result};

use super::{Action, Edge, Kind, Schedule};

/// Chunk 0 is `a`, 25 is `z`, 26 is `aa`.
fn letters(mut chunk: usize) -> String {
    let mut text = Vec::new();
    loop {
        text.insert(0, b'a' + (chunk % 26) as u8);
        if chunk < 26 {
            return text.into_iter().map(char::from).collect();
        }
        chunk = chunk / 26 - 1;
    }
}

impl Schedule {
    /// The action in the text form: `F3` is the forward pass of micro-batch 3, `F3b` that of the device's
    /// second stage, `F3>2` hands its result to stage 2, `F3<1` takes that of stage 1; `B3>1` hands a
    /// gradient to stage 1, `B3<2` takes one from stage 2; `R` reduces, `U` updates.
    ///
    /// # Example
    /// ```
    /// use wgrad_pipeline::{Action, Kind, schedule};
    /// # fn main() -> wgrad_graph::Result<()> {
    /// let schedule = schedule::interleaved(2, 2, 4)?;
    /// assert_eq!(schedule.label(Action::new(Kind::Forward, 3, 1)), "F1b");
    /// # Ok(())
    /// # }
    /// ```
    pub fn label(&self, action: Action) -> String {
        let stages = self.stages_of(self.devices[action.stage]);
        let chunk = match stages.iter().position(|&s| s == action.stage) {
            Some(chunk) if stages.len() > 1 => letters(chunk),
            _ => String::new(),
        };
        let m = action.micro_batch;
        match action.kind {
            Kind::Forward => format!("F{m}{chunk}"),
            Kind::Backward => format!("B{m}{chunk}"),
            Kind::BackwardInput => format!("I{m}{chunk}"),
            Kind::BackwardWeight => format!("W{m}{chunk}"),
            Kind::SendActivation { to } => format!("F{m}{chunk}>{to}"),
            Kind::RecvActivation { from } => format!("F{m}{chunk}<{from}"),
            Kind::SendGradient { to } => format!("B{m}{chunk}>{to}"),
            Kind::RecvGradient { from } => format!("B{m}{chunk}<{from}"),
            Kind::Reduce => format!("R{chunk}"),
            Kind::Update => format!("U{chunk}"),
        }
    }
}

/// The text form: a line each for the name, the number of micro-batches, the device of each stage and the
/// edges (`0>1`, or `0-1` where no gradient comes back), then one for the list of each device.
impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "schedule {}", self.name)?;
        writeln!(f, "micro-batches {}", self.micro_batches)?;
        let devices: Vec<String> = self.devices.iter().map(ToString::to_string).collect();
        writeln!(f, "stages {}", devices.join(" "))?;
        let edge = |e: &Edge| format!(" {}{}{}", e.from, if e.gradient { '>' } else { '-' }, e.to);
        writeln!(f, "edges{}", self.edges.iter().map(edge).collect::<String>())?;
        for (device, list) in self.lists.iter().enumerate() {
            let list: String = list.iter().map(|&a| format!(" {}", self.label(a))).collect();
            writeln!(f, "D{device}:{list}")?;
        }
        Ok(())
    }
}

fn refuse<T>(line: usize, why: impl fmt::Display) -> Result<T> {
    Err(Error::new(ErrorKind::Data, "Schedule::from_str", format!("line {}: {why}", line + 1)))
}

/// Reads the text form. The lists of all devices are enough: without a line for them there is one stage
/// a device, each stage feeds the next, and the micro-batches are those that occur. `#` starts a comment.
///
/// # Example
/// ```
/// use wgrad_pipeline::Schedule;
/// # fn main() -> wgrad_graph::Result<()> {
/// let schedule: Schedule = "D0: F0 F1 B0 B1\nD1: F0 B0 F1 B1".parse()?;
/// assert_eq!((schedule.stages(), schedule.micro_batches()), (2, 2));
/// # Ok(())
/// # }
/// ```
impl FromStr for Schedule {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (mut name, mut micro_batches, mut devices, mut edges) = (None, None, None, None);
        let mut lists = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
            match word {
                "" => {}
                "schedule" => name = Some(rest.trim().to_owned()),
                "micro-batches" => micro_batches = Some(count(number, rest.trim())?),
                "stages" => {
                    let places = rest.split_whitespace().map(|d| count(number, d));
                    devices = Some(places.collect::<Result<Vec<usize>>>()?);
                }
                "edges" => {
                    let all = rest.split_whitespace().map(|e| edge(number, e));
                    edges = Some(all.collect::<Result<Vec<Edge>>>()?);
                }
                _ => match word.strip_prefix('D').map(|d| d.trim_end_matches(':').parse::<usize>()) {
                    Some(Ok(device)) if device == lists.len() => lists.push((number, rest)),
                    Some(Ok(device)) => {
                        return refuse(number, format!("D{device} follows {} devices", lists.len()));
                    }
                    _ => return refuse(number, format!("`{word}` starts no line of a schedule")),
                },
            }
        }
        let devices = devices.unwrap_or_else(|| (0..lists.len()).collect());
        let read = |(device, &(number, rest)): (usize, &(usize, &str))| {
            let stages: Vec<usize> = (0..devices.len()).filter(|&s| devices[s] == device).collect();
            rest.split_whitespace().map(|w| action(number, w, &stages)).collect::<Result<Vec<Action>>>()
        };
        let lists = lists.iter().enumerate().map(read).collect::<Result<Vec<_>>>()?;
        let seen = lists.iter().flatten().map(|a| a.micro_batch + 1).max().unwrap_or(0);
        let name = name.unwrap_or_else(|| "by hand".into());
        let schedule = Schedule::new(name, micro_batches.unwrap_or(seen), devices, lists)?;
        match edges {
            Some(edges) => schedule.set_edges(edges),
            None => Ok(schedule),
        }
    }
}

fn count(line: usize, word: &str) -> Result<usize> {
    match word.parse() {
        Ok(n) => Ok(n),
        Err(_) => refuse(line, format!("`{word}` is not a number")),
    }
}

fn edge(line: usize, word: &str) -> Result<Edge> {
    let Some((from, to)) = word.split_once(['>', '-']) else {
        return refuse(line, format!("`{word}` is no edge; write 0>1, or 0-1 for one without gradient"));
    };
    Ok(Edge { from: count(line, from)?, to: count(line, to)?, gradient: word.contains('>') })
}

const ACTIONS: &str = "there are F0 B0 I0 W0 R U, and F0>1 F0<1 B0>1 B0<1 for messages";

/// One action of a device that has `stages`.
fn action(line: usize, word: &str, stages: &[usize]) -> Result<Action> {
    let rest = word.trim_start_matches(['F', 'B', 'I', 'W', 'R', 'U']);
    if word.len() - rest.len() != 1 {
        return refuse(line, format!("`{word}` is no action; {ACTIONS}"));
    }
    let (own, far) = match rest.find(['<', '>']) {
        Some(at) => (&rest[..at], Some(&rest[at..])),
        None => (rest, None),
    };
    let digits = own.len() - own.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, chunk) = own.split_at(digits);
    let chunk = match chunk {
        "" if stages.len() <= 1 => Some(0),
        _ => (0..stages.len()).find(|&c| letters(c) == chunk),
    };
    let Some(&stage) = chunk.and_then(|c| stages.get(c)) else {
        return refuse(line, format!("`{word}` names no stage of this device, which has {}", stages.len()));
    };
    let whole = word.starts_with(['R', 'U']);
    let micro_batch = match number {
        "" if whole => 0,
        "" => return refuse(line, format!("`{word}` names no micro-batch")),
        _ => count(line, number)?,
    };
    let far = match far {
        Some(far) => Some((far.starts_with('>'), count(line, &far[1..])?)),
        None => None,
    };
    let kind = match (word.chars().next(), far) {
        (Some('F'), None) => Kind::Forward,
        (Some('B'), None) => Kind::Backward,
        (Some('I'), None) => Kind::BackwardInput,
        (Some('W'), None) => Kind::BackwardWeight,
        (Some('F'), Some((true, to))) => Kind::SendActivation { to },
        (Some('F'), Some((false, from))) => Kind::RecvActivation { from },
        (Some('B'), Some((true, to))) => Kind::SendGradient { to },
        (Some('B'), Some((false, from))) => Kind::RecvGradient { from },
        (Some('R'), None) => Kind::Reduce,
        (Some('U'), None) => Kind::Update,
        _ => return refuse(line, format!("`{word}` is no action; {ACTIONS}")),
    };
    Ok(Action::new(kind, stage, micro_batch))
}
