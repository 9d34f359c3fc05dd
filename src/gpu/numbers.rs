//! What is known of CUPTI's correlation numbers. In: numbers, as records have them. Out: the entry of each. The oldest are
//! forgotten, a page at a time.
//!
//! The numbers of a program mostly count up. So they are kept in pages of neighbours, and one look-up serves many
//! records: a hash table with an entry for each number took a third of the recorder's time.
//! Not here: what an entry says (join.rs).

use std::hash::Hash;

use gpurec_trace::hash::Map;

/// Neighbours in a page: few, because a program's other calls have numbers too.
const PAGE: u32 = 16;
/// The most pages. CUPTI delivers the two records of a launch as far apart as its kernel waits in the GPU's queues.
pub const MOST_PAGES: usize = 1 << 16;

/// Which record asks. Records of work follow those of their calls at a distance, in other pages.
#[derive(Clone, Copy)]
pub enum Asker {
    Call,
    Work,
}

/// `P`: a program.
pub struct Numbers<P, T> {
    pages: Vec<Page<P, T>>,
    places: Map<(P, u32), usize>,
    /// Where the next page goes, once there are as many as may be.
    oldest: usize,
    /// Where each asker was last.
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
    /// The entry of a number, which is remembered from here on.
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
