//! Rounds: whoever takes part in a round has one turn in it, in an order that changes from round to round.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::contestant::Contestant;
use super::field::Field;
use super::guest::Guest;
use crate::rounds::{Orders, takes_part, turns};
use crate::sample::Sample;

/// How long to measure.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Rounds.
    pub rounds: usize,
    /// Time of each contestant with each guest; those that need more have fewer turns.
    pub share: Duration,
}

/// One guest, run by everybody.
#[derive(Debug)]
pub struct Series {
    /// What they ran.
    pub guest: Guest,
    /// Who took part, and how long one run took.
    pub results: Vec<(Contestant, Sample)>,
    /// Who did not, and why.
    pub absent: Vec<(Contestant, String)>,
}

/// One contestant while it is measured.
struct Entrant {
    contestant: Contestant,
    turns: usize,
    times: Vec<Duration>,
}

/// Runs everybody, one at a time.
pub async fn series(field: &Field, effort: Effort) -> Result<Series> {
    let mut entrants = Vec::new();
    for contestant in field.entrants.iter().copied() {
        // The first turn has to load what the next ones find in memory.
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
    Ok(Series { guest: field.guest, results: results.collect(), absent: field.absent.clone() })
}

async fn turn(field: &Field, contestant: Contestant) -> Result<Vec<Duration>> {
    field.turn(contestant).await.with_context(|| format!("{} failed", contestant.name(field.guest)))
}

#[cfg(test)]
mod tests {
    use super::super::cache::Interpreters;
    use super::*;

    #[tokio::test]
    async fn modules_are_run_by_all_of_ours_and_scripts_are_absent_without_interpreters() {
        let none = tempfile::tempdir().unwrap();
        let interpreters = Interpreters::new(Some(none.path().join("none")));
        let effort = Effort { rounds: 5, share: Duration::from_secs(60) };
        for guest in Guest::ALL {
            let field = Field::prepare(guest, &interpreters, None).await.unwrap();
            let series = series(&field, effort).await.unwrap();
            for who in Contestant::ALL.into_iter().filter(|who| who.in_process()) {
                let row = series.results.iter().find(|(contestant, _)| *contestant == who);
                let reason = series.absent.iter().find(|(contestant, _)| *contestant == who);
                if guest.is_script() {
                    assert!(row.is_none() && reason.unwrap().1.contains("cofferdam setup"), "{who:?}: {reason:?}");
                } else {
                    assert_eq!(row.unwrap().1.len(), 5 * who.batch(), "{who:?}");
                }
            }
        }
    }
}
