//! Rounds: each contestant of a round has one turn in it, in an order that changes from round to round.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::field::Field;
use super::figure::Figure;
use crate::rounds::{Orders, takes_part, turns};
use crate::sample::Sample;

/// The times of the contestants, and the missing ones with the reasons.
pub type Outcome = (Vec<(Figure, Sample)>, Vec<(Figure, String)>);

/// Measures all contestants, one at a time.
pub async fn measure(field: &Field, rounds: usize, share: Duration) -> Result<Outcome> {
    let (mut entrants, mut unavailable) = (Vec::new(), Vec::new());
    for figure in Figure::ALL.into_iter().filter(|figure| figure.has_turns()) {
        // The first turn loads what later turns find in memory. It does not count, and determines the cost of a turn.
        let begun = Instant::now();
        match field.turn(figure).await {
            Ok(_) => entrants.push((figure, turns(begun.elapsed(), share, rounds))),
            Err(why) => unavailable.push((figure, format!("{why:#}"))),
        }
    }
    let mut times: Vec<(Figure, Duration)> = Vec::new();
    let mut orders = Orders::new(entrants.len());
    for round in 0..rounds {
        for index in orders.next() {
            let (figure, turns) = entrants[index];
            if takes_part(round, turns, rounds) {
                times.extend(field.turn(figure).await.with_context(|| format!("{} failed", figure.name()))?);
            }
        }
    }
    Ok((samples(&times), unavailable))
}

fn samples(times: &[(Figure, Duration)]) -> Vec<(Figure, Sample)> {
    let of = |figure| times.iter().filter(|(other, _)| *other == figure).map(|(_, time)| *time).collect();
    let all = Figure::ALL.map(|figure| (figure, Sample::new(of(figure))));
    all.into_iter().filter(|(_, sample)| sample.len() > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_gathered_in_the_order_of_the_table() {
        let time = Duration::from_millis;
        let taken =
            [(Figure::Fork, time(9)), (Figure::Cold, time(3)), (Figure::Fork, time(7)), (Figure::Cold, time(1))];
        let found = samples(&taken);
        let shown: Vec<_> =
            found.iter().map(|(figure, sample)| (*figure, sample.len(), sample.median().round())).collect();
        assert_eq!(shown, [(Figure::Cold, 2, 1000.0), (Figure::Fork, 2, 7000.0)]);
    }
}
