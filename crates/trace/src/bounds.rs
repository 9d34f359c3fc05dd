//! Bounds on what gpurec keeps from a target or a file. Every table that grows with either has a bound here or a
//! maximum number of entries of bounded size; what exceeds it is counted in a row of others. Not here: what the bytes
//! mean.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::hash::Map;

/// Names longer than this are not distinguished: no compiler and no driver makes one.
pub const LONGEST_NAME: usize = 8 << 10;

/// The most calls that may be open at once, in all threads together: seven eighths of a power of two, which a hash
/// table holds without growing. Ten thousand threads are in some twenty calls each.
pub const MOST_OPEN: usize = 7 << 15;

/// The most bytes of commands of processes that a reader keeps. Its tables and documents have each several times.
pub const COMMANDS: usize = 8 << 20;

/// The most live allocations tracked, in all processes together: as many as a hash table holds without growing.
pub const MOST_LIVE: usize = 7 << 16;

/// The bytes (or entries) that remain. Copies share them.
#[derive(Clone)]
pub struct Room(Arc<RoomState>);

struct RoomState {
    left: AtomicUsize,
    refused: AtomicUsize,
}

impl Room {
    pub fn new(bytes: usize) -> Room {
        Room(Arc::new(RoomState { left: AtomicUsize::new(bytes), refused: AtomicUsize::new(0) }))
    }

    /// The number of requests that did not fit.
    pub fn refused(&self) -> usize {
        self.0.refused.load(Relaxed)
    }

    /// Counts entries that were kept and then dropped.
    pub fn refuse(&self, count: usize) {
        self.0.refused.fetch_add(count, Relaxed);
    }

    fn take(&self, bytes: usize) -> bool {
        let taken = self.0.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(bytes)).is_ok();
        if !taken {
            self.0.refused.fetch_add(1, Relaxed);
        }
        taken
    }
}

/// What one owner has taken of a room. Dropping the owner returns it.
pub struct Share {
    room: Room,
    taken: usize,
}

impl Share {
    pub fn new(room: &Room) -> Share {
        Share { room: room.clone(), taken: 0 }
    }

    pub fn take(&mut self, bytes: usize) -> bool {
        let taken = self.room.take(bytes);
        self.taken += if taken { bytes } else { 0 };
        taken
    }

    pub fn give_back(&mut self, bytes: usize) {
        let bytes = bytes.min(self.taken);
        self.taken -= bytes;
        self.room.0.left.fetch_add(bytes, Relaxed);
    }

    /// Inserts into a table whose entries count as `each`. False: there is no room for a new entry.
    pub fn insert<K: Eq + Hash, V, S: BuildHasher>(
        &mut self,
        table: &mut HashMap<K, V, S>,
        each: usize,
        key: K,
        value: V,
    ) -> bool {
        let kept = table.contains_key(&key) || self.take(each);
        if kept {
            table.insert(key, value);
        }
        kept
    }

    pub fn remove<K: Eq + Hash, V, S: BuildHasher>(
        &mut self,
        table: &mut HashMap<K, V, S>,
        each: usize,
        key: &K,
    ) -> Option<V> {
        let removed = table.remove(key);
        if removed.is_some() {
            self.give_back(each);
        }
        removed
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.give_back(self.taken);
    }
}

/// Limits linear searches of a table. A search that finds little is cheap as long as the table is small or searches are
/// few: each insertion allows a number of visits to entries, and some visits are free (half a second).
#[derive(Default)]
pub struct Searches {
    filled: usize,
    in_vain: usize,
}

const LOOKS: usize = 64;
const FREE_LOOKS: usize = 1 << 26;

impl Searches {
    pub fn filled(&mut self) {
        self.filled += 1;
    }

    /// False: there were too many visits, and the caller should give up the table.
    pub fn looked(&mut self, in_vain: usize) -> bool {
        self.in_vain = self.in_vain.saturating_add(in_vain);
        self.in_vain <= FREE_LOOKS + LOOKS * self.filled
    }
}

/// The bytes that one table may still take.
#[derive(Clone, Copy, Debug)]
pub struct BytesLeft<const BYTES: usize>(usize);

impl<const BYTES: usize> Default for BytesLeft<BYTES> {
    fn default() -> Self {
        BytesLeft(BYTES)
    }
}

impl<const BYTES: usize> BytesLeft<BYTES> {
    pub fn take(&mut self, bytes: usize) -> bool {
        let left = self.0.checked_sub(bytes);
        self.0 = left.unwrap_or(self.0);
        left.is_some()
    }

    /// Frees bytes that were taken.
    pub fn give_back(&mut self, bytes: usize) {
        self.0 = self.0.saturating_add(bytes).min(BYTES);
    }
}

/// Distinguished names, each with a number. Their count and their bytes are bounded.
pub struct Names<const MOST: usize, const BYTES: usize> {
    by_name: Map<Arc<str>, usize>,
    left: BytesLeft<BYTES>,
}

/// Per name, besides its bytes: the reference counts in front of it, and the allocator's overhead.
const EACH: usize = 32;

impl<const MOST: usize, const BYTES: usize> Default for Names<MOST, BYTES> {
    fn default() -> Self {
        Names { by_name: Map::default(), left: BytesLeft::default() }
    }
}

impl<const MOST: usize, const BYTES: usize> Names<MOST, BYTES> {
    #[inline]
    pub fn get(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// Adds a new name. None: it did not fit and belongs to the others.
    pub fn add(&mut self, name: &str, number: usize) -> Option<Arc<str>> {
        if self.len() >= MOST || name.len() > LONGEST_NAME || !self.left.take(name.len() + EACH) {
            return None;
        }
        let name: Arc<str> = name.into();
        self.by_name.insert(name.clone(), number);
        Some(name)
    }
}

/// Entries with a number each, found by name. Names beyond the bounds, and no name, share an entry with those that they
/// are like.
pub struct Entries<T, const MOST: usize, const BYTES: usize> {
    by_name: Names<MOST, BYTES>,
    all: Vec<T>,
    /// The numbers of the shared entries.
    others: Vec<usize>,
}

impl<T, const MOST: usize, const BYTES: usize> Default for Entries<T, MOST, BYTES> {
    fn default() -> Self {
        Entries { by_name: Names::default(), all: Vec::new(), others: Vec::new() }
    }
}

impl<T, const MOST: usize, const BYTES: usize> Entries<T, MOST, BYTES> {
    /// The number of a name's entry. `new` makes the entry, of the name if that has one of its own.
    pub fn number(
        &mut self,
        name: Option<&str>,
        new: impl FnOnce(Option<Arc<str>>) -> T,
        is_like: impl Fn(&T, &T) -> bool,
    ) -> usize {
        if let Some(known) = name.and_then(|name| self.by_name.get(name)) {
            return known;
        }
        let number = self.all.len();
        let kept = name.and_then(|name| self.by_name.add(name, number));
        let is_other = kept.is_none();
        let entry = new(kept);
        if is_other {
            let is_it = |at: &usize| self.all.get(*at).is_some_and(|known| is_like(known, &entry));
            if let Some(known) = self.others.iter().copied().find(is_it) {
                return known;
            }
            self.others.push(number);
        }
        self.all.push(entry);
        number
    }

    /// The number of a name that has an entry of its own.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.by_name.get(name)
    }

    pub fn get(&self, number: usize) -> Option<&T> {
        self.all.get(number)
    }

    pub fn get_mut(&mut self, number: usize) -> Option<&mut T> {
        self.all.get_mut(number)
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.all.iter()
    }
}

/// Sums by key. The keys beyond the limit share one.
pub struct Sums<K, V, const MOST: usize> {
    pub by_key: Map<K, V>,
    pub others: V,
}

impl<K, V: Default, const MOST: usize> Default for Sums<K, V, MOST> {
    fn default() -> Self {
        Sums { by_key: Map::default(), others: V::default() }
    }
}

impl<K: Eq + Hash, V: Default, const MOST: usize> Sums<K, V, MOST> {
    pub fn of(&mut self, key: K) -> &mut V {
        entry(&mut self.by_key, key, MOST).unwrap_or(&mut self.others)
    }
}

/// The entry of a key; none if it would be one more than `most`.
pub fn entry<K: Eq + Hash, V: Default, S: BuildHasher>(
    table: &mut HashMap<K, V, S>,
    key: K,
    most: usize,
) -> Option<&mut V> {
    let has_room = table.len() < most || table.contains_key(&key);
    has_room.then(|| table.entry(key).or_default())
}

/// Shortens a text that is only displayed and whose beginning is informative enough.
pub fn short(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    let end = (0..=most).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    format!("{}…", text.get(..end).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_room_is_shared_and_what_is_given_back_is_there_again() {
        let room = Room::new(100);
        let (mut one, mut other) = (Share::new(&room), Share::new(&room));
        assert!(one.take(60) && !other.take(60) && other.take(40) && !one.take(1));
        assert_eq!(room.refused(), 2);
        one.give_back(1000);
        assert!(other.take(60), "no more comes back than was taken");
        assert!(!one.take(1));
        drop(other);
        let mut table: HashMap<u8, u8> = HashMap::new();
        assert!(one.insert(&mut table, 60, 1, 1) && one.insert(&mut table, 60, 1, 2));
        assert!(!one.insert(&mut table, 60, 2, 1) && one.remove(&mut table, 60, &1) == Some(2));
        assert!(one.take(100));
    }

    #[test]
    fn searches_in_vain_are_paid_by_what_fills_the_table() {
        let mut searches = Searches::default();
        assert!(searches.looked(FREE_LOOKS) && !searches.looked(1));
        searches.filled();
        assert!(searches.looked(LOOKS - 1) && !searches.looked(1));
    }

    #[test]
    fn names_are_bounded_by_number_and_by_bytes() {
        let mut few: Names<2, 1000> = Names::default();
        assert_eq!(few.add("a", 7).as_deref(), Some("a"));
        assert!(few.add("b", 8).is_some() && few.add("c", 9).is_none());
        assert_eq!((few.get("a"), few.get("b"), few.get("c"), few.len()), (Some(7), Some(8), None, 2));
        let mut small: Names<100, 1000> = Names::default();
        assert!(small.add(&"x".repeat(900), 0).is_some() && small.add(&"y".repeat(900), 1).is_none());
        assert!(small.add("z", 1).is_some(), "a short one still fits");
        let mut large: Names<100, { 1 << 20 }> = Names::default();
        assert!(large.add(&"x".repeat(LONGEST_NAME), 0).is_some());
        assert!(large.add(&"x".repeat(LONGEST_NAME + 1), 1).is_none());
    }

    #[test]
    fn what_is_beyond_a_bound_is_counted_together() {
        let mut words: Entries<(String, bool), 2, 1000> = Entries::default();
        let mut number = |name: Option<&str>, kind| {
            let new =
                |kept: Option<Arc<str>>| (kept.map_or("others".to_owned(), |name| name.to_string()), kind);
            words.number(name, new, |a, b| a.1 == b.1)
        };
        let numbers = [("a", true), ("b", true), ("a", true), ("c", true), ("d", false), ("e", true)];
        assert_eq!(numbers.map(|(name, kind)| number(Some(name), kind)), [0, 1, 0, 2, 3, 2]);
        assert_eq!((number(None, false), number(None, true)), (3, 2));
        assert_eq!(
            words.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(),
            ["a", "b", "others", "others"]
        );
        let mut sums: Sums<u8, u64, 2> = Sums::default();
        for key in [1, 2, 3, 4, 2] {
            *sums.of(key) += 1;
        }
        assert_eq!((sums.by_key.len(), sums.by_key[&2], sums.others), (2, 2, 2));
    }

    #[test]
    fn a_text_is_shortened_between_characters() {
        assert_eq!((short("abc", 3).as_str(), short("abcd", 3).as_str()), ("abc", "abc…"));
        assert_eq!((short("aéb", 2).as_str(), short("é", 0).as_str()), ("a…", "…"));
    }
}
