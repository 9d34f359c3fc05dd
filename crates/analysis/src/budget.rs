//! What `--budget` left out: from its lines to figures, and from figures to text. A function is at a level from one of
//! its lines to the next, or to the end. Only the level `recorded` has calls in the trace; older traces know another
//! one besides `unhooked`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::figures::Figures;
use super::text::{Page, clean, duration, plural, seconds};
use gpurec_trace::bounds::{LONGEST_NAME, short};
use gpurec_trace::{self as trace, Action, Header, Level};

const TOP: usize = 20;
/// There are never more hooked functions.
const FUNCTIONS: usize = 16_384;
/// Limit on listed periods without a hook, for one function.
const PERIODS: usize = 8;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BudgetFigures {
    /// In percent, as given on the command line.
    pub limit: String,
    pub given_up: u64,
    pub taken_back: u64,
    /// The functions given up, those given up for longest first.
    pub functions: Vec<Forgone>,
}

/// A function that the recorder gave up for the budget.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forgone {
    pub name: String,
    /// The level at the end.
    pub level: Level,
    pub given_up: u64,
    pub unhooked_ns: u64,
    /// When its calls were not recorded.
    pub unhooked: Vec<Period>,
    pub more_periods: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Period {
    pub from_ns: u64,
    pub to_ns: u64,
}

#[derive(Default)]
pub struct Budget {
    limit: String,
    given_up: u64,
    taken_back: u64,
    functions: BTreeMap<u32, (Forgone, u64)>,
}

impl Budget {
    pub fn header(&mut self, header: &Header) {
        let limit = header.options.get("budget").map(ToString::to_string).unwrap_or_default();
        self.limit = limit.strip_suffix(".0").unwrap_or(&limit).to_owned();
    }

    pub fn add(&mut self, ts_ns: u64, line: &trace::Budget) {
        match line.action {
            Action::GiveUp => self.given_up += 1,
            Action::TakeBack => self.taken_back += 1,
            Action::End => {}
        }
        if self.functions.len() >= FUNCTIONS && !self.functions.contains_key(&line.probe) {
            return;
        }
        let (function, since_ns) =
            self.functions.entry(line.probe).or_insert_with(|| (Forgone::new(line), ts_ns));
        function.stays(*since_ns, ts_ns);
        function.given_up += u64::from(line.action == Action::GiveUp);
        (function.level, *since_ns) = (line.level, ts_ns);
    }

    /// Whether any call was not recorded.
    pub fn left_out(&self) -> bool {
        !self.functions.is_empty()
    }

    pub fn finish(&self, at_ns: u64) -> Option<BudgetFigures> {
        let at_end = |(function, since_ns): &(Forgone, u64)| {
            let mut function = function.clone();
            function.stays(*since_ns, at_ns);
            function
        };
        let mut functions: Vec<Forgone> = self.functions.values().map(at_end).collect();
        functions.sort_by(|a, b| (b.unhooked_ns, &a.name).cmp(&(a.unhooked_ns, &b.name)));
        self.left_out().then(|| BudgetFigures {
            limit: self.limit.clone(),
            given_up: self.given_up,
            taken_back: self.taken_back,
            functions,
        })
    }
}

impl Forgone {
    fn new(line: &trace::Budget) -> Forgone {
        Forgone {
            name: short(&line.function, LONGEST_NAME),
            level: line.before,
            given_up: 0,
            unhooked_ns: 0,
            unhooked: Vec::new(),
            more_periods: 0,
        }
    }

    /// Adds a period at the current level.
    fn stays(&mut self, from_ns: u64, to_ns: u64) {
        let ns = to_ns.saturating_sub(from_ns);
        if self.level == Level::Recorded {
            return;
        }
        self.unhooked_ns += ns;
        let listed = self.unhooked.len();
        match self.unhooked.last_mut() {
            // A line at the end repeats the current state.
            Some(last) if last.to_ns == from_ns => last.to_ns = to_ns,
            _ if ns == 0 => {}
            _ if listed < PERIODS => self.unhooked.push(Period { from_ns, to_ns }),
            _ => self.more_periods += 1,
        }
    }
}

impl BudgetFigures {
    /// Why the recording is incomplete.
    pub fn reason(&self) -> String {
        let functions = self.functions.len() as u64;
        let were = if functions == 1 { "was" } else { "were" };
        format!("given up for --budget: {} {were} not recorded for a while", plural(functions, "function"))
    }
}

pub fn section(page: &mut Page, figures: &Figures) {
    let Some(budget) = &figures.budget else { return };
    let functions = plural(budget.functions.len() as u64, "function");
    page.section(&format!("Given up for --budget {}: {functions}", clean(&budget.limit)));
    page.line(&format!("  {:>16}  Name", "Not recorded for"));
    for function in budget.functions.iter().take(TOP) {
        page.line(&format!("  {:>16}  {}", duration(function.unhooked_ns), clean(&function.name)));
        if !function.unhooked.is_empty() {
            page.wrapped("    not recorded ", &periods(function));
        }
    }
    page.more(budget.functions.len(), TOP, "functions");
}

fn periods(function: &Forgone) -> String {
    let one = |p: &Period| format!("from {} to {} s", millis(p.from_ns), millis(p.to_ns));
    let mut all: Vec<String> = function.unhooked.iter().map(one).collect();
    if function.more_periods > 0 {
        all.push(format!("and {}", plural(function.more_periods, "more time")));
    }
    all.join(", ")
}

/// Seconds, with three decimals.
fn millis(ns: u64) -> String {
    let exact = seconds(ns);
    exact.get(..exact.len() - 6).unwrap_or(&exact).to_owned()
}
