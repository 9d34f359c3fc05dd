//! A table with an entry for each of CUPTI's correlation numbers. In: the numbers of records. Out: their entries. The
//! table drops the oldest entries, a page at a time.
//!
//! Most numbers of a program count up. So entries of neighbouring numbers share a page, and one look-up serves several
//! records. A hash table with an entry for each number took a third of the recorder's time.
//! Not here: what an entry says (join.rs).

use std::hash::Hash;

use gpurec_trace::hash::Map;

/// The numbers of a page. A larger page would have many unused entries, because calls without work have numbers too.
const PAGE: u32 = 16;
/// The most pages. They must last for the time between the two records of a launch, which is the time that its kernel
/// waits in the GPU's queues.
pub const MOST_PAGES: usize = 1 << 16;

/// The kind of record that needs an entry. Records of work come later than those of their calls, so they use other
/// pages.
#[derive(Clone, Copy)]
pub enum Asker {
    Call,
    Work,
}

/// `P`: a program. `T`: an entry.
pub struct Numbers<P, T> {
    pages: Vec<Page<P, T>>,
    places: Map<(P, u32), usize>,
    /// The page that is replaced next, once the table is full.
    oldest: usize,
    /// The last page of each kind of record.
    last: [usize; 2],
}

struct Page<P, T> {
    key: (P, u32),
    numbers: [T; PAGE as usize],
}

impl<P, T> Default for Numbers<P, T> {
    fn default() -> Self {
        Numbers { pages: Vec::new(), places: Map::default(), oldest: 0, last: [0; 2] }
    }
}

impl<P: Copy + Eq + Hash, T: Copy + Default> Numbers<P, T> {
    /// The entry of a number; a new one if the table has none.
    pub fn of(&mut self, program: P, correlation: u32, asker: Asker) -> &mut T {
        let key = (program, correlation / PAGE);
        let last = self.last[asker as usize];
        let place = match self.pages.get(last) {
            Some(page) if page.key == key => last,
            _ => self.place(key),
        };
        self.last[asker as usize] = place;
        &mut self.pages[place].numbers[(correlation % PAGE) as usize]
    }

    fn place(&mut self, key: (P, u32)) -> usize {
        if let Some(place) = self.places.get(&key) {
            return *place;
        }
        let page = Page { key, numbers: [T::default(); PAGE as usize] };
        let place = if self.pages.len() < MOST_PAGES {
            self.pages.push(page);
            self.pages.len() - 1
        } else {
            let place = self.oldest;
            self.oldest = (place + 1) % MOST_PAGES;
            self.places.remove(&self.pages[place].key);
            self.pages[place] = page;
            place
        };
        self.places.insert(key, place);
        place
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_of_each_program_has_its_own_entry() {
        let mut numbers: Numbers<u32, u32> = Numbers::default();
        let all = || (0..3).flat_map(|pid| [0, 1, 15, 16, 17, 400, u32::MAX].map(|number| (pid, number)));
        for (value, (pid, number)) in all().enumerate() {
            let asker = if value % 2 == 0 { Asker::Call } else { Asker::Work };
            assert_eq!(*numbers.of(pid, number, asker), 0);
            *numbers.of(pid, number, asker) = value as u32 + 1;
        }
        for (value, (pid, number)) in all().enumerate() {
            assert_eq!(*numbers.of(pid, number, Asker::Work), value as u32 + 1);
        }
    }

    #[test]
    fn the_oldest_are_forgotten() {
        let mut numbers: Numbers<u32, bool> = Numbers::default();
        let most = MOST_PAGES as u32;
        for page in 0..most + 10 {
            *numbers.of(1, page * PAGE + 3, Asker::Call) = true;
        }
        assert_eq!((numbers.pages.len(), numbers.places.len()), (MOST_PAGES, MOST_PAGES));
        assert!(*numbers.of(1, 10 * PAGE + 3, Asker::Work));
        assert!(*numbers.of(1, (most + 9) * PAGE + 3, Asker::Work));
        assert!(!*numbers.of(1, 9 * PAGE + 3, Asker::Work), "it begins anew");
    }
}
