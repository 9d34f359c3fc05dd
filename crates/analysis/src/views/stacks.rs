//! `report stacks`: which line of code launched, allocated, copied and waited, as a call tree: by host time, by number
//! of calls, or by bytes.
//!
//! A call counts once in its role, at the outermost level that has the role; the calls inside share its stack.

use super::*;
use crate::stacks::{CallRole, RoleFigures, StackFigures, Sum, Sums, Weight};
use crate::text::percent;

pub const KIND: Kind = kind::<CallStacks>(
    "stacks",
    "which line of code launched, allocated, copied, waited (--role, --by, --invert)",
)
.table("stacks", 10)
.figures(&[CALLS]);

/// Limits on stacks in the tree, and on rows of JSON and CSV: those that weigh most.
const MOST: usize = 4096;
const MOST_ROWS: usize = 65_536;
/// Number of lines of the tree, per row of the table.
const LINES: usize = 5;
const ROWS: usize = 10;
/// A branch below this share of everything, in hundredths, is not drawn.
const LEAST: u128 = 1;
/// Of a chain of frames without a branch, the tree shows the ends.
const CHAIN_HEAD: usize = 4;
const CHAIN_TAIL: usize = 10;

#[derive(Default)]
struct CallStacks {
    role: Option<CallRole>,
    by: Option<Weight>,
    invert: bool,
    lines: usize,
    /// Text shows few rows; their frames need not be made for the others.
    is_text: bool,
    rows: usize,
}

/// A row: the stack, its role and sums.
type Row = (u64, CallRole, Sum);

impl View for CallStacks {
    fn configure(&mut self, config: &ReportConfig) {
        (self.role, self.by, self.invert) = (config.role, config.by, config.invert);
        self.rows = config.top.unwrap_or(ROWS);
        self.is_text = config.format == Format::Text;
        self.lines = self.rows.saturating_mul(LINES);
    }

    fn finish(&mut self, context: &Context) -> Report {
        let stacks = &context.stacks;
        if stacks.is_empty() {
            return nothing("There are no call stacks in this trace: record with --stacks.");
        }
        let sums = stacks.with_unfinished(|id, ts_ns| context.so_far(id, ts_ns, false));
        let (roles, by) = (self.roles(), self.weight());
        let rows = sums.heaviest(&roles, by);
        let mut all = Sum::default();
        roles.iter().for_each(|role| all.add(sums.total(*role)));
        if all == Sum::default() {
            return nothing("No call of this role has a call stack in this trace.");
        }
        if by == Weight::Gpu && all.gpu_ns == 0 {
            return nothing("No call with a call stack has GPU work in this trace: record with --gpu.");
        }
        let mut report = Report::default();
        let distinct: HashSet<u64> = rows.iter().map(|(stack, ..)| *stack).collect();
        self.title(&mut report, distinct.len() as u64, &all);
        let totals = roles.iter().map(|role| (role.name(), sums.total(*role)));
        by_role(&mut report, totals.filter(|(_, sum)| *sum != Sum::default()).collect());
        report.title(format!("The stacks that weigh most, by {}", word(by)));
        let most = if self.is_text { self.rows } else { MOST_ROWS };
        let shown = rows.get(..most).unwrap_or(&rows);
        report.fact("rows_left_out", rows.len() - shown.len());
        report.table(table(shown, &all, by, stacks).more((rows.len() - shown.len()) as u64));
        let first = if self.invert { "the innermost call first" } else { "the outermost call first" };
        report.title(format!("As a call tree, {first}"));
        let tree = Tree::new(rows.iter().take(MOST), self.invert, by, stacks);
        report.lines(tree.lines(all.weight(by), by, self.lines, stacks));
        report.words("(%) and amounts include the calls of all frames below. Host time of a launch or of an asynchronous copy is what the call took, not what the GPU worked.");
        self.limits(&mut report, context);
        report
    }

    fn of_figures(&mut self, figures: &Figures, _: &Context) -> Option<Report> {
        let Some(stacks) = &figures.stacks else {
            return Some(nothing("The recording has no call stacks: record with --stacks."));
        };
        let mut report = Report::default();
        let names: Vec<&str> = self.roles().iter().map(|role| role.name()).collect();
        let roles = || stacks.by_role.iter().filter(|role| names.contains(&role.role.as_str()));
        let sum = |role: &RoleFigures| Sum {
            calls: role.calls,
            ns: role.total_ns,
            bytes: role.bytes,
            gpu_ns: role.gpu_ns,
            unfinished: 0,
        };
        let totals: Vec<(&str, Sum)> = roles().map(|role| (role.role.as_str(), sum(role))).collect();
        let mut all = Sum::default();
        totals.iter().for_each(|(_, sum)| all.add(*sum));
        // A stack may be in several roles.
        let distinct =
            if self.role.is_some() { roles().map(|role| role.stacks).sum() } else { stacks.stacks };
        self.title(&mut report, distinct, &all);
        by_role(&mut report, totals);
        report.title("The stacks that weigh most, role by role");
        report.table(table_of_figures(stacks, &names, &all, self.weight()));
        stacks.gaps().into_iter().for_each(|sentence| report.words(sentence));
        Some(report)
    }
}

impl CallStacks {
    /// Blocks lie inside of memory that other calls allocated: they are not summed with it.
    fn roles(&self) -> Vec<CallRole> {
        match self.role {
            Some(role) => vec![role],
            None => CallRole::ALL.into_iter().filter(|role| *role != CallRole::Block).collect(),
        }
    }

    fn weight(&self) -> Weight {
        self.by.unwrap_or_else(|| self.role.map_or(Weight::Time, CallRole::weight))
    }

    fn title(&self, report: &mut Report, stacks: u64, all: &Sum) {
        report.facts([
            ("stacks_count", stacks),
            ("calls", all.calls),
            ("total_ns", all.ns),
            ("bytes", all.bytes),
        ]);
        let role = self.role.map_or(String::new(), |role| format!(" of role {role}"));
        let calls = plural(all.calls, "call");
        report.title(format!(
            "{calls}{role} from {}: {} on the host",
            plural(stacks, "stack"),
            duration(all.ns)
        ));
    }

    fn limits(&self, report: &mut Report, context: &Context) {
        let stacks = &context.stacks;
        let gaps = stacks.figures(&Sums::default()).map(|figures| figures.gaps());
        gaps.into_iter().flatten().for_each(|sentence| report.words(sentence));
        report.words_if(
            stacks.totals.unfollowed > 0,
            format!("{} were not followed: too many were open.", plural(stacks.totals.unfollowed, "call")),
        );
    }
}

fn word(by: Weight) -> &'static str {
    match by {
        Weight::Count => "number of calls",
        Weight::Time => "host time",
        Weight::Bytes => "bytes",
        Weight::Gpu => "GPU time",
    }
}

fn by_role(report: &mut Report, totals: Vec<(&str, Sum)>) {
    report.table(
        Listing::new("roles", "roles", totals)
            .millis(number("Host time (ms)", "total_ns"), |(_, sum)| sum.ns)
            .count(number("Calls", "calls"), |(_, sum)| sum.calls)
            .count(number("Unfinished", "unfinished"), |(_, sum)| positive(sum.unfinished))
            .bytes(number("Bytes", "bytes"), |(_, sum)| positive(sum.bytes))
            .millis(number("GPU time (ms)", "gpu_ns"), |(_, sum)| positive(sum.gpu_ns))
            .cell(text("Role", "role"), |(role, _)| *role)
            .whole(),
    );
}

fn table<'a>(rows: &'a [Row], all: &Sum, by: Weight, stacks: &Stacks) -> Listing<&'a Row> {
    let known = |stack: u64| stacks.frames.stack(stack);
    let frames = |stack: u64| {
        let texts = known(stack)?.frames.iter().map(|frame| stacks.text(*frame));
        Some(texts.collect::<Vec<_>>().join("\n"))
    };
    let site = |stack: u64| known(stack)?.site.map(|site| stacks.text(site));
    Listing::new("stacks", "stacks", rows)
        .share(number("(%)", "percent"), |(_, _, sum)| Some((sum.weight(by), all.weight(by))))
        .millis(number("Host time (ms)", "total_ns"), |(_, _, sum)| sum.ns)
        .count(number("Calls", "calls"), |(_, _, sum)| sum.calls)
        .count(number("Unfinished", "unfinished"), |(_, _, sum)| positive(sum.unfinished))
        .bytes(number("Bytes", "bytes"), |(_, _, sum)| positive(sum.bytes))
        .millis(number("GPU time (ms)", "gpu_ns"), |(_, _, sum)| positive(sum.gpu_ns))
        .cell(text("Role", "role"), |(_, role, _)| role.name())
        .cell(long("Call site", "call_site"), |(stack, ..)| site(*stack))
        .count(number("Stack", "stack").minor(), |(stack, ..)| *stack)
        .cell(data("frames"), |(stack, ..)| frames(*stack))
        .cell(data("cut"), |(stack, ..)| known(*stack).map(|known| if known.cut { "yes" } else { "no" }))
}

fn table_of_figures(stacks: &StackFigures, roles: &[&str], all: &Sum, by: Weight) -> Table {
    let mut rows: Vec<_> = stacks
        .by_role
        .iter()
        .filter(|role| roles.contains(&role.role.as_str()))
        .flat_map(|role| role.top.iter().map(move |row| (role.role.as_str(), row)))
        .collect();
    let weight = |row: &crate::stacks::StackRow| match by {
        Weight::Count => row.calls,
        Weight::Time => row.total_ns,
        Weight::Bytes => row.bytes,
        Weight::Gpu => row.gpu_ns,
    };
    rows.sort_by_key(|(_, row)| std::cmp::Reverse(weight(row)));
    Listing::new("stacks", "stacks", rows)
        .share(number("(%)", "percent"), |(_, row)| Some((weight(row), all.weight(by))))
        .millis(number("Host time (ms)", "total_ns"), |(_, row)| row.total_ns)
        .count(number("Calls", "calls"), |(_, row)| row.calls)
        .count(number("Unfinished", "unfinished"), |(_, row)| positive(row.unfinished))
        .bytes(number("Bytes", "bytes"), |(_, row)| positive(row.bytes))
        .millis(number("GPU time (ms)", "gpu_ns"), |(_, row)| positive(row.gpu_ns))
        .cell(text("Role", "role"), |(role, _)| *role)
        .cell(long("Call site", "call_site"), |(_, row)| (!row.site.is_empty()).then_some(&row.site))
        .cell(data("frames"), |(_, row)| row.frames.join("\n"))
        .cell(data("cut"), |(_, row)| if row.cut { "yes" } else { "no" })
        .into()
}

/// Frames by those around them, each with the weight of all calls beneath. The first node is the root.
struct Tree {
    nodes: Vec<Node>,
}

#[derive(Default)]
struct Node {
    frame: Option<Site>,
    weight: u64,
    children: Vec<usize>,
}

impl Tree {
    fn new<'a>(rows: impl Iterator<Item = &'a Row>, invert: bool, by: Weight, stacks: &Stacks) -> Tree {
        let mut tree = Tree { nodes: vec![Node::default()] };
        for (stack, _, sum) in rows {
            let frames = stacks.frames.stack(*stack).map_or(&[][..], |known| &known.frames);
            let mut at = 0;
            for position in 0..frames.len() {
                let position = if invert { position } else { frames.len() - 1 - position };
                at = tree.child(at, frames[position], sum.weight(by));
            }
        }
        tree
    }

    fn child(&mut self, at: usize, frame: Site, weight: u64) -> usize {
        let found =
            self.nodes[at].children.iter().copied().find(|child| self.nodes[*child].frame == Some(frame));
        let child = found.unwrap_or_else(|| {
            self.nodes.push(Node { frame: Some(frame), ..Node::default() });
            let child = self.nodes.len() - 1;
            self.nodes[at].children.push(child);
            child
        });
        self.nodes[child].weight = self.nodes[child].weight.saturating_add(weight);
        child
    }

    /// The children that are worth a line, the heaviest first.
    fn worthy(&self, at: usize, all: u64) -> Vec<usize> {
        let is_worth = |child: &usize| u128::from(self.nodes[*child].weight) * 100 >= u128::from(all) * LEAST;
        let mut children: Vec<usize> = self.nodes[at].children.iter().copied().filter(is_worth).collect();
        children
            .sort_by_key(|child| (std::cmp::Reverse(self.nodes[*child].weight), self.nodes[*child].frame));
        children
    }

    fn lines(&self, all: u64, by: Weight, most: usize, stacks: &Stacks) -> Vec<String> {
        let mut lines = Vec::new();
        let mut waiting: Vec<(usize, usize)> =
            self.worthy(0, all).into_iter().rev().map(|at| (at, 0)).collect();
        while let Some((mut at, depth)) = waiting.pop() {
            if lines.len() >= most {
                lines.push("  …  --top shows more".to_owned());
                break;
            }
            let weight = self.nodes[at].weight;
            let mut chain = vec![at];
            let mut below = self.worthy(at, all);
            while let [only] = below[..]
                && self.nodes[only].weight == weight
            {
                at = only;
                chain.push(at);
                below = self.worthy(at, all);
            }
            self.chain(&mut lines, &chain, depth, all, by, stacks);
            waiting.extend(below.into_iter().rev().map(|child| (child, depth + 1)));
        }
        lines
    }

    /// Frames of one weight: the first line has it.
    fn chain(
        &self,
        lines: &mut Vec<String>,
        chain: &[usize],
        depth: usize,
        all: u64,
        by: Weight,
        stacks: &Stacks,
    ) {
        let indent = "  ".repeat(depth.min(40));
        let weight = chain.first().map_or(0, |at| self.nodes[*at].weight);
        let amount = match by {
            Weight::Count => weight.to_string(),
            Weight::Time | Weight::Gpu => duration(weight),
            Weight::Bytes => size(weight),
        };
        let share = percent(weight.into(), all.into());
        let head = format!("{share:>6} %  {amount:>12}");
        let hidden = chain.len().saturating_sub(CHAIN_HEAD + CHAIN_TAIL);
        for (place, at) in chain.iter().enumerate() {
            if hidden > 1 && place == CHAIN_HEAD {
                lines.push(format!("  {:22}  {indent}… {hidden} frames", ""));
            }
            if hidden > 1 && (CHAIN_HEAD..CHAIN_HEAD + hidden).contains(&place) {
                continue;
            }
            let text = self.nodes[*at].frame.map(|frame| clean(&stacks.text(frame))).unwrap_or_default();
            let head = if place == 0 { head.as_str() } else { "" };
            lines.push(format!("  {head:22}  {indent}{text}"));
        }
    }
}
