//! Time by category of call. The time of a nested call belongs to the outer call and is not counted again.

use serde::{Deserialize, Serialize};

use gpurec_cuda::Category;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CategoryFigures {
    pub category: String,
    pub calls: u64,
    pub total_ns: u64,
}

const NAMES: [&str; 6] = ["init", "memory", "copy", "launch", "sync", "other"];

/// Calls and time, indexed by `of`.
#[derive(Clone, Default)]
pub struct Categories([(u64, u64); NAMES.len()]);

/// The index of a category.
pub fn of(category: Category) -> usize {
    match category {
        Category::Init | Category::Context | Category::Module | Category::Register => 0,
        Category::Alloc
        | Category::Free
        | Category::Managed
        | Category::Pool
        | Category::VirtualMemory
        | Category::Ipc => 1,
        Category::Memcpy | Category::Memset => 2,
        Category::Launch | Category::Graph => 3,
        Category::Sync => 4,
        Category::Error
        | Category::Event
        | Category::Occupancy
        | Category::Query
        | Category::Stream
        | Category::Other => 5,
    }
}

impl Categories {
    pub fn add(&mut self, category: usize, ns: u64) {
        if let Some((calls, total)) = self.0.get_mut(category) {
            *calls += 1;
            *total = total.saturating_add(ns);
        }
    }

    /// The time of all calls except those that a program makes once.
    pub fn but_init_ns(&self) -> u64 {
        self.0.iter().skip(1).fold(0, |sum, (_, ns)| sum.saturating_add(*ns))
    }

    /// Largest time first.
    pub fn finish(&self) -> Vec<CategoryFigures> {
        let seen = NAMES.iter().zip(self.0).filter(|(_, (calls, _))| *calls > 0);
        let mut all: Vec<CategoryFigures> = seen
            .map(|(name, (calls, total_ns))| CategoryFigures {
                category: (*name).to_owned(),
                calls,
                total_ns,
            })
            .collect();
        all.sort_by_key(|seen| std::cmp::Reverse(seen.total_ns));
        all
    }
}
