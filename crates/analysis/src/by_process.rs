//! Maps by process and a second key. When a process exits, its entries are removed at once without visiting those of
//! others: a trace may have as many exits as lines.

use std::collections::BTreeMap;
use std::ops::Bound;

/// One tree for all processes, because the smallest hash map takes as much memory as four entries. `None` is never a key
/// here: it sorts before all keys of a process, so it marks where they begin.
pub struct ByProcess<K, V>(BTreeMap<(u32, Option<K>), V>);

impl<K, V> Default for ByProcess<K, V> {
    fn default() -> Self {
        ByProcess(BTreeMap::new())
    }
}

impl<K: Ord + Copy, V> ByProcess<K, V> {
    pub fn get(&self, pid: u32, key: &K) -> Option<&V> {
        self.0.get(&(pid, Some(*key)))
    }

    pub fn get_mut(&mut self, pid: u32, key: &K) -> Option<&mut V> {
        self.0.get_mut(&(pid, Some(*key)))
    }

    pub fn iter(&self) -> impl Iterator<Item = (u32, &K, &V)> {
        self.0.iter().filter_map(|((pid, key), value)| Some((*pid, key.as_ref()?, value)))
    }

    /// Keeps at most `most` entries of all processes together.
    pub fn entry(&mut self, pid: u32, key: K, most: usize) -> Option<&mut V>
    where
        V: Default,
    {
        let has_room = self.0.len() < most || self.get(pid, &key).is_some();
        has_room.then(|| self.0.entry((pid, Some(key))).or_default())
    }

    pub fn remove(&mut self, pid: u32, key: &K) -> Option<V> {
        self.0.remove(&(pid, Some(*key)))
    }

    /// Removes and returns the entries of a process.
    pub fn ended(&mut self, pid: u32) -> Vec<(K, V)> {
        let after = pid.checked_add(1).map_or(Bound::Unbounded, |next| Bound::Excluded((next, None)));
        let of = self.0.range((Bound::Included((pid, None)), after));
        let keys: Vec<K> = of.filter_map(|((_, key), _)| *key).collect();
        keys.into_iter().filter_map(|key| Some((key, self.remove(pid, &key)?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_goes_with_all_it_has_and_makes_room() {
        let mut map: ByProcess<u32, u64> = ByProcess::default();
        for (pid, tid) in [(1, 1), (1, 2), (2, 1)] {
            *map.entry(pid, tid, 3).unwrap() += 1;
        }
        assert!(map.entry(3, 1, 3).is_none() && map.entry(2, 1, 3).is_some());
        assert_eq!(map.iter().map(|(pid, key, _)| (pid, *key)).collect::<Vec<_>>(), [(1, 1), (1, 2), (2, 1)]);
        assert_eq!((map.ended(1).len(), map.0.len(), map.ended(1).len()), (2, 1, 0));
        assert_eq!((map.get(1, &1), map.get(2, &1)), (None, Some(&1)));
        assert_eq!((map.remove(2, &2), map.remove(2, &1), map.0.len()), (None, Some(1), 0));
        assert!(map.get_mut(2, &1).is_none());
        *map.entry(u32::MAX, u32::MAX, 3).unwrap() = 5;
        assert_eq!(map.ended(u32::MAX), [(u32::MAX, 5)]);
    }
}
