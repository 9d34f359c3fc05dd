//! Time by category of call. The time of a nested call belongs to the outer call and is not counted again.

use serde::{Deserialize, Serialize};

use super::figures::Figures;
use super::table::{Cell, Column, Table, number, text};
use super::text::{Page, plural};
use gpurec_cuda::Category;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CategorySeen {
    pub category: String,
    pub calls: u64,
    pub total_ns: u64,
}

const NAMES: [&str; 6] = ["init", "memory", "copy", "launch", "sync", "other"];

const COLUMNS: &[Column] = &[
    text("Category", "category"),
    number("Total (ms)", "total_ns"),
    number("(%)", "percent"),
    number("Calls", "calls"),
];

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
    pub fn finish(&self) -> Vec<CategorySeen> {
        let seen = NAMES.iter().zip(self.0).filter(|(_, (calls, _))| *calls > 0);
        let mut all: Vec<CategorySeen> = seen
            .map(|(name, (calls, total_ns))| CategorySeen { category: (*name).to_owned(), calls, total_ns })
            .collect();
        all.sort_by_key(|seen| std::cmp::Reverse(seen.total_ns));
        all
    }
}

pub fn section(page: &mut Page, figures: &Figures) {
    if figures.by_category.is_empty() {
        return;
    }
    let whole: u128 = figures.by_category.iter().map(|seen| u128::from(seen.total_ns)).sum();
    let calls = u128::from(figures.cuda_calls) * 1_000_000_000;
    let is_known = !figures.unknown.contains_key("cuda_calls");
    let rate = calls.checked_div(figures.duration_ns.into()).filter(|_| is_known);
    let rate = rate.map(|rate| format!(", {rate} a second"));
    let seen = if is_known { "" } else { " seen" };
    page.section(&format!(
        "Time by category: {}{seen}{}",
        plural(figures.cuda_calls, "CUDA call"),
        rate.unwrap_or_default()
    ));
    let mut table = Table::new("categories", "categories", COLUMNS);
    for seen in &figures.by_category {
        table.row(vec![
            Cell::Text(seen.category.clone()),
            Cell::Millis(seen.total_ns),
            Cell::Share(seen.total_ns.into(), whole),
            Cell::Count(seen.calls),
        ]);
    }
    page.table(&table);
    page.wrapped("  ", "Of outermost calls: one made inside another is in the time of that one.");
}
