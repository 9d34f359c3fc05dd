//! What `--budget` left out: from its lines to figures. A function is at a level from one of
//! its lines to the next, or to the end. Only the level `recorded` has calls in the trace; older traces know another
//! one besides `unhooked`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::units::plural;
use gpurec_trace::bounds::{LONGEST_NAME, short};
use gpurec_trace::{self as trace, Action, CALL_STACKS, Header, Level};

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
    pub functions: Vec<ForgoneFunction>,
    /// If call stacks were given up: when calls had none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stacks: Option<ForgoneFunction>,
}

/// A function that the recorder gave up for the budget.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForgoneFunction {
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
    figures: BudgetFigures,
    functions: BTreeMap<u32, (ForgoneFunction, u64)>,
    stacks: Option<(ForgoneFunction, u64)>,
}

impl Budget {
    pub fn header(&mut self, header: &Header) {
        let limit = header.options.get("budget").map(ToString::to_string).unwrap_or_default();
        self.figures.limit = limit.strip_suffix(".0").unwrap_or(&limit).to_owned();
    }

    pub fn add(&mut self, ts_ns: u64, line: &trace::Budget) {
        match line.action {
            Action::GiveUp => self.figures.given_up += 1,
            Action::TakeBack => self.figures.taken_back += 1,
            Action::End => {}
        }
        let is_full = self.functions.len() >= FUNCTIONS && !self.functions.contains_key(&line.probe);
        let is_stacks = line.function == CALL_STACKS;
        if is_full && !is_stacks {
            return;
        }
        let new = || ForgoneFunction {
            name: short(&line.function, LONGEST_NAME),
            level: line.before,
            given_up: 0,
            unhooked_ns: 0,
            unhooked: Vec::new(),
            more_periods: 0,
        };
        let (function, since_ns) = if is_stacks {
            self.stacks.get_or_insert_with(|| (new(), ts_ns))
        } else {
            self.functions.entry(line.probe).or_insert_with(|| (new(), ts_ns))
        };
        function.stays(*since_ns, ts_ns);
        function.given_up += u64::from(line.action == Action::GiveUp);
        (function.level, *since_ns) = (line.level, ts_ns);
    }

    /// Whether any call was not recorded.
    pub fn left_out(&self) -> bool {
        !self.functions.is_empty()
    }

    pub fn finish(&self, at_ns: u64) -> Option<BudgetFigures> {
        let at_end = |(function, since_ns): &(ForgoneFunction, u64)| {
            let mut function = function.clone();
            function.stays(*since_ns, at_ns);
            function
        };
        let mut functions: Vec<ForgoneFunction> = self.functions.values().map(at_end).collect();
        functions.sort_by(|a, b| (b.unhooked_ns, &a.name).cmp(&(a.unhooked_ns, &b.name)));
        let stacks = self.stacks.as_ref().map(at_end);
        (self.left_out() || stacks.is_some()).then(|| BudgetFigures {
            functions,
            stacks,
            ..self.figures.clone()
        })
    }

    /// Whether calls have no stacks now.
    pub fn stacks_are_given_up(&self) -> bool {
        self.stacks.as_ref().is_some_and(|(stacks, _)| stacks.level != Level::Recorded)
    }
}

impl ForgoneFunction {
    /// Adds a period at the current level.
    fn stays(&mut self, from_ns: u64, to_ns: u64) {
        let ns = to_ns.saturating_sub(from_ns);
        if self.level == Level::Recorded {
            return;
        }
        self.unhooked_ns = self.unhooked_ns.saturating_add(ns);
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
        let stacks = self.stacks.as_ref().map(|_| "calls had no call stacks for a while".to_owned());
        let functions = (functions > 0)
            .then(|| format!("{} {were} not recorded for a while", plural(functions, "function")));
        let all: Vec<String> = stacks.into_iter().chain(functions).collect();
        format!("given up for --budget: {}", all.join(", and "))
    }
}
