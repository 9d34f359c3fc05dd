//! Bytes that were copied or set, by direction over time. In: copies and sets with their times. Out: the bytes of each
//! direction in each piece of time. The number of pieces is bounded. Not here: how they are drawn.

use serde_json::{Value, json};

use crate::views::scale::{Scale, halve};

/// Limits on pieces of time, and on directions.
const BUCKETS: usize = 1024;
const DIRECTIONS: usize = 16;
/// The longest name of a direction, in bytes. Directions with longer names, and those beyond the limit, become one.
const LONGEST: usize = 32;
const OTHERS: &str = "(others)";

pub struct Copies {
    scale: Scale,
    directions: Vec<(String, Vec<u64>)>,
}

impl Default for Copies {
    fn default() -> Copies {
        Copies { scale: Scale::new(0, BUCKETS), directions: Vec::new() }
    }
}

impl Copies {
    pub fn add(&mut self, ts_ns: u64, direction: &str, size: u64) {
        let times = self.scale.reach(ts_ns);
        if times > 0 {
            let all = self.directions.iter_mut();
            all.for_each(|(_, bytes)| halve(bytes, times, u64::saturating_add));
        }
        let bucket = self.scale.bucket(ts_ns);
        let at = self.direction(direction);
        let Some((_, bytes)) = self.directions.get_mut(at) else { return };
        bytes.resize(bytes.len().max(bucket + 1), 0);
        if let Some(sum) = bytes.get_mut(bucket) {
            *sum = sum.saturating_add(size);
        }
    }

    fn direction(&mut self, name: &str) -> usize {
        let place = |all: &[(String, Vec<u64>)], name: &str| all.iter().position(|(known, _)| known == name);
        if let Some(known) = place(&self.directions, name) {
            return known;
        }
        let fits = self.directions.len() < DIRECTIONS && name.len() <= LONGEST;
        let name = if fits { name } else { OTHERS };
        place(&self.directions, name).unwrap_or_else(|| {
            self.directions.push((name.to_owned(), Vec::new()));
            self.directions.len() - 1
        })
    }

    pub fn page(&self) -> Value {
        let direction = |(name, bytes): &(String, Vec<u64>)| json!({ "name": name, "bytes": bytes });
        json!({
            "each_ns": self.scale.bucket_ns,
            "directions": self.directions.iter().map(direction).collect::<Value>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_in_one_piece_and_pieces_are_few() {
        let mut copies = Copies::default();
        for n in 0..100_000u64 {
            copies.add(n * 1000, ["H2D", "D2H"][n as usize % 2], n);
        }
        (0..100).for_each(|n| copies.add(5, &format!("direction {n}"), 1));
        copies.add(5, &"x".repeat(1000), 1);
        let page = copies.page();
        let directions = page["directions"].as_array().expect("directions");
        assert_eq!(directions.len(), DIRECTIONS + 1);
        let sum = |at: usize| -> u64 {
            directions[at]["bytes"].as_array().expect("bytes").iter().filter_map(Value::as_u64).sum()
        };
        let even = (0..100_000u64).filter(|n| n % 2 == 0).sum::<u64>();
        assert_eq!((sum(0), sum(1), sum(DIRECTIONS)), (even, even + 50_000, 100 - DIRECTIONS as u64 + 3));
        let pieces = directions[0]["bytes"].as_array().expect("bytes").len() as u64;
        assert!((512..=1024).contains(&pieces), "{pieces}");
        assert!(pieces * page["each_ns"].as_u64().expect("a number") >= 99_999_000);
    }
}
