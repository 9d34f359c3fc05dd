//! Ranks as ranges, in text and in JSON: the size of a job is a number in a trace, and no number there sizes memory. In:
//! the ranks that there are, and how many there should be. Out: the others. Not here: where the numbers come from.

use std::collections::BTreeSet;

/// Limits on the ranks listed in JSON, and on the ranges listed in text.
const LISTED: u64 = 4096;
const RANGES: usize = 32;

/// Ranks without a trace. There are at most one more ranges than ranks with a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Missing(Vec<(u32, u32)>);

impl Missing {
    /// The ranks below `world` that are not there.
    pub fn of(there: &BTreeSet<u32>, world: u64) -> Missing {
        let mut gaps = Vec::new();
        let mut next = 0;
        for rank in there.iter().map(|rank| u64::from(*rank)).take_while(|rank| *rank < world).chain([world])
        {
            if rank > next {
                gaps.push((next as u32, (rank - 1).min(u32::MAX.into()) as u32));
            }
            next = rank + 1;
        }
        Missing(gaps)
    }

    pub fn count(&self) -> u64 {
        self.0.iter().map(|(from, to)| u64::from(to - from) + 1).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The first ones, and the number of the others.
    pub fn first(&self) -> (Vec<u32>, u64) {
        let ranks = self.0.iter().flat_map(|(from, to)| *from..=*to);
        (ranks.take(LISTED as usize).collect(), self.count().saturating_sub(LISTED))
    }

    pub fn text(&self) -> String {
        ranges(&self.0)
    }
}

/// `1, 3-5`
pub fn listed(ranks: &[u32]) -> String {
    let mut parts: Vec<(u32, u32)> = Vec::new();
    for rank in ranks {
        match parts.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*rank) => *last = *rank,
            _ => parts.push((*rank, *rank)),
        }
    }
    ranges(&parts)
}

fn ranges(all: &[(u32, u32)]) -> String {
    let part = |(from, to): &(u32, u32)| if from == to { from.to_string() } else { format!("{from}-{to}") };
    let text = all.iter().take(RANGES).map(part).collect::<Vec<_>>().join(", ");
    if all.len() > RANGES { format!("{text}, …") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_that_are_missing_are_ranges_however_many() {
        let of = |there: &[u32], world| Missing::of(&there.iter().copied().collect(), world);
        assert_eq!((of(&[0, 1], 2), of(&[], 0)), (Missing::default(), Missing::default()));
        assert_eq!(of(&[1, 2, 5], 8), Missing(vec![(0, 0), (3, 4), (6, 7)]));
        assert_eq!(of(&[1, 2, 5], 8).text(), "0, 3-4, 6-7");
        assert_eq!(of(&[1, 2, 5], 8).first(), (vec![0, 3, 4, 6, 7], 0));
        let all = of(&[0, u32::MAX], 1 << 32);
        assert_eq!((all.text().as_str(), all.count()), ("1-4294967294", (1 << 32) - 2));
        assert_eq!((all.first().0.len() as u64, all.first().1), (LISTED, (1 << 32) - 2 - LISTED));
        assert_eq!(of(&[7, 9], 3), Missing(vec![(0, 2)]), "a rank beyond the job's size hides none");
    }

    #[test]
    fn a_list_of_ranks_ends() {
        assert_eq!(listed(&[1, 3, 4, 5, u32::MAX]), "1, 3-5, 4294967295");
        let apart: Vec<u32> = (0..10_000).map(|rank| 2 * rank).collect();
        assert!(listed(&apart).ends_with(", 60, 62, …"));
    }
}
