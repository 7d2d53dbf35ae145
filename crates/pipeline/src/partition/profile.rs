//! Measured times, links and sizes as a text that can be saved, so that one run's measurement serves the
//! next.

use std::fmt;
use std::str::FromStr;

use wgrad_graph::{Error, ErrorKind, Result};

use super::{DeviceSpec, Layer};
use crate::schedule::{Link, Links};

/// What a [`Problem`](super::Problem) is made of: layers, devices with measured times, and links.
///
/// Its text has a line an entry, with tabs between the columns; numbers read back as they were.
///
/// # Example
/// ```
/// use wgrad_pipeline::{DeviceSpec, Layer, Link, Links, Problem, partition::Profile};
/// # fn main() -> wgrad_graph::Result<()> {
/// let profile = Profile {
///     layers: vec![Layer::new("embed", 0.1), Layer::new("head", 0.3)],
///     devices: vec![DeviceSpec { times: vec![[0.1; 3], [0.2; 3]], ..DeviceSpec::new("GPU 0", 1.0) }],
///     links: Links::all(Link::new(1e-4, 8e9)),
/// };
/// let saved = profile.to_string();
/// assert_eq!(saved.parse::<Profile>()?, profile);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// The layers.
    pub layers: Vec<Layer>,
    /// The devices.
    pub devices: Vec<DeviceSpec>,
    /// The links between them.
    pub links: Links,
}

/// Names stand in columns, so they lose their tabs and line breaks.
fn plain(name: &str) -> String {
    name.split(['\t', '\n', '\r']).collect::<Vec<_>>().join(" ")
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Layer { name, forward, input, weight, params, stash, output } in &self.layers {
            writeln!(f, "layer\t{}\t{forward}\t{input}\t{weight}\t{params}\t{stash}\t{output}", plain(name))?;
        }
        for DeviceSpec { name, speed, memory, workspace, times } in &self.devices {
            writeln!(f, "device\t{}\t{speed}\t{memory}\t{workspace}", plain(name))?;
            for [forward, input, weight] in times {
                writeln!(f, "time\t{forward}\t{input}\t{weight}")?;
            }
        }
        let Link { latency, bandwidth } = self.links.every();
        writeln!(f, "links\t{latency}\t{bandwidth}")?;
        for ((from, to), Link { latency, bandwidth }) in self.links.special() {
            writeln!(f, "link\t{from}\t{to}\t{latency}\t{bandwidth}")?;
        }
        Ok(())
    }
}

/// The columns of one line.
struct Line<'a> {
    number: usize,
    columns: Vec<&'a str>,
}

impl Line<'_> {
    fn refuse(&self, why: &str) -> Error {
        let detail = format!("line {}: {why}", self.number + 1);
        Error::new(ErrorKind::Data, "Profile::from_str", detail)
    }

    fn get<T: FromStr>(&self, column: usize) -> Result<T> {
        let text = self.columns.get(column).copied().unwrap_or_default();
        text.parse()
            .map_err(|_| self.refuse(&format!("`{text}` in column {} is not what it must be", column + 1)))
    }

    fn three(&self, first: usize) -> Result<[f64; 3]> {
        Ok([self.get(first)?, self.get(first + 1)?, self.get(first + 2)?])
    }
}

impl FromStr for Profile {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut profile = Profile { layers: vec![], devices: vec![], links: Links::all(Link::FREE) };
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let line = Line { number, columns: line.split('\t').collect() };
            match line.columns[0] {
                "layer" => {
                    let [forward, input, weight] = line.three(2)?;
                    let (params, stash, output) = (line.get(5)?, line.get(6)?, line.get(7)?);
                    let name = line.get(1)?;
                    profile.layers.push(Layer { name, forward, input, weight, params, stash, output });
                }
                "device" => {
                    let (speed, memory, workspace) = (line.get(2)?, line.get(3)?, line.get(4)?);
                    let name = line.get(1)?;
                    profile.devices.push(DeviceSpec { name, speed, memory, workspace, times: vec![] });
                }
                "time" => match profile.devices.last_mut() {
                    Some(device) => device.times.push(line.three(1)?),
                    None => return Err(line.refuse("a time before the first device")),
                },
                "links" => profile.links = Links::all(Link::new(line.get(1)?, line.get(2)?)),
                "link" => {
                    let link = Link::new(line.get(3)?, line.get(4)?);
                    profile.links = profile.links.with(line.get(1)?, line.get(2)?, link);
                }
                other => return Err(line.refuse(&format!("`{other}` starts no line of a profile"))),
            }
        }
        Ok(profile)
    }
}
