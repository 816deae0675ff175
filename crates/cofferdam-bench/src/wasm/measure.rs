//! Rounds: each contestant of a round has one turn in it, in an order that changes from round to round.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::contestant::Contestant;
use super::field::Field;
use super::guest::Guest;
use crate::rounds::{Orders, takes_part, turns};
use crate::sample::Sample;

/// The effort of a measurement.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Number of rounds.
    pub rounds: usize,
    /// Time of each contestant with each guest. Slow ones have fewer turns.
    pub share: Duration,
}

/// Results of all contestants with one guest.
#[derive(Debug)]
pub struct Series {
    /// The guest.
    pub guest: Guest,
    /// The contestants, and the times of single runs.
    pub results: Vec<(Contestant, Sample)>,
    /// The missing contestants, and the reasons.
    pub unavailable: Vec<(Contestant, String)>,
}

/// A contestant during its measurement.
struct Entrant {
    contestant: Contestant,
    turns: usize,
    times: Vec<Duration>,
}

/// Runs all contestants, one at a time.
pub async fn series(field: &Field, effort: Effort) -> Result<Series> {
    let mut entrants = Vec::new();
    for contestant in field.entrants.iter().copied() {
        // The first turn loads what later turns find in memory.
        turn(field, contestant).await?;
        let start = Instant::now();
        turn(field, contestant).await?;
        let turns = turns(start.elapsed(), effort.share, effort.rounds);
        entrants.push(Entrant { contestant, turns, times: Vec::new() });
    }
    let mut orders = Orders::new(entrants.len());
    for round in 0..effort.rounds {
        for index in orders.next() {
            let entrant = &mut entrants[index];
            if takes_part(round, entrant.turns, effort.rounds) {
                entrant.times.extend(turn(field, entrant.contestant).await?);
            }
        }
    }
    let results = entrants.into_iter().map(|entrant| (entrant.contestant, Sample::new(entrant.times)));
    Ok(Series { guest: field.guest, results: results.collect(), unavailable: field.unavailable.clone() })
}

async fn turn(field: &Field, contestant: Contestant) -> Result<Vec<Duration>> {
    field.turn(contestant).await.with_context(|| format!("{} failed", contestant.name(field.guest)))
}

#[cfg(test)]
mod tests {
    use super::super::cache::Interpreters;
    use super::*;

    #[tokio::test]
    async fn modules_run_in_each_mode_and_scripts_are_skipped_without_interpreters() {
        let none = tempfile::tempdir().unwrap();
        let interpreters = Interpreters::new(Some(none.path().join("none")));
        let effort = Effort { rounds: 5, share: Duration::from_secs(60) };
        for guest in Guest::ALL {
            let field = Field::prepare(guest, &interpreters, None).await.unwrap();
            let series = series(&field, effort).await.unwrap();
            for who in Contestant::ALL.into_iter().filter(|who| who.in_process()) {
                let row = series.results.iter().find(|(contestant, _)| *contestant == who);
                let reason = series.unavailable.iter().find(|(contestant, _)| *contestant == who);
                if guest.is_script() {
                    assert!(row.is_none() && reason.unwrap().1.contains("cofferdam setup"), "{who:?}: {reason:?}");
                } else {
                    assert_eq!(row.unwrap().1.len(), 5 * who.batch(), "{who:?}");
                }
            }
        }
    }
}
