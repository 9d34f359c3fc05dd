//! The calls that began last, found by their event_id: a line about GPU work names the call that submitted it, which
//! ended long before. In: calls as they begin. Out: what a view keeps of each. The oldest make room for new ones.

use std::collections::VecDeque;

use gpurec_trace::{Body, Line};

/// Limit on the calls kept: CUPTI delivers a record within seconds, and a process makes fewer launches meanwhile.
const MOST: usize = 7 << 16;

/// Whether a trace with this line may have lines of GPU work from here on: its header asks for them, a process called
/// CUPTI itself, or this is one. Before such a line, calls need not be followed.
#[inline]
pub fn announces(line: &Line) -> bool {
    match &line.body {
        Body::Begin(begin) => begin.name.starts_with("cupti"),
        Body::Header(header) => match header.options.get("gpu") {
            Some(serde_json::Value::Null | serde_json::Value::Bool(false)) | None => false,
            Some(_) => true,
        },
        Body::Gpu(_) => true,
        _ => false,
    }
}

#[derive(Clone, Debug)]
pub struct Recent<T> {
    /// In the order of their event_ids.
    calls: VecDeque<(u64, T)>,
    most: usize,
}

impl<T> Default for Recent<T> {
    fn default() -> Self {
        Recent::at_most(MOST)
    }
}

impl<T> Recent<T> {
    /// Keeps fewer, for a view that keeps them of many traces at once.
    pub fn at_most(most: usize) -> Recent<T> {
        Recent { calls: VecDeque::new(), most }
    }

    /// A call of a malformed trace, whose event_id is not above that of the one before, is not kept.
    pub fn push(&mut self, id: u64, of: T) {
        if self.calls.back().is_some_and(|(last, _)| *last >= id) {
            return;
        }
        if self.calls.len() >= self.most {
            self.calls.pop_front();
        }
        self.calls.push_back((id, of));
    }

    pub fn get(&self, id: u64) -> Option<&T> {
        let at = self.calls.binary_search_by_key(&id, |(id, _)| *id).ok()?;
        self.calls.get(at).map(|(_, of)| of)
    }

    pub fn get_mut(&mut self, id: u64) -> Option<&mut T> {
        let at = self.calls.binary_search_by_key(&id, |(id, _)| *id).ok()?;
        self.calls.get_mut(at).map(|(_, of)| of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_calls_are_found() {
        let mut recent = Recent::default();
        let most = MOST as u64;
        (0..most + 10).for_each(|n| recent.push(2 * n, n));
        recent.push(7, 0);
        assert_eq!((recent.get(18), recent.get(20), recent.get(21)), (None, Some(&10), None));
        assert_eq!((recent.calls.len(), recent.get(2 * most + 18)), (MOST, Some(&(most + 9))));
        *recent.get_mut(20).unwrap() = 5;
        assert_eq!(recent.get(20), Some(&5));
    }
}
