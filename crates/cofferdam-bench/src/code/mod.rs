//! How long `print(1)` takes in Python and JavaScript through `execute`, behind each wall: in a sandbox made for it, in one
//! that lives, in a live session; against the bare interpreter, in one run.

mod field;
mod report;

use std::fmt;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum;
use cofferdam::registry::{self, CONTAINER_BACKEND, MACHINE_BACKEND, MODULE_BACKEND};

use crate::host::machine;
use crate::options::CodeOptions;
use crate::results::{self, File};
use crate::rounds::{Orders, takes_part, turns};
use crate::sample::Sample;
use field::Field;
use report::Report;

/// What is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Lang {
    /// `print(1)`
    Python,
    /// `console.log(1)`
    #[value(name = "javascript")]
    JavaScript,
}

impl Lang {
    const ALL: [Self; 2] = [Self::Python, Self::JavaScript];

    fn name(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::JavaScript => "javascript",
        }
    }

    fn code(self) -> &'static str {
        match self {
            Self::Python => "print(1)",
            Self::JavaScript => "console.log(1)",
        }
    }

    /// The interpreter, and the option that code comes after.
    fn bare(self) -> [&'static str; 2] {
        match self {
            Self::Python => ["python3", "-c"],
            Self::JavaScript => ["node", "-e"],
        }
    }

    /// Has the interpreter print where it is: what a search path leads to may be a script that looks for it.
    fn place(self) -> &'static str {
        match self {
            Self::Python => "import sys; print(sys.executable)",
            Self::JavaScript => "console.log(process.execPath)",
        }
    }
}

/// A backend, by its name in the registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Wall(&'static str);

const WALLS: [Wall; 4] =
    [Wall(MODULE_BACKEND), Wall(registry::DEFAULT_BACKEND), Wall(CONTAINER_BACKEND), Wall(MACHINE_BACKEND)];

/// One way to run it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// The interpreter alone.
    Bare,
    /// A sandbox made for one call.
    New(Wall),
    /// A sandbox that lives.
    Live(Wall),
    /// A session: an interpreter that lives in a sandbox.
    Session(Wall),
}

impl Way {
    fn all() -> impl Iterator<Item = Self> {
        let of = |make: fn(Wall) -> Self| WALLS.into_iter().map(make);
        [Self::Bare].into_iter().chain(of(Self::New)).chain(of(Self::Live)).chain(of(Self::Session))
    }

    fn slug(self) -> String {
        match self {
            Self::Bare => "bare".to_owned(),
            Self::New(wall) => format!("new-{}", wall.0),
            Self::Live(wall) => format!("live-{}", wall.0),
            Self::Session(wall) => format!("session-{}", wall.0),
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bare => f.write_str("the interpreter alone"),
            Self::New(wall) => write!(f, "{}: new sandbox, execute, close", wall.0),
            Self::Live(wall) => write!(f, "{}: execute in a live sandbox", wall.0),
            Self::Session(wall) => write!(f, "{}: a call of a live session", wall.0),
        }
    }
}

/// What one way in one language took, or why it was not measured.
#[derive(Debug)]
struct Line {
    lang: Lang,
    way: Way,
    outcome: Result<Sample, String>,
}

/// Measures, prints and writes.
pub fn run(options: &CodeOptions, out: &Path) -> Result<()> {
    let facts = machine::facts();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let lines = runtime.block_on(measure(options))?;
    let report = Report { lines };
    let file = File::json(&format!("code-{}", facts.unix_time), &report.json(&facts));
    results::publish(out, &[file], &report.table(&facts))
}

async fn measure(options: &CodeOptions) -> Result<Vec<Line>> {
    let (rounds, share) = if options.quick { (30, Duration::from_secs(3)) } else { (100, Duration::from_secs(20)) };
    let rounds = options.n.map_or(rounds, |n| usize::try_from(n).unwrap_or(usize::MAX));
    let mut field = Field::prepare(options).await?;
    let mut lines = Vec::new();
    for lang in Lang::ALL.into_iter().filter(|lang| options.lang.is_empty() || options.lang.contains(lang)) {
        match of_language(&mut field, lang, rounds, share).await {
            Ok(more) => lines.extend(more),
            Err(error) => {
                field.end().await?;
                return Err(error);
            }
        }
    }
    field.end().await?;
    Ok(lines)
}

async fn of_language(field: &mut Field, lang: Lang, rounds: usize, share: Duration) -> Result<Vec<Line>> {
    let mut lines = Vec::new();
    let mut entrants = Vec::new();
    for way in Way::all() {
        let tried = async {
            field.ready(lang, way).await?;
            // The first turn has to load what the next ones find in memory.
            field.turn(lang, way).await?;
            field.turn(lang, way).await
        };
        match tried.await {
            Ok(cost) => entrants.push((way, turns(cost, share, rounds), Vec::new())),
            Err(why) => lines.push(Line { lang, way, outcome: Err(format!("{why:#}")) }),
        }
    }
    let mut orders = Orders::new(entrants.len());
    for round in 0..rounds {
        for index in orders.next() {
            let (way, turns, times) = &mut entrants[index];
            if takes_part(round, *turns, rounds) {
                times.push(field.turn(lang, *way).await?);
            }
        }
    }
    let measured = entrants.into_iter().map(|(way, _, times)| Line { lang, way, outcome: Ok(Sample::new(times)) });
    // The measured ones in their order, and then those that are not there.
    let mut all: Vec<Line> = measured.collect();
    all.append(&mut lines);
    Ok(all)
}
