//! Maps by process and a second key. When a process exits, its entries are removed at once without visiting those of
//! others: a trace may have as many exits as lines.

use std::hash::Hash;

use gpurec_trace::hash::Map;

pub struct ByProcess<K, V> {
    processes: Map<u32, Map<K, V>>,
    count: usize,
}

impl<K, V> Default for ByProcess<K, V> {
    fn default() -> Self {
        ByProcess { processes: Map::default(), count: 0 }
    }
}

impl<K: Eq + Hash, V> ByProcess<K, V> {
    pub fn get(&self, pid: u32, key: &K) -> Option<&V> {
        self.processes.get(&pid)?.get(key)
    }

    pub fn get_mut(&mut self, pid: u32, key: &K) -> Option<&mut V> {
        self.processes.get_mut(&pid)?.get_mut(key)
    }

    pub fn iter(&self) -> impl Iterator<Item = (u32, &K, &V)> {
        self.processes.iter().flat_map(|(pid, of)| of.iter().map(|(key, value)| (*pid, key, value)))
    }

    /// Keeps at most `most` entries of all processes together.
    pub fn entry(&mut self, pid: u32, key: K, most: usize) -> Option<&mut V>
    where
        V: Default,
    {
        if self.count >= most && self.get(pid, &key).is_none() {
            return None;
        }
        let count = &mut self.count;
        Some(self.processes.entry(pid).or_default().entry(key).or_insert_with(|| {
            *count += 1;
            V::default()
        }))
    }

    pub fn remove(&mut self, pid: u32, key: &K) -> Option<V> {
        let of = self.processes.get_mut(&pid)?;
        let removed = of.remove(key)?;
        self.count -= 1;
        if of.is_empty() {
            self.processes.remove(&pid);
        }
        Some(removed)
    }

    /// Removes and returns the entries of a process.
    pub fn ended(&mut self, pid: u32) -> Map<K, V> {
        let of = self.processes.remove(&pid).unwrap_or_default();
        self.count -= of.len();
        of
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
        assert_eq!((map.count, map.processes.len()), (3, 2));
        assert_eq!((map.ended(1).len(), map.count, map.ended(1).len()), (2, 1, 0));
        assert_eq!((map.get(1, &1), map.get(2, &1)), (None, Some(&1)));
        assert_eq!((map.remove(2, &2), map.remove(2, &1), map.count), (None, Some(1), 0));
        assert!(map.get_mut(2, &1).is_none());
    }
}
