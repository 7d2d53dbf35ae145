//! Partitions without measured costs: even, by parameters, at named layers, from a layout string.

use wgrad_graph::{Result, bail};

use super::{DeviceSpec, Layer, Partition, Problem};
use crate::schedule::split_batch;

/// Stages with equal numbers of layers, or one more in the first ones.
///
/// # Errors
/// `Argument` for no stages, or more stages than layers.
///
/// # Example
/// ```
/// let partition = wgrad_pipeline::partition::uniform(10, 4)?;
/// assert_eq!(partition.stages(), [0..3, 3..6, 6..8, 8..10]);
/// # Ok::<(), wgrad_graph::Error>(())
/// ```
pub fn uniform(layers: usize, stages: usize) -> Result<Partition> {
    if stages == 0 || stages > layers {
        bail!(Argument, "partition::uniform", "{layers} layers cannot fill {stages} stages");
    }
    let mut cuts = Vec::new();
    let mut end = 0;
    for size in &split_batch(layers, stages)?[..stages - 1] {
        end += size;
        cuts.push(end);
    }
    Partition::new(layers, &cuts)
}

/// Stages whose largest sum of `weights` is as small as possible.
///
/// # Errors
/// `Argument` for no stages, more stages than layers, or a negative weight.
///
/// # Example
/// ```
/// let partition = wgrad_pipeline::partition::by_weight(&[1.0, 5.0, 2.0, 2.0], 3)?;
/// assert_eq!(partition.cuts(), [1, 2]);
/// # Ok::<(), wgrad_graph::Error>(())
/// ```
pub fn by_weight(weights: &[f64], stages: usize) -> Result<Partition> {
    let layer = |(i, &weight): (usize, &f64)| Layer { forward: weight, ..Layer::new(i.to_string(), 0.0) };
    let devices = (0..stages).map(|s| DeviceSpec::new(s.to_string(), 1.0)).collect();
    Problem::new(weights.iter().enumerate().map(layer).collect(), devices).solve()
}

/// Stages whose largest number of parameters is as small as possible.
///
/// # Errors
/// `Argument` for no stages, or more stages than layers.
///
/// # Example
/// ```
/// let partition = wgrad_pipeline::partition::by_parameters(&[52, 12, 12, 12, 0, 52], 2)?;
/// assert_eq!(partition.cuts(), [2]);
/// # Ok::<(), wgrad_graph::Error>(())
/// ```
pub fn by_parameters(params: &[u64], stages: usize) -> Result<Partition> {
    by_weight(&params.iter().map(|&p| p as f64).collect::<Vec<_>>(), stages)
}

/// Stages with as equal numbers as possible of those layers whose name `counts`.
///
/// # Errors
/// `Argument` for no stages, or more stages than layers.
///
/// # Example
/// ```
/// let names = ["embed", "block", "block", "norm", "head"];
/// let partition = wgrad_pipeline::partition::matching(&names, |name| name == "block", 2)?;
/// assert_eq!(partition.stage_of(1) + 1, partition.stage_of(2));
/// # Ok::<(), wgrad_graph::Error>(())
/// ```
pub fn matching(names: &[&str], counts: impl Fn(&str) -> bool, stages: usize) -> Result<Partition> {
    by_weight(&names.iter().map(|n| f64::from(u8::from(counts(n)))).collect::<Vec<_>>(), stages)
}

/// Stages that begin at the layers named in `starts` (and at the first layer).
///
/// # Errors
/// `Argument` for a name that no layer has or several have, and for a cut before the first layer.
///
/// # Example
/// ```
/// let partition = wgrad_pipeline::partition::at_names(&["embed", "block.0", "block.1", "head"], &["block.1"])?;
/// assert_eq!(partition.cuts(), [2]);
/// # Ok::<(), wgrad_graph::Error>(())
/// ```
pub fn at_names(names: &[&str], starts: &[&str]) -> Result<Partition> {
    let op = "partition::at_names";
    let mut cuts = Vec::new();
    for start in starts {
        let places: Vec<usize> = (0..names.len()).filter(|&i| names[i] == *start).collect();
        match places[..] {
            [] => bail!(Argument, op, "no layer has the name `{start}`; there are {}", names.join(", ")),
            [0] => bail!(Argument, op, "`{start}` is the first layer, where a stage begins anyway"),
            [place] => cuts.push(place),
            _ => bail!(Argument, op, "layers {places:?} have the name `{start}`"),
        }
    }
    cuts.sort_unstable();
    Partition::new(names.len(), &cuts)
}

/// Stages from a layout string: a letter a layer, `|` between stages, `*3` repeats the letter or the group
/// in parentheses before it; spaces and commas mean nothing. `"Et*3|(tt|)*2,mL"` is `Ettt|tt|tt|mL`.
///
/// # Errors
/// `Argument` for a malformed string, an empty stage, or another number of letters than `layers`.
///
/// # Example
/// ```
/// let partition = wgrad_pipeline::partition::layout(10, "Et*3|(tt|)*2,mL")?;
/// assert_eq!(partition.cuts(), [4, 6, 8]);
/// # Ok::<(), wgrad_graph::Error>(())
/// ```
pub fn layout(layers: usize, text: &str) -> Result<Partition> {
    let op = "partition::layout";
    let symbols: Vec<char> = text.chars().filter(|c| !c.is_whitespace() && *c != ',').collect();
    let mut at = 0;
    let flat = expand(&symbols, &mut at, layers)?;
    if at < symbols.len() {
        bail!(Argument, op, "`{text}` closes a group that it does not open");
    }
    let (mut cuts, mut seen, mut filled) = (Vec::new(), 0, false);
    for symbol in flat {
        if symbol != '|' {
            (seen, filled) = (seen + 1, true);
        } else if filled {
            cuts.push(seen);
            filled = false;
        } else {
            bail!(Argument, op, "`{text}` has an empty stage after {seen} layers");
        }
    }
    if seen != layers {
        bail!(Argument, op, "`{text}` has {seen} layers; the model has {layers}");
    }
    if !filled {
        bail!(Argument, op, "`{text}` ends with an empty stage");
    }
    Partition::new(layers, &cuts)
}

/// Writes repetitions out, up to the end or a closing parenthesis.
fn expand(symbols: &[char], at: &mut usize, layers: usize) -> Result<Vec<char>> {
    let op = "partition::layout";
    let mut flat = Vec::new();
    while let Some(&symbol) = symbols.get(*at).filter(|c| **c != ')') {
        *at += 1;
        let item = match symbol {
            '(' => {
                let group = expand(symbols, at, layers)?;
                if symbols.get(*at) != Some(&')') {
                    bail!(Argument, op, "a group is not closed");
                }
                *at += 1;
                group
            }
            '|' => vec!['|'],
            letter if letter.is_alphabetic() => vec![letter],
            _ => bail!(Argument, op, "`{symbol}` is no layer; there are letters, |, ( ), *number"),
        };
        let mut times = 1;
        if symbols.get(*at) == Some(&'*') {
            let digits: String = symbols[*at + 1..].iter().take_while(|c| c.is_ascii_digit()).collect();
            *at += 1 + digits.len();
            times = match digits.parse::<usize>() {
                Ok(times) if times > 0 => times,
                _ => bail!(Argument, op, "`*{digits}` repeats nothing; write *1 or more"),
            };
        }
        // A layout of so many layers has no more symbols than this.
        if flat.len() + item.len().saturating_mul(times) > 2 * layers + 1 {
            bail!(Argument, op, "the layout has more layers or stages than the model's {layers} layers");
        }
        for _ in 0..times {
            flat.extend_from_slice(&item);
        }
    }
    Ok(flat)
}
