//! Reads the frequent lines exactly as the writer writes them: the same keys in the same order. Returns `None` for
//! everything else and leaves it to parse.rs, which reads any order and explains errors. Where both have a result, the
//! results are equal (tests/fast.rs); this reader is several times as fast.

use std::borrow::Cow;

use super::event::{self, Line};
use super::scan::{Scan, plain};
use super::schema::{Codec, Key, Source};

/// The keys of a line in the writer's order, after those that every line has.
struct InOrder<'a> {
    scan: Scan<'a>,
    line_type: &'a str,
    name: &'a str,
}

pub fn line(text: &[u8]) -> Option<Line<'_>> {
    let mut scan = Scan::new(plain(text)?);
    scan.must("{\"event_id\":")?;
    let event_id = scan.number()?;
    scan.must(",\"ts\":")?;
    let ts_ns = scan.seconds()?;
    scan.must(",\"type\":\"")?;
    let line_type = scan.string()?;
    scan.must(",\"name\":\"")?;
    let name = scan.string()?;
    let mut rest = InOrder { scan, line_type, name };
    let body = event::frequent(&mut rest).ok()??;
    rest.scan.must("}")?;
    rest.scan.at_end().then_some(Line { event_id, ts_ns, body })
}

impl<'a> Source<'a> for InOrder<'a> {
    type Error = ();

    #[inline(always)]
    fn line_type(&self) -> &str {
        self.line_type
    }

    #[inline(always)]
    fn name(&mut self) -> Result<Cow<'a, str>, ()> {
        Ok(Cow::Borrowed(self.name))
    }

    #[inline(always)]
    fn phase(&mut self) -> Result<Option<u8>, ()> {
        Ok(self.scan.peek(",\"phase\":\""))
    }

    #[inline(always)]
    fn get<C: Codec<'a, T>, T>(&mut self, key: Key) -> Result<T, ()> {
        if self.scan.eat(key.before) { C::scan(&mut self.scan) } else { C::absent() }.ok_or(())
    }

    #[inline(always)]
    fn skip<C: Codec<'a, T>, T>(&mut self, key: Key) -> Result<(), ()> {
        self.get::<C, T>(key).map(drop)
    }

    #[inline(always)]
    fn place(&self) -> usize {
        self.scan.left()
    }

    #[inline(always)]
    fn is_over(&self) -> bool {
        self.scan.ends()
    }

    fn error(_why: &'static str) {}
}
