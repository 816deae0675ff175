//! Time of `print(1)` in Python and JavaScript through `execute`, at each isolation level: in a new sandbox, in a live
//! sandbox, and in a live session. Compared with the bare interpreter, in one run.

mod field;
mod report;

use std::fmt;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum;
use cofferdam::registry::{self, CONTAINER_BACKEND, MODULE_BACKEND, VM_BACKEND};

use crate::host::facts;
use crate::options::CodeOptions;
use crate::results::{self, File};
use crate::rounds::{Orders, takes_part, turns};
use crate::sample::Sample;
use field::Field;
use report::Report;

/// The language that runs.
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

    /// Returns the interpreter, and its option for code.
    fn bare(self) -> [&'static str; 2] {
        match self {
            Self::Python => ["python3", "-c"],
            Self::JavaScript => ["node", "-e"],
        }
    }

    /// Returns code that prints the interpreter's path, because the interpreter in the search path may be a wrapper
    /// script.
    fn path_code(self) -> &'static str {
        match self {
            Self::Python => "import sys; print(sys.executable)",
            Self::JavaScript => "console.log(process.execPath)",
        }
    }
}

/// A backend, by its name in the registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct BackendName(&'static str);

const BACKENDS: [BackendName; 4] = [
    BackendName(MODULE_BACKEND),
    BackendName(registry::DEFAULT_BACKEND),
    BackendName(CONTAINER_BACKEND),
    BackendName(VM_BACKEND),
];

/// A way to run the code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// The interpreter alone.
    Bare,
    /// A sandbox created for one call.
    New(BackendName),
    /// A live sandbox.
    Live(BackendName),
    /// A session: an interpreter that lives in a sandbox.
    Session(BackendName),
}

impl Way {
    fn all() -> impl Iterator<Item = Self> {
        let of = |make: fn(BackendName) -> Self| BACKENDS.into_iter().map(make);
        [Self::Bare].into_iter().chain(of(Self::New)).chain(of(Self::Live)).chain(of(Self::Session))
    }

    fn slug(self) -> String {
        match self {
            Self::Bare => "bare".to_owned(),
            Self::New(backend) => format!("new-{}", backend.0),
            Self::Live(backend) => format!("live-{}", backend.0),
            Self::Session(backend) => format!("session-{}", backend.0),
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bare => f.write_str("the interpreter alone"),
            Self::New(backend) => write!(f, "{}: new sandbox, execute, close", backend.0),
            Self::Live(backend) => write!(f, "{}: execute in a live sandbox", backend.0),
            Self::Session(backend) => write!(f, "{}: a call of a live session", backend.0),
        }
    }
}

/// The times of one way in one language, or the reason why it was not measured.
#[derive(Debug)]
struct Line {
    lang: Lang,
    way: Way,
    outcome: Result<Sample, String>,
}

/// Measures, prints and writes the results.
pub fn run(options: &CodeOptions, out: &Path) -> Result<()> {
    let facts = facts::collect();
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
            field.prepare_turn(lang, way).await?;
            // The first turn loads what later turns find in memory.
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
    // The measured ones in order, then the missing ones.
    let mut all: Vec<Line> = measured.collect();
    all.append(&mut lines);
    Ok(all)
}
