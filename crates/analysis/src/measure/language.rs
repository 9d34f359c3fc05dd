//! Parses expressions: `cudaMalloc.calls == 0 after 10s`, or a threshold such as `cudaMalloc.calls=10%`. Errors give
//! the column and a suggestion. Not here: lookups in a trace.

use super::metric::{
    COMPLETE, COPIED, DIRECTIONS, FIELDS, Field, Figure, HEAP, Improvement, Metric, SPACES, TOTALS,
};
use super::names::{did_you_mean, nearest};
use super::part::{Edge, Window};
use super::value::{Unit, Value};
use crate::ranks::JOB_FIGURES;
use crate::ui::{clean, is_unsafe};

/// An error and its column, in characters from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub column: usize,
    pub reason: String,
}

impl Fault {
    /// The error, the line, and a marker below the column.
    pub fn pointed(&self, place: &str, line: &str) -> String {
        // Each unprintable character becomes one space, so that columns stay aligned.
        let line: String = line.chars().map(|c| if is_unsafe(c) { ' ' } else { c }).collect();
        let mark = " ".repeat(self.column.saturating_sub(1));
        format!("{place}: {}\n  {}\n  {mark}^", clean(&self.reason), line.trim_end())
    }
}

/// A metric, or the quotient of two metrics, in a part of the recording.
#[derive(Clone, Debug)]
pub struct Term {
    pub metric: Metric,
    pub per: Option<Metric>,
    pub unit: Unit,
    pub window: Window,
    /// Columns of the metrics, for errors that only a trace can reveal.
    pub column: usize,
    pub per_column: usize,
    /// The source text.
    pub text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Less,
    AtMost,
    More,
    AtLeast,
    Is,
    IsNot,
}

const OPS: [(&str, Op); 6] = [
    ("<=", Op::AtMost),
    (">=", Op::AtLeast),
    ("==", Op::Is),
    ("!=", Op::IsNot),
    ("<", Op::Less),
    (">", Op::More),
];

/// How much worse a metric may get.
#[derive(Clone, Debug)]
pub struct Threshold {
    pub term: Term,
    pub limit: Value,
    /// The limit is a share of the value before.
    pub relative: bool,
    /// The source text.
    pub text: String,
}

/// A line of an assertion file; `None` if it is empty or a comment.
pub fn budget(text: &str) -> Result<Option<(Term, Op, Value)>, Fault> {
    let mut parser = Parser::new(text);
    parser.blank();
    if parser.at_end() {
        return Ok(None);
    }
    let mut term = parser.term()?;
    parser.blank();
    let bare = matches!(term.metric, Metric::Total(total) if total.name == COMPLETE) && term.per.is_none();
    let (op, limit) = match parser.op() {
        Some(op) => (op, parser.limit(&term, term.unit)?),
        None if parser.looks_at("=") => {
            return Err(parser.fault("= is not a comparison: write ==, or <= for at most"));
        }
        None if bare => (Op::Is, Value::whole(1, Unit::Count)),
        None => return Err(parser.fault("expected a comparison (<, <=, ==, !=, >= or >) and a limit")),
    };
    term.window = parser.window()?;
    parser.end()?;
    Ok(Some((term, op, limit)))
}

/// `METRIC=10%`, `METRIC=5ms`.
pub fn threshold(text: &str) -> Result<Threshold, Fault> {
    let mut parser = Parser::new(text);
    let mut term = parser.term()?;
    term.window = parser.window()?;
    parser.blank();
    if !parser.eat("=") || parser.looks_at("=") {
        return Err(parser.fault("expected = and by how much it may grow, as in =10%"));
    }
    parser.blank();
    parser.eat("+");
    let (number, suffix, column) = parser.number()?;
    parser.end()?;
    let relative = suffix == "%";
    let unit = if relative { Unit::Ratio } else { term.unit };
    let limit = Value::parse(&number, &suffix, unit).ok_or_else(|| Fault {
        column,
        reason: format!("{} may grow by a percentage, as in 10%, or by {}", term.text, term.unit.example()),
    })?;
    Ok(Threshold { term, limit, relative, text: text.trim().to_owned() })
}

struct Parser {
    text: Vec<char>,
    at: usize,
}

impl Parser {
    fn new(text: &str) -> Parser {
        Parser { text: text.chars().collect(), at: 0 }
    }

    fn fault(&self, reason: impl Into<String>) -> Fault {
        Fault { column: self.at + 1, reason: reason.into() }
    }

    fn peek(&self) -> Option<char> {
        self.text.get(self.at).copied()
    }

    fn blank(&mut self) {
        while self.peek().is_some_and(char::is_whitespace) {
            self.at += 1;
        }
    }

    /// Whether only a comment or nothing follows.
    fn at_end(&self) -> bool {
        matches!(self.peek(), None | Some('#'))
    }

    fn end(&mut self) -> Result<(), Fault> {
        self.blank();
        if self.at_end() {
            return Ok(());
        }
        Err(self.fault("expected the end, after, before or a comment (#)"))
    }

    fn looks_at(&self, what: &str) -> bool {
        let rest = self.text.get(self.at..).unwrap_or_default();
        what.chars().enumerate().all(|(i, c)| rest.get(i) == Some(&c))
    }

    fn eat(&mut self, what: &str) -> bool {
        let found = self.looks_at(what);
        if found {
            self.at += what.chars().count();
        }
        found
    }

    fn take_while(&mut self, wanted: impl Fn(char) -> bool) -> String {
        let from = self.at;
        while self.peek().is_some_and(&wanted) {
            self.at += 1;
        }
        self.text.get(from..self.at).unwrap_or_default().iter().collect()
    }

    fn op(&mut self) -> Option<Op> {
        OPS.iter().find(|(text, _)| self.eat(text)).map(|(_, op)| *op)
    }

    fn term(&mut self) -> Result<Term, Fault> {
        self.blank();
        let (from, column) = (self.at, self.at + 1);
        let metric = self.metric()?;
        let mut to = self.at;
        self.blank();
        let mut unit = metric.unit();
        let mut per = None;
        let mut per_column = column;
        let slash = self.at + 1;
        if self.eat("/") {
            self.blank();
            per_column = self.at + 1;
            let below = self.metric()?;
            (unit, _) = metric.unit().over(below.unit()).ok_or_else(|| Fault {
                column: slash,
                reason: format!("{} cannot be divided by {}", metric.unit().name(), below.unit().name()),
            })?;
            to = self.at;
            per = Some(below);
        }
        let text = self.text.get(from..to).unwrap_or_default().iter().collect();
        Ok(Term { metric, per, unit, window: Window::default(), column, per_column, text })
    }

    fn metric(&mut self) -> Result<Metric, Fault> {
        let start = self.at;
        let head = self.word();
        if head.is_empty() {
            return Err(self.fault("expected a metric, such as launches, memory.leaked or cudaMalloc.calls"));
        }
        if self.peek() == Some('(') {
            return self.quoted(&head, start);
        }
        let mut parts = vec![head];
        let mut last = self.at;
        while self.eat(".") {
            last = self.at;
            parts.push(self.word());
            // In p99.9 the point is a decimal point.
            let percentile = parts.last().is_some_and(|part| is_percentile(part));
            if percentile
                && self.peek() == Some('.')
                && self.text.get(self.at + 1).is_some_and(char::is_ascii_digit)
            {
                self.at += 1;
                let decimals = self.take_while(|c| c.is_ascii_digit());
                if let Some(part) = parts.last_mut() {
                    *part = format!("{part}.{decimals}");
                }
            }
        }
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        named(&parts)
            .map_err(|(field, reason)| Fault { column: if field { last } else { start } + 1, reason })
    }

    fn word(&mut self) -> String {
        self.take_while(|c| c.is_alphanumeric() || matches!(c, '_' | '*' | '?' | '$' | '@' | ':'))
    }

    /// `kernel("void gelu<4>(float*, int)").launches`
    fn quoted(&mut self, head: &str, start: usize) -> Result<Metric, Fault> {
        self.at += 1;
        self.blank();
        let quote = self.peek().filter(|c| matches!(c, '"' | '\''));
        let Some(quote) = quote else {
            return Err(self.fault(format!("expected a name in quotes, as in {head}(\"NAME\")")));
        };
        let opened = self.at;
        self.at += 1;
        let name = self.take_while(|c| c != quote);
        if !self.eat(&quote.to_string()) {
            return Err(Fault { column: opened + 1, reason: "this quote is not closed".into() });
        }
        self.blank();
        if !self.eat(")") {
            return Err(self.fault("expected a closing bracket"));
        }
        if !self.eat(".") {
            return Err(self.fault(format!("expected one of its metrics, as in {head}(\"…\").time")));
        }
        let on_gpu = head == "kernel" && self.eat("gpu.");
        let at = self.at;
        let mut field = self.word();
        if is_percentile(&field) && self.looks_at(".") {
            self.at += 1;
            field = format!("{field}.{}", self.take_while(|c| c.is_ascii_digit()));
        }
        let fault = |reason| Fault { column: at + 1, reason };
        if on_gpu {
            return Ok(Metric::Gpu {
                name,
                field: field_of(&field, "a kernel on the GPU", ON_GPU).map_err(fault)?,
            });
        }
        let lacks = |absent: &[&str]| field_of(&field, head, absent).map_err(fault);
        match head {
            "kernel" => Ok(Metric::Kernel { name, field: lacks(&["calls", "errors", "bytes"])? }),
            "function" => Ok(Metric::Function { name, field: lacks(&["launches"])? }),
            "ioctl" => Ok(Metric::Ioctl { name, field: lacks(&["launches", "bytes", "min", "med", "p99"])? }),
            _ => Err(Fault {
                column: start + 1,
                reason: format!(
                    "{head} takes no name; kernel(\"NAME\"), function(\"NAME\") and ioctl(\"NAME\") do"
                ),
            }),
        }
    }

    /// A number and the letters after it.
    fn number(&mut self) -> Result<(String, String, usize), Fault> {
        self.blank();
        let column = self.at + 1;
        if self.looks_at("-") {
            return Err(self.fault("no metric is ever below 0"));
        }
        let number = self.take_while(|c| c.is_ascii_digit() || matches!(c, '.' | '_'));
        if number.is_empty() {
            return Err(self.fault("expected a number"));
        }
        let before = self.at;
        self.blank();
        let suffix = self.take_while(|c| c.is_alphabetic() || matches!(c, '%' | '/' | 'µ'));
        if matches!(suffix.as_str(), "after" | "before" | "launches") {
            // These are separate words, not suffixes.
            self.at = before;
            return Ok((number, String::new(), column));
        }
        Ok((number, suffix, column))
    }

    fn limit(&mut self, term: &Term, unit: Unit) -> Result<Value, Fault> {
        self.blank();
        for (word, number) in [("true", 1), ("false", 0)] {
            if unit == Unit::Count && self.eat(word) {
                return Ok(Value::whole(number, unit));
            }
        }
        let (number, suffix, column) = self.number()?;
        Value::parse(&number, &suffix, unit).ok_or_else(|| Fault {
            column,
            reason: format!("{} is compared with {}", term.text, unit.example()),
        })
    }

    /// `after 10s`, `before 20s`, `after 100 launches`, two of them, or nothing.
    fn window(&mut self) -> Result<Window, Fault> {
        let mut window = Window::default();
        loop {
            self.blank();
            let column = self.at + 1;
            let (edge, word) = match () {
                () if self.eat("after") => (&mut window.from, "after"),
                () if self.eat("before") => (&mut window.to, "before"),
                () => break,
            };
            if *edge != Edge::Open {
                return Err(Fault { column, reason: format!("{word} is given twice") });
            }
            let (number, suffix, column) = self.number()?;
            self.blank();
            let read = |unit, suffix: &str| Value::parse(&number, suffix, unit).map(|value| value.floor().0);
            *edge = if suffix.is_empty() && self.eat("launches") {
                read(Unit::Count, "").map(Edge::Launches)
            } else {
                read(Unit::Time, &suffix).map(Edge::Time)
            }
            .ok_or_else(|| Fault {
                column,
                reason: format!("{word} takes a time of the recording or a number of launches, as in {word} 10s or {word} 100 launches"),
            })?;
        }
        match (window.from, window.to) {
            (Edge::Time(from), Edge::Time(to)) | (Edge::Launches(from), Edge::Launches(to)) if from >= to => {
                Err(self.fault("nothing lies between after and before: after takes the smaller value"))
            }
            _ => Ok(window),
        }
    }
}

/// A metric whose name needs no quotes.
pub fn metric(text: &str) -> Option<Metric> {
    named(&text.split('.').collect::<Vec<_>>()).ok()
}

/// An error says whether the last part of the name is the wrong one.
fn named(parts: &[&str]) -> Result<Metric, (bool, String)> {
    let whole = parts.join(".");
    if let Some(total) = TOTALS.iter().find(|total| total.name == whole) {
        return Ok(Metric::Total(total));
    }
    let all = || TOTALS.iter().map(|total| total.name).chain(COPIES);
    let none = |near: &[String]| Err((false, format!("there is no metric {whole}{}", did_you_mean(near))));
    let mut near = nearest(&whole, all());
    match parts {
        ["ranks", rest @ ..] => of_job(&rest.join(".")),
        ["memory", space, field] => {
            listed(space, &SPACES, "space of memory").map_err(|e| (false, e))?;
            Ok(Metric::Memory { space: space.to_string(), field: figure(field, &HEAP, "memory")? })
        }
        ["copies", field] if !DIRECTIONS.contains(field) => {
            Ok(Metric::Copies { direction: None, field: figure(field, &COPIED, "copies")? })
        }
        ["copies", direction, field] => {
            listed(direction, &DIRECTIONS, "direction").map_err(|e| (false, e))?;
            let direction = Some(direction.to_string());
            Ok(Metric::Copies { direction, field: figure(field, &COPIED, "copies")? })
        }
        ["gpu", "queue", field] => {
            let field = field_of(field, "gpu.queue", ON_GPU).map_err(|reason| (true, reason))?;
            Ok(Metric::Queue { field })
        }
        [head, ..] if all().any(|name| name.split('.').next() == Some(head)) => {
            if near.is_empty() {
                let below = format!("{head}.");
                let family = all().filter(|name| name.starts_with(&below) || name == head);
                near = family.map(str::to_owned).collect();
            }
            none(&near)
        }
        [function, field] => match field_of(field, "a function", &["launches"]) {
            Ok(field) => Ok(Metric::Function { name: function.to_string(), field }),
            Err(_) if !near.is_empty() => none(&near),
            Err(reason) => Err((true, reason)),
        },
        [one] if near.is_empty() => {
            Err((false, format!("there is no metric {one}; of a function give a metric, as in {one}.calls")))
        }
        _ => none(&near),
    }
}

/// A metric of the ranks of a job.
fn of_job(name: &str) -> Result<Metric, (bool, String)> {
    if let Some(figure) = JOB_FIGURES.iter().find(|figure| figure.name == name) {
        return Ok(Metric::Job(figure));
    }
    let digits =
        name.strip_prefix("skew.p").filter(|digits| digits.starts_with(|c: char| c.is_ascii_digit()));
    if let Some(of @ 1..=100_000) = digits.and_then(hundred_thousandths) {
        return Ok(Metric::Skew(of));
    }
    let names: Vec<&str> =
        JOB_FIGURES.iter().map(|figure| figure.name).chain(["skew.p50", "skew.p99"]).collect();
    Err((true, unknown(name, &names, "ranks")))
}

/// Examples to suggest for large families of metrics.
const COPIES: [&str; 6] =
    ["copies.calls", "copies.bytes", "copies.pageable", "copies.rate", "copies.H2D.bytes", "gpu.queue.p50"];

/// The fields that work on the GPU lacks.
const ON_GPU: &[&str] = &["launches", "errors", "bytes"];

fn is_percentile(part: &str) -> bool {
    part.strip_prefix('p')
        .is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()))
}

fn field_of(text: &str, what: &str, absent: &[&str]) -> Result<Field, String> {
    let percentile = text.strip_prefix('p').filter(|digits| digits.starts_with(|c: char| c.is_ascii_digit()));
    if let Some(digits) = percentile.filter(|_| !absent.contains(&"p99")) {
        return match hundred_thousandths(digits) {
            Some(of @ 1..=100_000) => Ok(Field::Percentile(of)),
            _ => Err(format!(
                "{text} is not a percentile: give p50, p99, p99.9 … p100, with three decimals at most"
            )),
        };
    }
    let known = || FIELDS.iter().filter(|(name, _)| !absent.contains(name));
    let field = known().find(|(name, _)| *name == text).map(|(_, field)| *field);
    field.ok_or_else(|| unknown(text, &known().map(|(name, _)| *name).collect::<Vec<_>>(), what))
}

/// `99.9` is 99,900.
fn hundred_thousandths(digits: &str) -> Option<u32> {
    let (whole, decimals) = digits.split_once('.').unwrap_or((digits, ""));
    if decimals.len() > 3 {
        return None;
    }
    whole.parse::<u32>().ok()?.checked_mul(1000)?.checked_add(format!("{decimals:0<3}").parse().ok()?)
}

fn figure<F>(text: &str, of: &'static [Figure<F>], what: &str) -> Result<&'static Figure<F>, (bool, String)> {
    let names: Vec<&str> = of.iter().map(|figure| figure.name).collect();
    of.iter().find(|figure| figure.name == text).ok_or_else(|| (true, unknown(text, &names, what)))
}

fn unknown(text: &str, known: &[&str], what: &str) -> String {
    let near = nearest(text, known.iter().copied());
    let percentiles = if known.contains(&"med") { ", p50, p99, p99.9 …" } else { "" };
    format!("{what} has no {text:?}, but {}{percentiles}{}", known.join(", "), did_you_mean(&near))
}

fn listed(text: &str, known: &[&str], what: &str) -> Result<(), String> {
    if known.contains(&text) {
        return Ok(());
    }
    let near = nearest(text, known.iter().copied());
    Err(format!("{text:?} is not a {what}; there are {}{}", known.join(", "), did_you_mean(&near)))
}

impl Term {
    /// Whether it is about the ranks of a job, so that all traces count as one.
    pub fn is_of_job(&self) -> bool {
        std::iter::once(&self.metric).chain(&self.per).any(Metric::is_of_job)
    }

    pub fn better(&self) -> Improvement {
        self.metric.better()
    }
}
